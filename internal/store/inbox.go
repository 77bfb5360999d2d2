package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// Inbox remembers which events a consumer has received, and keeps the messages that it
// could not apply. It does not know what the events are about.
type Inbox struct {
	pool    *pgxpool.Pool
	queries *sqlcgen.Queries
}

// NewInbox makes an inbox over a pool.
func NewInbox(pool *pgxpool.Pool) *Inbox {
	return &Inbox{pool: pool, queries: queriesOver(pool)}
}

// apply runs fn in one transaction that also records the ids of the events. fn gets the
// indices of the events that are new to the consumer, each id once, and returns their
// outcomes: outcome n belongs to index n. The other events are Duplicates. On an error nothing took effect.
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

// LastApplied returns when a consumer has applied the newest of its events; zero if it has none.
func (b *Inbox) LastApplied(ctx context.Context, consumerName string) (time.Time, error) {
	at, err := b.queries.LastInbox(ctx, consumerName)
	return notEpoch(at), wrap(err, "read the inbox of %s", consumerName)
}

// PruneInbox deletes the ids of events that happened and were received longer ago than
// olderThan, by the clock of the database. It deletes at most maxRows and returns how many. If
// such an event comes again, only its version shows that it is not new.
func (b *Inbox) PruneInbox(ctx context.Context, consumerName string, olderThan time.Duration, maxRows int) (int64, error) {
	n, err := b.queries.PruneInbox(ctx, consumerName, olderThan, limit(maxRows))
	return n, wrap(err, "prune inbox")
}

// WrapEvents is [Wrap] for a transaction about events, which come again after an
// [envelope.ErrUnavailable]: that is each error that no event can have caused.
func WrapEvents(err error, format string, args ...any) error {
	return forConsumer(wrap(notTheEvents(err), format, args...))
}

// notTheEvents changes errors that no event can have caused to kind Unavailable, for
// example a missing privilege, table or extension, or a timeout. The events then wait until
// the database is repaired. Errors of the classes 22, 23 and 54, and those raised by a
// function, are about the data and stay as they are. A timeout of a statement, or of its
// wait for a lock, also becomes a context.DeadlineExceeded, as when our own deadline ends
// it.
func notTheEvents(err error) error {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && !slices.Contains([]string{"22", "23", "54", "P0"}, pgErr.Code[:2]) {
		return &problem.Error{Kind: problem.Unavailable, Message: "the database is not working", Err: tooLong(unprepared(err))}
	}
	return err
}

// forConsumer makes an error of kind Unavailable an envelope.ErrUnavailable as well.
func forConsumer(err error) error {
	if known, ok := errors.AsType[*problem.Error](err); ok && known.Kind == problem.Unavailable {
		return fmt.Errorf("%w: %w", envelope.ErrUnavailable, err)
	}
	return err
}
