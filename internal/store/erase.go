package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// erase erases the pending events of an aggregate, and appends the purge to the audit. It queues the
// erasure of the aggregate's other data on the command side, which an Eraser does. It runs in the
// transaction that purges the aggregate, after its row is locked and before the event of
// the purge is appended. A publisher that has claimed those events may still publish them.
// The publisher keeps its lane until it settles, so the event of the purge is sent after them. A
// transaction purges one aggregate: two lanes that it locks in another order could be a deadlock.
func erase(ctx context.Context, tx *pg.Tx, purge envelope.Message) error {
	pg.UseOutboxSettings(ctx, tx)
	q, aggregate := sqlcgen.New(tx), purge.Aggregate()
	lane := outbox.Lane(aggregate)
	floor, err := q.LockOutboxLane(ctx, lane)
	if err != nil {
		return fmt.Errorf("lock lane: %w", err)
	}
	tx.Queue(q.ErasePending(ctx, sqlcgen.ErasePendingParams{
		AggregateType: aggregate.Type, AggregateID: aggregate.ID, Lane: lane, FloorSeq: floor,
	}))
	tx.Queue(q.InsertErasure(ctx, sqlcgen.InsertErasureParams{
		EventID: purge.ID, Caller: pg.Escape(purge.Caller), AggregateType: aggregate.Type, AggregateID: aggregate.ID,
	}))
	return nil
}

// Eraser erases the events and the requests of the purged aggregates that are queued. The
// tables have no index by aggregate, so it reads all of their rows, a few at a time, in a round
// for many aggregates. Its position is only in memory: after a crash a new Eraser begins again.
// Several Erasers may run at the same time. One Eraser is not safe for concurrent use.
type Eraser struct {
	queries *sqlcgen.Queries
	queued  []int64   // the erasures of this round; empty: none
	event   uuid.UUID // the last event that was read
	request time.Time // when the last request that was read was made
}

// NewEraser makes an eraser of the command side of a pool.
func NewEraser(pool *pgxpool.Pool) *Eraser { return &Eraser{queries: sqlcgen.New(pg.Autocommit(pool))} }

// erasuresAtOnce is the largest number of aggregates of one round.
const erasuresAtOnce = 1000

// Erase reads the next maxRows events and requests, and erases what belongs to purged aggregates. It
// reports whether to call it again. Each of its statements is one transaction. After an error the
// next call continues at the same position.
func (e *Eraser) Erase(ctx context.Context, maxRows int) (more bool, err error) {
	if len(e.queued) == 0 {
		// Erasures that are queued later wait for the next round, because this round may
		// already have read their events.
		if e.queued, err = e.queries.ListErasures(ctx, erasuresAtOnce); err != nil || len(e.queued) == 0 {
			return false, pg.Wrap(err, "list erasures")
		}
	}
	event, err := e.queries.EraseOutbox(ctx, e.queued, e.event, pg.Limit(maxRows))
	if err != nil {
		return false, pg.Wrap(err, "erase events after %s", e.event)
	}
	if event != uuid.Nil {
		e.event = event
	}
	request, err := e.queries.EraseRequests(ctx, e.request, pg.Limit(maxRows), e.queued)
	if err != nil {
		return false, pg.Wrap(err, "erase requests after %s", e.request)
	}
	if request.Unix() != 0 { // the epoch means none
		e.request = request
	}
	if event != uuid.Nil || request.Unix() != 0 {
		return true, nil
	}
	if err := e.queries.DeleteErasures(ctx, e.queued); err != nil {
		return false, pg.Wrap(err, "delete %d erasures", len(e.queued))
	}
	*e = Eraser{queries: e.queries}
	return true, nil
}

// PruneTombstones deletes what is left of aggregates that were purged longer ago than
// olderThan, and at least 30 days ago, by the clock of the database. It deletes at most
// maxRows and returns how many. Afterwards the service does not know such an aggregate.
func (e *Eraser) PruneTombstones(ctx context.Context, olderThan time.Duration, maxRows int) (int64, error) {
	n, err := e.queries.PruneTombstones(ctx, olderThan, pg.Limit(maxRows))
	return n, pg.Wrap(err, "prune tombstones")
}
