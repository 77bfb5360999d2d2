package outbox_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
)

// table is an outbox in PostgreSQL, and its publisher, if it has one.
type table struct {
	t         testing.TB
	pool      *pgxpool.Pool
	version   map[uuid.UUID]int64 // the newest one of a letter
	publisher *outbox.Publisher
}

func newTable(t testing.TB) *table {
	t.Helper()
	return &table{t: t, pool: pgtest.Pool(t, 8), version: make(map[uuid.UUID]int64)}
}

// publish runs a publisher until stop is called.
func (s *table) publish(cfg outbox.Config, around func(outbox.Store) outbox.Store, to outbox.Broker) (stop func()) {
	s.t.Helper()
	var events outbox.Store = pg.NewOutbox(s.pool)
	if around != nil {
		events = around(events)
	}
	s.publisher = mustNew(s.t, events, to, cfg)
	return run(s.t, s.publisher)
}

// change appends the next event of a letter.
func (s *table) change(id uuid.UUID) {
	s.t.Helper()
	e := newEvent(id)
	s.version[id]++
	e.Version = s.version[id]
	pgtest.Append(s.t, s.pool, e)
	if s.publisher != nil {
		s.publisher.Wake()
	}
}

// newEvent is the first event of a letter.
func newEvent(id uuid.UUID) envelope.Message {
	return envelope.Message{
		ID: uuid.Must(uuid.NewV7()), AggregateType: "letter", AggregateID: id.String(), Type: "LetterChanged", Version: 1, SchemaVersion: 1,
		Payload: bytes.Repeat([]byte("x"), 100), OccurredAt: time.Now(),
	}
}

// left returns how many events are pending or deferred.
func (s *table) left() int {
	s.t.Helper()
	return pgtest.Count(s.t, s.pool, "SELECT (SELECT count(*) FROM video_catalog.outbox_pending) + (SELECT count(*) FROM video_catalog.outbox_deferred)")
}
