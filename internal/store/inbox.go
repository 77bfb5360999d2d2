package store

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// Inbox remembers which events a consumer has applied. Its methods in quarantine.go
// keep the messages that the consumer could not apply. It does not know what the events are about.
type Inbox struct {
	pool    *pgxpool.Pool
	queries *sqlcgen.Queries
}

// NewInbox makes an inbox over a pool.
func NewInbox(pool *pgxpool.Pool) *Inbox {
	return &Inbox{pool: pool, queries: sqlcgen.New(Over(pool))}
}

// apply runs fn in one transaction that also records the ids of the events. fn gets the
// indices of the events that are new to the consumer, each id once, and returns their
// outcomes: the n-th outcome is of the n-th index. The other events are Duplicates. On an error nothing took effect.
func (b *Inbox) apply(ctx context.Context, consumerName string, ids []uuid.UUID,
	fn func(ctx context.Context, q *sqlcgen.Queries, fresh []int) ([]envelope.Outcome, error),
) ([]envelope.Outcome, error) {
	outcomes := slices.Repeat([]envelope.Outcome{envelope.Duplicate}, len(ids))
	err := inTx(ctx, b.pool, "store.Project", func(ctx context.Context, q *sqlcgen.Queries) error {
		recorded, err := q.InsertInbox(ctx, consumerName, ids)
		if err != nil {
			return fmt.Errorf("insert inbox: %w", err)
		}
		fresh := freshOf(ids, recorded)
		applied, err := fn(ctx, q, fresh)
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

// projected identifies a row of a projection, and the event and version that wrote it.
type projected struct {
	aggregate, event uuid.UUID // event is zero if a repair wrote the row
	version          int64
	purged           bool // a purge erases events that are not published yet
}

// projectRows applies the events that are new to a consumer in one transaction. read returns the
// rows that exist. write queues a statement that writes the row of an event, if the event is newer.
// So the read needs no lock: if another projector has just written a row, only the outcome is
// wrong, which is counted. Rows are written in the order of their ids: two batches cannot deadlock.
func projectRows[E any](ctx context.Context, inbox *Inbox, consumerName string, events []E, of func(E) projected,
	read func(ctx context.Context, q *sqlcgen.Queries, aggregates []uuid.UUID) ([]projected, error),
	write func(ctx context.Context, q *sqlcgen.Queries, event E) error,
) ([]envelope.Outcome, error) {
	ids := mapSlice(events, func(e E) uuid.UUID { return of(e).event })
	return inbox.apply(ctx, consumerName, ids, func(ctx context.Context, q *sqlcgen.Queries, fresh []int) ([]envelope.Outcome, error) {
		if len(fresh) == 0 {
			return nil, nil
		}
		rows, err := read(ctx, q, mapSlice(fresh, func(i int) uuid.UUID { return of(events[i]).aggregate }))
		if err != nil {
			return nil, err
		}
		states := make(map[uuid.UUID]projected)
		for _, row := range rows {
			states[row.aggregate] = row
		}
		newest := make(map[uuid.UUID]E)
		outcomes := mapSlice(fresh, func(i int) envelope.Outcome {
			event := of(events[i])
			outcome, newer := effectOf(states[event.aggregate], event)
			if newer {
				states[event.aggregate], newest[event.aggregate] = event, events[i]
			}
			return outcome
		})
		byID := func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }
		for _, id := range slices.SortedFunc(maps.Keys(newest), byID) {
			if err := write(ctx, q, newest[id]); err != nil {
				return nil, err
			}
		}
		return outcomes, nil
	})
}

// effectOf returns the effect of an event on a row, and whether it is newer. Only a newer event
// changes the row. Two events with one version are a conflict: the owner lost a transaction in a
// failover after its event was published. The greater id wins, in any order of arrival. A
// snapshot stands for all events until its version: it leaves no gap, and is never a conflict.
func effectOf(before, event projected) (outcome envelope.Outcome, newer bool) {
	switch {
	case event.version > before.version+1 && !event.purged && !domain.IsSnapshot(event.event):
		return envelope.AppliedAfterGap, true
	case event.version > before.version:
		return envelope.Applied, true
	case event.version < before.version, before.event == uuid.Nil, event.event == before.event,
		domain.IsSnapshot(event.event), domain.IsSnapshot(before.event):
		return envelope.Stale, false
	default:
		return envelope.Conflict, bytes.Compare(event.event[:], before.event[:]) > 0
	}
}

// LastApplied returns when a consumer has applied the newest of its events; zero if it has none.
func (b *Inbox) LastApplied(ctx context.Context, consumerName string) (time.Time, error) {
	at, err := b.queries.LastInbox(ctx, consumerName)
	return notEpoch(at), Wrap(err, "read the inbox of %s", consumerName)
}

// PruneInbox deletes the ids of events that happened and were received longer ago than
// olderThan, by the clock of the database. It deletes at most maxRows and returns how many. If
// such an event comes again, only its version shows that it is not new.
func (b *Inbox) PruneInbox(ctx context.Context, consumerName string, olderThan time.Duration, maxRows int) (int64, error) {
	n, err := b.queries.PruneInbox(ctx, consumerName, olderThan, limit(maxRows))
	return n, Wrap(err, "prune inbox")
}
