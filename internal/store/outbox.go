package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// Outbox is the outbox of the command side. It holds the committed events that are not
// known to be published. It implements outbox.Store.
type Outbox struct {
	pool    *pgxpool.Pool
	queries *sqlcgen.Queries
}

// NewOutbox makes the outbox over a pool.
func NewOutbox(pool *pgxpool.Pool) *Outbox {
	return &Outbox{pool: pool, queries: queriesOver(pool)}
}

// appendEvent appends an event to the outbox, in the transaction that changes its
// aggregate. It must come last in that transaction, after the row of the aggregate is
// inserted or locked: events are published in the order in which they were appended. The event
// has the trace of ctx.
func appendEvent(ctx context.Context, q *sqlcgen.Queries, m envelope.Message) {
	Queue(q.AppendOutbox(ctx, sqlcgen.AppendOutboxParams{
		Lane: outbox.Lane(m.Aggregate()), ID: m.ID, AggregateType: m.AggregateType, AggregateID: m.AggregateID,
		EventType: m.Type, Version: m.Version, SchemaVersion: m.SchemaVersion,
		Payload: m.Payload, OccurredAt: m.OccurredAt, Traceparent: optional(envelope.Traceparent(ctx)),
		Caller: optional(escape(m.Caller)), CausationID: optional(m.Cause.CausationID), CorrelationID: optional(m.Cause.CorrelationID),
	}))
}

// UseOutboxIndexes sets the planner for the rest of a transaction that reads the outbox: the
// statistics of a queue are always wrong.
func UseOutboxIndexes(ctx context.Context, tx Tx) { Queue(sqlcgen.New(tx).UseOutboxIndexes(ctx)) }

// Maintain creates the partitions of the next daysAhead days and drops those older than
// keep. It returns how many it created and dropped.
func (o *Outbox) Maintain(ctx context.Context, daysAhead int, keep time.Duration) (created, dropped int, err error) {
	row, err := o.queries.MaintainOutbox(ctx, limit(daysAhead), keep)
	return int(row.Created), int(row.Dropped), wrap(err, "maintain outbox")
}

// RaiseFloors lets claims begin behind the rows that are deleted. Call it every few seconds:
// while a dump or a long transaction runs, PostgreSQL keeps those rows.
func (o *Outbox) RaiseFloors(ctx context.Context) error {
	err := inTx(ctx, o.pool, "store.RaiseFloors", func(ctx context.Context, q *sqlcgen.Queries) error {
		Queue(q.UseOutboxIndexes(ctx))
		Queue(q.CommitOutboxAsync(ctx))
		Queue(q.RaiseFloors(ctx))
		return nil
	})
	return wrap(err, "raise floors")
}

// Backlog describes the pending events of the outbox.
type Backlog struct {
	// Oldest is when the oldest event in a lane happened; zero if there is none. An event
	// of a blocked aggregate is in its lane until a pass defers it. Events that are
	// published again do not count, here and in OldestBlocked.
	Oldest time.Time
	// OldestBlocked is when the oldest event that blocks an aggregate happened; zero if
	// none is blocked.
	OldestBlocked time.Time
	// Pending is the number of pending and deferred events, counted up to the limit.
	Pending int64
	// Blocked is the number of blocked aggregates, and Parked how many of them are parked.
	// Both are counted up to the limit.
	Blocked, Parked int64
}

// Measure returns the backlog. It counts up to maxCounted rows of each kind.
func (o *Outbox) Measure(ctx context.Context, maxCounted int) (Backlog, error) {
	var row sqlcgen.MeasureOutboxRow
	err := inTx(ctx, o.pool, "store.Measure", func(ctx context.Context, q *sqlcgen.Queries) (err error) {
		Queue(q.UseOutboxIndexes(ctx))
		row, err = q.MeasureOutbox(ctx, limit(maxCounted))
		return err
	})
	if err != nil {
		return Backlog{}, wrap(err, "measure outbox")
	}
	return Backlog{
		Oldest: notEpoch(row.Oldest), OldestBlocked: notEpoch(row.OldestBlocked),
		Pending: row.Pending, Blocked: row.Blocked, Parked: row.Parked,
	}, nil
}
