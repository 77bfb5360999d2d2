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
// all events: those that the consumer has recorded before are Duplicates. On an error nothing took effect. The read
// needs no lock: if another projector has just written a row, only the outcome is wrong, which is counted. Rows are
// written in the order of their ids: two batches cannot deadlock.
func Project[E any](ctx context.Context, inbox *Inbox, consumerName string, events []E, to Projection[E]) ([]envelope.Outcome, error) {
	ids := MapSlice(events, func(e E) uuid.UUID { return to.Row(e).Event })
	outcomes := slices.Repeat([]envelope.Outcome{envelope.Duplicate}, len(ids))
	err := inTx(ctx, inbox.pool, "pg.Project", func(ctx context.Context, tx *Tx, q *sqlcgen.Queries) error {
		recorded, err := q.InsertInbox(ctx, consumerName, ids)
		if err != nil {
			return fmt.Errorf("insert inbox: %w", err)
		}
		fresh := freshOf(ids, recorded)
		if len(fresh) == 0 {
			return nil
		}
		rows, err := to.Read(ctx, tx, MapSlice(fresh, func(i int) uuid.UUID { return to.Row(events[i]).Aggregate }))
		if err != nil {
			return err
		}
		states, newest := make(map[uuid.UUID]consumer.Row), make(map[uuid.UUID]E)
		for _, row := range rows {
			states[row.Aggregate] = row
		}
		for _, i := range fresh {
			event, newer := to.Row(events[i]), false
			if outcomes[i], newer = consumer.EffectOf(states[event.Aggregate], event); newer {
				states[event.Aggregate], newest[event.Aggregate] = event, events[i]
			}
		}
		byID := func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }
		for _, id := range slices.SortedFunc(maps.Keys(newest), byID) {
			if err := to.Write(ctx, tx, newest[id]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, WrapEvents(err, "project %d events", len(ids))
	}
	return outcomes, nil
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
