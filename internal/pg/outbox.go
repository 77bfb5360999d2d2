package pg

import (
	"cmp"
	"context"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg/internal/sqlcgen"
)

// Outbox is the outbox of the command side: every event of the last days, and a pending copy
// of each that is not known to be published. It implements outbox.Store.
type Outbox struct {
	pool    *pgxpool.Pool
	queries *sqlcgen.Queries
}

// NewOutbox makes the outbox over a pool.
func NewOutbox(pool *pgxpool.Pool) *Outbox {
	return &Outbox{pool: pool, queries: sqlcgen.New(Autocommit(pool))}
}

// AppendEvent appends an event to the outbox, in the transaction that changes its
// aggregate. The aggregate must be locked: see AppendOutbox. The event has the trace of ctx.
func AppendEvent(ctx context.Context, tx *Tx, m envelope.Message) {
	tx.Queue(sqlcgen.New(tx).AppendOutbox(ctx, sqlcgen.AppendOutboxParams{
		Lane: outbox.Lane(m.Aggregate()), ID: m.ID, AggregateType: m.AggregateType, AggregateID: m.AggregateID,
		EventType: m.Type, Version: m.Version, SchemaVersion: m.SchemaVersion,
		Payload: m.Payload, OccurredAt: m.OccurredAt, Traceparent: Optional(envelope.Traceparent(ctx)),
		Caller: Optional(Escape(m.Caller)), CausationID: Optional(m.Causation.CausationID), CorrelationID: Optional(m.Causation.CorrelationID),
	}))
}

// ClaimEvents implements outbox.Store. The lease ends by the clock of the database.
//
// The token is random. A claim is committed asynchronously, so a crash or a failover may
// lose it, and the next claim must have another token.
func (o *Outbox) ClaimEvents(ctx context.Context, limits outbox.Limits) (claim outbox.Claim, err error) {
	token := 1 + rand.Int64N(math.MaxInt64)
	err = inTx(ctx, o.pool, "pg.ClaimEvents", func(ctx context.Context, tx *Tx, q *sqlcgen.Queries) error {
		tx.Queue(q.UseOutboxSettings(ctx, async))
		leased, err := q.LeaseLanes(ctx, token, limits.Lease, Limit(limits.Lanes))
		if err != nil || len(leased) == 0 {
			return err
		}
		share := limits.Share(len(leased))
		var due []int16
		var pending []sqlcgen.ReadPendingParams
		var overdue []sqlcgen.ReadDeferredParams
		for _, l := range leased {
			pending = append(pending, sqlcgen.ReadPendingParams{Lane: l.Lane, FloorSeq: l.FloorSeq, MaxEvents: Limit(share.Events), MaxBytes: share.Bytes})
			if l.Due {
				due = append(due, l.Lane)
				overdue = append(overdue, sqlcgen.ReadDeferredParams{
					Lane: l.Lane, MaxAggregates: Limit(max(1, maxDue/len(leased))), MaxEvents: Limit(share.Deferred()), MaxBytes: share.Bytes,
				})
			}
		}
		deferred := make(map[int16][]outbox.Claimed)
		if len(due) > 0 {
			tx.Queue(q.EndBlocks(ctx, due))
			q.ReadDeferred(ctx, overdue).Query(func(i int, rows []sqlcgen.ReadDeferredRow, rowsErr error) {
				for _, row := range rows { // they have the columns of pending events
					deferred[due[i]] = append(deferred[due[i]], claimedOf(sqlcgen.ReadPendingRow(row)))
				}
				err = cmp.Or(err, rowsErr)
			})
		}
		claim.Token = token
		q.ReadPending(ctx, pending).Query(func(i int, rows []sqlcgen.ReadPendingRow, rowsErr error) {
			lane := leased[i].Lane
			claim.Add(lane, deferred[lane], MapSlice(rows, claimedOf), share)
			err = cmp.Or(err, rowsErr)
		})
		return err
	})
	if err != nil {
		return outbox.Claim{}, Wrap(err, "claim events")
	}
	return claim, nil
}

// async, for UseOutboxSettings: the commit does not wait for the disk.
const async = true

// maxDue is the most blocked aggregates that a claim tries again.
const maxDue = 100

func claimedOf(row sqlcgen.ReadPendingRow) outbox.Claimed {
	return outbox.Claimed{Seq: row.Seq, Attempts: int(row.Attempts), Blocked: row.Blocked, Message: envelope.Message{
		ID: row.ID, AggregateType: row.AggregateType, AggregateID: row.AggregateID, Type: row.EventType, Version: row.Version,
		SchemaVersion: row.SchemaVersion, Payload: row.Payload, OccurredAt: row.OccurredAt.UTC(), Traceparent: ValueOf[string](row.Traceparent), Repeat: row.Repeat,
		Causation: envelope.Causation{CausationID: ValueOf[uuid.UUID](row.CausationID), CorrelationID: ValueOf[uuid.UUID](row.CorrelationID)},
	}}
}

// SettleClaim implements outbox.Store.
func (o *Outbox) SettleClaim(ctx context.Context, s outbox.Settlement) (held bool, err error) {
	// In the order of lanes, so that two settlements cannot deadlock.
	slices.SortFunc(s.Spans, func(a, b outbox.Span) int { return cmp.Compare(a.Lane, b.Lane) })
	lanes := MapSlice(s.Spans, func(s outbox.Span) int16 { return s.Lane })
	tails := MapSlice(s.Spans, func(s outbox.Span) int64 { return s.Tail })
	err = inTx(ctx, o.pool, "pg.SettleClaim", func(ctx context.Context, tx *Tx, q *sqlcgen.Queries) error {
		tx.Queue(q.UseOutboxSettings(ctx, async))
		released, err := q.ReleaseLanes(ctx, s.Token, lanes, tails)
		if err != nil {
			return err
		}
		held = len(released) == len(lanes)
		settle(ctx, tx, s, released)
		return nil
	})
	if err != nil {
		return false, Wrap(err, "settle %d lanes", len(s.Spans))
	}
	return held, nil
}

// settle writes the results of the events of the held lanes of a claim, after these are locked. All events
// are deferred before an aggregate is blocked or resumed.
func settle(ctx context.Context, tx *Tx, s outbox.Settlement, held []int16) {
	q := sqlcgen.New(tx)
	for _, span := range s.Spans {
		if span.Tail == 0 || !slices.Contains(held, span.Lane) {
			continue
		}
		// Of each list, a statement takes the events that are in its lane.
		if len(s.Published) > 0 {
			tx.Queue(q.DeletePublished(ctx, sqlcgen.DeletePublishedParams{Lane: span.Lane, Head: span.Head, Tail: span.Tail, Seqs: s.Published}))
		}
		if len(s.Defer) > 0 {
			tx.Queue(q.DeferEvents(ctx, sqlcgen.DeferEventsParams{Lane: span.Lane, Head: span.Head, Tail: span.Tail, Seqs: s.Defer}))
		}
	}
	steps := make(map[envelope.Aggregate]func() error) // no aggregate is in both
	for a, seq := range s.Resumed {
		steps[a] = func() error { return q.ResumeAggregate(ctx, a.Type, a.ID, seq) }
	}
	for _, f := range s.Refused {
		steps[f.Aggregate] = func() error {
			return q.BlockAggregate(ctx, sqlcgen.BlockAggregateParams{
				AggregateType: f.Type, AggregateID: f.ID, Seq: f.Seq, Attempts: Limit(f.Attempts), Park: f.RetryIn == 0, RetryIn: f.RetryIn,
				// The text of the broker. If PostgreSQL could not store it, the whole
				// settlement would fail, again and again.
				LastError: Escape(f.Error),
			})
		}
	}
	// In the order of their names, as operators lock them.
	byName := func(a, b envelope.Aggregate) int { return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.ID, b.ID)) }
	for _, a := range slices.SortedFunc(maps.Keys(steps), byName) {
		if slices.Contains(held, outbox.Lane(a)) {
			tx.Queue(steps[a]())
		}
	}
}

// RaiseFloors lets claims begin behind deleted rows. Call it every few seconds: while a dump
// or another long query runs, PostgreSQL keeps deleted rows, and a claim would read them.
func (o *Outbox) RaiseFloors(ctx context.Context) error {
	err := inTx(ctx, o.pool, "pg.RaiseFloors", func(ctx context.Context, tx *Tx, q *sqlcgen.Queries) error {
		tx.Queue(q.UseOutboxSettings(ctx, async))
		tx.Queue(q.RaiseFloors(ctx))
		return nil
	})
	return Wrap(err, "raise floors")
}

// Maintain creates the partitions from yesterday until daysAhead days from now, and drops a few
// that were older than keep when the newest event happened: a clock that is ahead must not delete.
func (o *Outbox) Maintain(ctx context.Context, daysAhead int, keep time.Duration) error {
	age, err := o.queries.NewestEventAge(ctx)
	if err != nil {
		return Wrap(err, "maintain outbox")
	}
	keep += age
	return Wrap(o.queries.MaintainOutbox(ctx, Limit(daysAhead), keep), "maintain outbox")
}

// UseOutboxSettings makes PostgreSQL use indexes for the rest of a transaction that reads the
// outbox: the statistics of a queue are always wrong.
func UseOutboxSettings(ctx context.Context, tx *Tx) {
	tx.Queue(sqlcgen.New(tx).UseOutboxSettings(ctx, !async))
}
