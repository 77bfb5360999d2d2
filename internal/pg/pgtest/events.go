package pgtest

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg/internal/sqlcgen"
)

// DB is a pool, a connection or a transaction.
type DB = sqlcgen.DBTX

// Append appends an event to the outbox like the service.
func Append(t testing.TB, to DB, m envelope.Message) {
	t.Helper()
	if err := TryAppend(t.Context(), to, m); err != nil {
		t.Fatalf("append version %d of %s: %v", m.Version, m.AggregateID, err)
	}
}

// TryAppend is Append for a caller that expects an error, or does not run in the
// goroutine of the test.
func TryAppend(ctx context.Context, to DB, m envelope.Message) error {
	payload := m.Payload
	if payload == nil {
		payload = []byte{} // the column is NOT NULL
	}
	return sqlcgen.New(to).AppendOutbox(ctx, sqlcgen.AppendOutboxParams{
		Lane: outbox.Lane(m.Aggregate()), ID: m.ID, AggregateType: m.AggregateType, AggregateID: m.AggregateID, EventType: m.Type, Version: m.Version, SchemaVersion: m.SchemaVersion,
		Payload: payload, OccurredAt: m.OccurredAt, Traceparent: &m.Traceparent,
	})
}

// Receive records an event in the inbox of a consumer like the service, and reports whether it
// is new there. Apply a new event in the same transaction.
func Receive(ctx context.Context, to DB, consumer string, event uuid.UUID) (isNew bool, err error) {
	recorded, err := sqlcgen.New(to).InsertInbox(ctx, consumer, []uuid.UUID{event})
	return len(recorded) == 1, err
}

// Settlement returns the settlement of a claim. It calls refuse, which stands for the broker,
// with each event that is sent.
func Settlement(claim outbox.Claim, refuse func(outbox.Claimed) bool) outbox.Settlement {
	s := outbox.Settlement{Lease: claim.Lease, Resumed: make(map[envelope.Aggregate]int64)}
	stopped := make(map[envelope.Aggregate]bool)
	for _, e := range claim.Events {
		_, resumed := s.Resumed[e.Aggregate()]
		isRefused := !e.Blocked && !stopped[e.Aggregate()] && refuse(e)
		switch {
		case e.Blocked, stopped[e.Aggregate()], isRefused:
			if !e.Deferred {
				s.Defer = append(s.Defer, e.Seq)
			}
			if isRefused && !resumed {
				s.Refused = append(s.Refused, outbox.Refusal{Aggregate: e.Aggregate(), Seq: e.Seq, Attempts: e.Attempts + 1, Error: "refused", RetryIn: time.Hour})
			}
			stopped[e.Aggregate()] = stopped[e.Aggregate()] || isRefused
		case !e.Deferred:
			s.Published = append(s.Published, e.Seq)
		default:
			s.Resumed[e.Aggregate()] = e.Seq
		}
	}
	return s
}
