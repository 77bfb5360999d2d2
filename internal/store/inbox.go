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

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// Inbox remembers which events a consumer has had, and keeps the messages that it
// could not apply. It has no knowledge of what the events are about.
type Inbox struct {
	pool    *pgxpool.Pool
	queries *sqlcgen.Queries
	// quarantineBytes is how much the quarantine may have for a message to be kept whole.
	quarantineBytes int64
}

// NewInbox makes an inbox over a pool.
func NewInbox(pool *pgxpool.Pool) *Inbox {
	return &Inbox{pool: pool, queries: queriesOver(pool), quarantineBytes: QuarantineBytes}
}

// apply runs fn in one transaction that also records the ids of the events. fn
// gets the indices of those that the consumer has not had before, each id once,
// and returns the outcomes of these; the others are Duplicates. On an error
// nothing took effect.
func (b *Inbox) apply(ctx context.Context, consumerName string, ids []uuid.UUID,
	fn func(ctx context.Context, q *sqlcgen.Queries, fresh []int) ([]envelope.Outcome, error),
) ([]envelope.Outcome, error) {
	outcomes := slices.Repeat([]envelope.Outcome{envelope.Duplicate}, len(ids))
	err := inTx(ctx, b.pool, "store.Project", func(ctx context.Context, q *sqlcgen.Queries) error {
		recorded, err := q.InsertInbox(ctx, consumerName, ids)
		if err != nil {
			return fmt.Errorf("insert inbox: %w", err)
		}
		isNew := make(map[uuid.UUID]bool, len(recorded))
		for _, id := range recorded {
			isNew[id] = true
		}
		var fresh []int
		for i, id := range ids {
			if isNew[id] {
				isNew[id] = false // the same event a second time in one batch
				fresh = append(fresh, i)
			}
		}
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
		return nil, forConsumer(wrap(notTheEvents(err), "project %d events", len(ids)))
	}
	return outcomes, nil
}

// PruneInbox forgets events that happened and were received longer ago than olderThan
// by the clock of the database, at most maxRows of them, and returns how many. An
// event of that age that comes once more is then found out by its version only.
func (b *Inbox) PruneInbox(ctx context.Context, consumerName string, olderThan time.Duration, maxRows int) (int64, error) {
	n, err := b.queries.PruneInbox(ctx, consumerName, olderThan, limit(maxRows))
	return n, wrap(err, "prune inbox")
}

// notTheEvents makes an error of the database that no event can be blamed for,
// such as a missing privilege, table or extension, or a timeout, one
// of kind Unavailable: events wait until somebody has mended it. What is left
// is about the data: classes 22, 23 and 54, and errors raised by a function. A
// timeout of a statement, or of its wait for a lock, is a context.DeadlineExceeded
// as well, whoever was the first to lose patience.
func notTheEvents(err error) error {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && !slices.Contains([]string{"22", "23", "54", "P0"}, pgErr.Code[:2]) {
		return &domain.Error{Kind: domain.Unavailable, Message: "the database does not do its work", Err: tooLong(unprepared(err))}
	}
	return err
}

// forConsumer makes an error of kind Unavailable a envelope.ErrUnavailable, too.
func forConsumer(err error) error {
	if known, ok := errors.AsType[*domain.Error](err); ok && known.Kind == domain.Unavailable {
		return fmt.Errorf("%w: %w", envelope.ErrUnavailable, err)
	}
	return err
}
