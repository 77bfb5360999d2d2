package pg

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg/internal/sqlcgen"
)

// Inbox remembers which events a consumer has applied. Its methods in quarantine.go
// keep the messages that the consumer could not apply. It does not know what the events are about.
type Inbox struct {
	pool    *pgxpool.Pool
	queries *sqlcgen.Queries
}

// NewInbox makes an inbox over a pool.
func NewInbox(pool *pgxpool.Pool) *Inbox {
	return &Inbox{pool: pool, queries: sqlcgen.New(Autocommit(pool))}
}

// apply runs fn in one transaction that also records the ids of the events. fn gets the
// indices of the events that are new to the consumer, each id once, and returns their
// outcomes: the n-th outcome is of the n-th index. The other events are Duplicates. On an error nothing took effect.
func (b *Inbox) apply(ctx context.Context, consumerName string, ids []uuid.UUID,
	fn func(ctx context.Context, tx *Tx, fresh []int) ([]envelope.Outcome, error),
) ([]envelope.Outcome, error) {
	outcomes := slices.Repeat([]envelope.Outcome{envelope.Duplicate}, len(ids))
	err := inTx(ctx, b.pool, "pg.Project", func(ctx context.Context, tx *Tx, q *sqlcgen.Queries) error {
		recorded, err := q.InsertInbox(ctx, consumerName, ids)
		if err != nil {
			return fmt.Errorf("insert inbox: %w", err)
		}
		fresh := freshOf(ids, recorded)
		applied, err := fn(ctx, tx, fresh)
		if err != nil {
			return err
		}
		for n, i := range fresh {
			outcomes[i] = applied[n]
		}
		return nil
	})
	if err != nil {
		return nil, WrapEvents(err, "project %d events", len(ids))
	}
	return outcomes, nil
}

// freshOf returns the indices of the ids that were recorded as new, each id once: the same
// event a second time in one batch is a duplicate.
func freshOf(ids, recorded []uuid.UUID) (fresh []int) {
	isNew := make(map[uuid.UUID]bool, len(recorded))
	for _, id := range recorded {
		isNew[id] = true
	}
	for i, id := range ids {
		if isNew[id] {
			isNew[id] = false
			fresh = append(fresh, i)
		}
	}
	return fresh
}

// Projection reads and writes the rows of one projection, whose events are of type E. See [Project].
type Projection[E any] interface {
	// Row returns the row that an event writes.
	Row(event E) consumer.Row
	// Read returns the rows of some aggregates that exist.
	Read(ctx context.Context, tx *Tx, aggregates []uuid.UUID) ([]consumer.Row, error)
	// Write queues a statement that writes the row of an event, if the event is newer.
	Write(ctx context.Context, tx *Tx, event E) error
}

// Project applies the events that are new to a consumer in one transaction, and returns the outcomes of
// all events. The read needs no lock: if another projector has just written a row, only the outcome is
// wrong, which is counted. Rows are written in the order of their ids: two batches cannot deadlock.
func Project[E any](ctx context.Context, inbox *Inbox, consumerName string, events []E, to Projection[E]) ([]envelope.Outcome, error) {
	ids := MapSlice(events, func(e E) uuid.UUID { return to.Row(e).Event })
	return inbox.apply(ctx, consumerName, ids, func(ctx context.Context, tx *Tx, fresh []int) ([]envelope.Outcome, error) {
		if len(fresh) == 0 {
			return nil, nil
		}
		rows, err := to.Read(ctx, tx, MapSlice(fresh, func(i int) uuid.UUID { return to.Row(events[i]).Aggregate }))
		if err != nil {
			return nil, err
		}
		states := make(map[uuid.UUID]consumer.Row)
		for _, row := range rows {
			states[row.Aggregate] = row
		}
		newest := make(map[uuid.UUID]E)
		outcomes := MapSlice(fresh, func(i int) envelope.Outcome {
			event := to.Row(events[i])
			outcome, newer := consumer.EffectOf(states[event.Aggregate], event)
			if newer {
				states[event.Aggregate], newest[event.Aggregate] = event, events[i]
			}
			return outcome
		})
		byID := func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }
		for _, id := range slices.SortedFunc(maps.Keys(newest), byID) {
			if err := to.Write(ctx, tx, newest[id]); err != nil {
				return nil, err
			}
		}
		return outcomes, nil
	})
}

// LastApplied returns the time at which a consumer applied its newest event; zero if it has none.
func (b *Inbox) LastApplied(ctx context.Context, consumerName string) (time.Time, error) {
	at, err := b.queries.LastInbox(ctx, consumerName)
	return notEpoch(at), Wrap(err, "read the inbox of %s", consumerName)
}

// PruneInbox deletes the ids of events that happened and were received longer ago than
// olderThan, by the clock of the database. It deletes at most maxRows and returns how many. If
// such an event comes again, only its version shows that it is not new.
func (b *Inbox) PruneInbox(ctx context.Context, consumerName string, olderThan time.Duration, maxRows int) (int64, error) {
	n, err := b.queries.PruneInbox(ctx, consumerName, olderThan, Limit(maxRows))
	return n, Wrap(err, "prune inbox")
}
