package wal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/metric/noop"

	"example.com/servicekit/localpg"
	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/options/wal/internal/sqlcgen"
)

var (
	discard   = slog.New(slog.DiscardHandler)
	server    *localpg.Server // with logical decoding, which the one of pgtest has not
	settings  = map[string]string{"wal_level": "logical", "max_replication_slots": "40", "max_wal_senders": "40"}
	databases atomic.Int64
)

func TestMain(m *testing.M) {
	if url := os.Getenv(childVariable); url != "" {
		child(url)
		return
	}
	pause, stopTimeout = 100*time.Millisecond, time.Minute
	var err error
	server, err = localpg.Start(context.Background(), localpg.Config{Settings: settings})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer server.Stop()
	pgtest.Main(m)
}

// service is a service without its API: a database, a publisher, and a reader of the log. Both deliver to one ledger.
type service struct {
	testing.TB

	url  string
	slot string
	pool *pgxpool.Pool

	lose   float64                     // the part of the responses of the broker that are lost
	refuse func(envelope.Message) bool // by the broker; nil: none
	holds  func(envelope.Message) bool // an outage for some; nil: none

	mu        sync.Mutex
	open      map[string]int     // messages without a response, by aggregate
	failed    map[string]bool    // aggregates of which one of these has failed
	delivered map[string][]int64 // versions, by aggregate
	first     int                // deliveries that were the first
	again     int                // the others
	wrong     []string           // first deliveries out of order
	refused   int
	total     atomic.Int64 // events that were appended
}

func newService(t testing.TB) *service {
	t.Helper()
	return newServiceOn(t, server)
}

func newServiceOn(t testing.TB, server *localpg.Server) *service {
	t.Helper()
	name := fmt.Sprintf("relay_%d", databases.Add(1))
	s := &service{TB: t, url: server.DSN(name), slot: name, open: make(map[string]int), failed: make(map[string]bool), delivered: make(map[string][]int64)}
	admin := s.connect(server.DSN("postgres"))
	pgtest.Execute(t, admin, "CREATE DATABASE "+name)
	_, err := db.Migrate(t.Context(), s.url, discard, pgtest.Options()...)
	pgtest.Must(t, err)
	s.pool = s.connect(s.url)
	t.Cleanup(func() {
		_, _ = s.pool.Exec(context.Background(), "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1", s.slot)
	})
	return s
}

func (s *service) connect(url string) *pgxpool.Pool {
	s.Helper()
	return pgtest.Open(s, url, 20)
}

// relay runs the command, and returns its output.
func (s *service) relay(args ...string) (string, error) {
	return s.server(s.url, append([]string{"relay"}, args...)...)
}

// server runs a command of a build with the option.
func (s *service) server(url string, args ...string) (string, error) {
	var out strings.Builder
	err := s.program(s.Context(), &out, url, args...)
	return out.String(), err
}

func (s *service) program(ctx context.Context, out io.Writer, url string, args ...string) error {
	if slices.Contains(args, external) || slices.Contains(args, wal) {
		args = append(args, "--slot", s.slot)
	}
	if slices.Contains(args, external) || slices.Contains(args, wal) || slices.Contains(args, lanes) {
		args = append(args, "--why", "test", "--by", "ann")
	}
	program := app.Program{Options: []app.Option{Option()}}
	return program.Run(ctx, args, []string{"DATABASE_URL=" + url, "READ_DATABASE_URL=" + url, "PUBSUB_PROJECT=test", "ROLES=api", "AUTH=off", "PORT=0"}, out, out)
}

// must is relay for a command that succeeds.
func (s *service) must(args ...string) string {
	s.Helper()
	out, err := s.relay(args...)
	if err != nil {
		s.Fatalf("relay %q = %v", args, err)
	}
	if n := pgtest.Count(s, s.pool, slow); n != 0 && args[0] != "status" {
		s.Errorf("relay %q leaves %d triggers that make appends slower", args, n)
	}
	return out
}

// deliver notes a delivery, under mu. The first delivery of a version must be the next of its aggregate.
func (s *service) deliver(aggregate string, version int64) {
	all := s.delivered[aggregate]
	if slices.Contains(all, version) {
		s.again++
		return
	}
	if version != int64(len(all))+1 {
		s.wrong = append(s.wrong, fmt.Sprintf("version %d of %s after %v", version, aggregate, all))
	}
	s.delivered[aggregate] = append(all, version)
	s.first++
}

// Publish implements outbox.Broker, with its contract: after a message has failed, it takes none of the same key until all responses were
// waited for.
func (s *service) Publish(m envelope.Message) outbox.Receipt {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := receipt{s: s, key: m.AggregateID}
	s.open[r.key]++
	switch {
	case s.failed[r.key] || s.holds != nil && s.holds(m):
		r.err = errors.New("not sent")
	case s.refuse != nil && s.refuse(m):
		s.refused++
		r.err = &outbox.RefusedError{Err: errors.New("bad")}
	case rand.Float64() < s.lose:
		if r.err = errors.New("the response is lost"); rand.IntN(2) == 0 {
			s.deliver(m.AggregateID, m.Version)
		}
	default:
		s.deliver(m.AggregateID, m.Version)
	}
	s.failed[r.key] = s.failed[r.key] || r.err != nil
	return r
}

type receipt struct {
	s   *service
	key string
	err error
}

func (r receipt) Wait(context.Context) error {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if r.s.open[r.key]--; r.s.open[r.key] == 0 {
		delete(r.s.failed, r.key)
	}
	return r.err
}

// publish runs a publisher until the returned function, or the end of the test, stops it.
func (s *service) publish() (stop func()) {
	s.Helper()
	// A pool of its own, as in a process: appends that are held take no connection of the publisher.
	p, err := outbox.New(pg.NewOutbox(s.connect(s.url)), s, outbox.Config{PollInterval: 20 * time.Millisecond}, discard, noop.Meter{})
	pgtest.Must(s, err)
	return s.background(func(ctx context.Context) { _ = p.Run(ctx) })
}

// read reads the log as another program does, until it is stopped. It confirms what it has delivered, or dies before, at random: so often.
func (s *service) read(dies float64) (stop func()) {
	return s.background(func(ctx context.Context) {
		for ctx.Err() == nil {
			s.readOnce(ctx, rand.Float64() < dies)
			time.Sleep(5 * time.Millisecond)
		}
	})
}

// readOnce delivers what is in the log, and then confirms it, unless it dies before.
func (s *service) readOnce(ctx context.Context, dies bool) {
	ctx, q := context.WithoutCancel(ctx), sqlcgen.New(s.pool)
	rows, err := q.PeekLog(ctx, s.slot, 1000)
	if err != nil || len(rows) == 0 { // a switch has the slot, or has dropped it
		return
	}
	ids := slices.DeleteFunc(pg.MapSlice(rows, func(row sqlcgen.PeekLogRow) string { return row.ID }), func(id string) bool { return id == "" })
	found, err := s.pool.Query(ctx, `SELECT o.aggregate_id, o.version FROM unnest($1::text[]) WITH ORDINALITY l (id, place)
		JOIN video_catalog.outbox o ON o.id = nullif(l.id, '')::uuid ORDER BY l.place`, ids)
	var aggregate string
	var version int64
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		_, err = pgx.ForEachRow(found, []any{&aggregate, &version}, func() error { s.deliver(aggregate, version); ids = ids[1:]; return nil })
	}
	if err != nil {
		s.Errorf("read the log: %v", err)
	}
	if !dies && len(ids) == 0 { // the log has a commit before others see its rows
		_ = q.AdvanceSlot(ctx, s.slot, &rows[len(rows)-1].Lsn) // without it, the events come again
	}
}

func (s *service) background(run func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); run(ctx) }()
	stop = func() { cancel(); <-done }
	s.Cleanup(stop)
	return stop
}

// message returns a version of an aggregate.
func message(aggregate string, version int64) envelope.Message {
	return envelope.Message{
		ID: uuid.Must(uuid.NewV7()), AggregateType: "letter", AggregateID: aggregate, Type: "Posted", Version: version, SchemaVersion: 1,
		Payload: []byte(fmt.Sprint(aggregate, version)), OccurredAt: time.Now().UTC().Truncate(time.Microsecond),
	}
}

func (s *service) append(aggregate string, version int64) {
	s.Helper()
	pgtest.Append(s, s.pool, message(aggregate, version))
	s.total.Add(1)
}

const beginSwitch = "SELECT video_catalog.outbox_relay_switching(true)" // appends read the mode

// migrationsWithout returns the migrations of all options but this one.
func migrationsWithout() (all []fs.FS) {
	for _, files := range pgtest.Options() {
		if found, _ := fs.Glob(files, "migrations/00300_relay.sql"); len(found) == 0 {
			all = append(all, files)
		}
	}
	return all
}
