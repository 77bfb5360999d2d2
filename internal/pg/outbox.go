package pg

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
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
		Caller: Optional(Escape(m.Caller)), CausationID: Optional(m.Cause.CausationID), CorrelationID: Optional(m.Cause.CorrelationID),
	}))
}

// ClaimEvents implements outbox.Store. The lease ends leaseFor from now, by the clock of the
// database.
//
// The token is random. A claim is committed asynchronously, so a crash or a failover may
// lose it, and the next claim must have another token.
func (o *Outbox) ClaimEvents(ctx context.Context, lane int16, maxEvents int, maxBytes int64, leaseFor time.Duration) (outbox.Claim, error) {
	claim := outbox.Claim{Token: 1 + rand.Int64N(math.MaxInt64)}
	first, last := lane, lane
	if lane == outbox.AnyLane {
		first, last = 0, outbox.Lanes-1
	}
	maxDeferred := (maxEvents + 1) / 2
	err := inTx(ctx, o.pool, "pg.ClaimEvents", func(ctx context.Context, tx *Tx, q *sqlcgen.Queries) error {
		tx.Queue(q.UseOutboxSettings(ctx, true))
		lease, err := q.LeaseLane(ctx, sqlcgen.LeaseLaneParams{Token: claim.Token, LeaseFor: leaseFor, FirstLane: first, LastLane: last})
		if err != nil {
			return err
		}
		claim.Lane = lease.Lane
		if lease.Due {
			tx.Queue(q.EndBlocks(ctx, lease.Lane))
			rows, err := q.ReadDeferred(ctx, lease.Lane, Limit(maxDeferred), maxBytes)
			if err != nil {
				return err
			}
			claim.Events = MapSlice(rows, claimedOf)
			for i := range claim.Events {
				claim.Events[i].Deferred = true
			}
		}
		rows, err := q.ReadPending(ctx, sqlcgen.ReadPendingParams{
			Lane: lease.Lane, FloorSeq: lease.FloorSeq, MaxEvents: Limit(maxEvents), MaxBytes: maxBytes,
		})
		for _, row := range rows {
			claim.Events = append(claim.Events, claimedOf(sqlcgen.ReadDeferredRow(row)))
		}
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return outbox.Claim{}, nil // no lane is free and has work
	}
	if err != nil {
		return outbox.Claim{}, Wrap(err, "claim events")
	}
	slices.SortFunc(claim.Events, func(a, b outbox.Claimed) int { return cmp.Compare(a.Seq, b.Seq) })
	outbox.Unblock(claim.Events, maxDeferred, maxBytes)
	return claim, nil
}

func claimedOf(row sqlcgen.ReadDeferredRow) outbox.Claimed {
	return outbox.Claimed{Seq: row.Seq, Attempts: int(row.Attempts), Blocked: row.Blocked, Message: envelope.Message{
		ID: row.ID, AggregateType: row.AggregateType, AggregateID: row.AggregateID, Type: row.EventType, Version: row.Version,
		SchemaVersion: row.SchemaVersion, Payload: row.Payload, OccurredAt: row.OccurredAt.UTC(), Traceparent: ValueOf[string](row.Traceparent), Repeat: row.Repeat,
		Cause: envelope.Cause{CausationID: ValueOf[uuid.UUID](row.CausationID), CorrelationID: ValueOf[uuid.UUID](row.CorrelationID)},
	}}
}

// SettleClaim implements outbox.Store.
func (o *Outbox) SettleClaim(ctx context.Context, s outbox.Settlement) (held bool, err error) {
	err = inTx(ctx, o.pool, "pg.SettleClaim", func(ctx context.Context, tx *Tx, q *sqlcgen.Queries) error {
		tx.Queue(q.UseOutboxSettings(ctx, true))
		gone, head, tail := slices.Concat(s.Published, s.Defer), int64(0), int64(0)
		if len(gone) > 0 {
			head, tail = slices.Min(gone), slices.Max(gone)
		}
		if held, err = q.ReleaseLane(ctx, tail, s.Lane, s.Token); err == nil {
			settle(ctx, tx, s, head, tail)
		}
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil // the lease was lost
	}
	if err != nil {
		return false, Wrap(err, "settle lane %d", s.Lane)
	}
	return held, nil
}

// settle writes the results of the events of a claim, after its lane is locked. All events
// are deferred before an aggregate is blocked or resumed. head and tail are the first and last
// Seq that leave the lane.
func settle(ctx context.Context, tx *Tx, s outbox.Settlement, head, tail int64) {
	q := sqlcgen.New(tx)
	if len(s.Published) > 0 {
		tx.Queue(q.DeletePublished(ctx, sqlcgen.DeletePublishedParams{Lane: s.Lane, HeadSeq: head, TailSeq: tail, Seqs: s.Published}))
	}
	if len(s.Defer) > 0 {
		tx.Queue(q.DeferEvents(ctx, sqlcgen.DeferEventsParams{Lane: s.Lane, HeadSeq: head, TailSeq: tail, Seqs: s.Defer}))
	}
	for _, f := range s.Refused {
		tx.Queue(q.BlockAggregate(ctx, sqlcgen.BlockAggregateParams{
			AggregateType: f.Type, AggregateID: f.ID, Seq: f.Seq, Attempts: Limit(f.Attempts), Park: f.RetryIn == 0, RetryIn: f.RetryIn,
			// The text of the broker. If PostgreSQL could not store it, the whole
			// settlement would fail, again and again.
			LastError: Escape(f.Error),
		}))
	}
	byName := func(a, b envelope.Aggregate) int { return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.ID, b.ID)) }
	for _, a := range slices.SortedFunc(maps.Keys(s.Resumed), byName) {
		tx.Queue(q.ResumeAggregate(ctx, a.Type, a.ID, s.Resumed[a]))
	}
}

// RaiseFloors lets claims begin behind deleted rows. Call it every few seconds: while a dump
// or another long query runs, PostgreSQL keeps deleted rows, and a claim would read them.
func (o *Outbox) RaiseFloors(ctx context.Context) error {
	err := inTx(ctx, o.pool, "pg.RaiseFloors", func(ctx context.Context, tx *Tx, q *sqlcgen.Queries) error {
		tx.Queue(q.UseOutboxSettings(ctx, true))
		tx.Queue(q.RaiseFloors(ctx))
		return nil
	})
	return Wrap(err, "raise floors")
}

// Maintain creates the partitions from yesterday until daysAhead days from now, and drops a few
// that are older than keep.
func (o *Outbox) Maintain(ctx context.Context, daysAhead int, keep time.Duration) error {
	return Wrap(o.queries.MaintainOutbox(ctx, Limit(daysAhead), keep), "maintain outbox")
}

// UseOutboxSettings makes PostgreSQL use indexes for the rest of a transaction that reads the
// outbox: the statistics of a queue are always wrong.
func UseOutboxSettings(ctx context.Context, tx *Tx) {
	tx.Queue(sqlcgen.New(tx).UseOutboxSettings(ctx, false))
}
