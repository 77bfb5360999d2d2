package wal

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/options/wal/internal/sqlcgen"
)

// lookInterval is how often a claim looks for deferred events and snapshots, unless it has just found some.
const lookInterval = time.Second

// errFenced means that another process has become the reader, or that the mode has ended.
var errFenced = errors.New("this process is no longer the reader of the log")

// store implements outbox.Store in all modes. In mode wal a claim has either events that the reader has queued, or deferred events and
// snapshots of the tables. In a process without the slot it has nothing. In the other modes the store is the outbox.
type store struct {
	events  outbox.Store
	pool    *pgxpool.Pool
	queries *sqlcgen.Queries
	queue   *queue
	mode    atomic.Value // the mode, as the reader has last read it
}

func newStore(pool *pgxpool.Pool, events outbox.Store) *store {
	return &store{events: events, pool: pool, queries: sqlcgen.New(pg.Autocommit(pool)), queue: &queue{}}
}

// ClaimEvents implements outbox.Store.
//
// The mode may be old, as a process reads it at intervals. A switch to wal waits until nothing is pending, and one to lanes until the log
// is settled: so a claim of the tables never has an event that is behind one in the log.
func (s *store) ClaimEvents(ctx context.Context, limits outbox.Limits) (outbox.Claim, error) {
	if s.mode.Load() != wal {
		return s.events.ClaimEvents(ctx, limits)
	}
	if s.queue.isDue(time.Now()) {
		if claim, err := s.claimDeferred(ctx, limits); err != nil || claim.Token != 0 {
			return claim, err
		}
	}
	return s.queue.claim(limits, time.Now()), nil
}

// claimDeferred claims deferred events and snapshots. After a crash they wait for the lease of their lanes.
func (s *store) claimDeferred(ctx context.Context, limits outbox.Limits) (outbox.Claim, error) {
	now := time.Now() // before the claim, so that the lease of the queue ends first
	claim, err := s.events.ClaimEvents(ctx, limits)
	if err != nil {
		return outbox.Claim{}, err
	}
	busy := s.queue.lease(&claim, limits, now)
	if len(busy) > 0 {
		_, err = s.events.SettleClaim(ctx, outbox.Settlement{Lease: outbox.Lease{Token: claim.Token, Spans: busy}})
	}
	if len(claim.Spans) == 0 {
		return outbox.Claim{}, err
	}
	return claim, nil // an error leaves the other lanes leased
}

// SettleClaim implements outbox.Store. After a crash in it, events of the log come again, but not those that are deferred.
func (s *store) SettleClaim(ctx context.Context, settlement outbox.Settlement) (held bool, err error) {
	if settlement.Token > 0 {
		held, err := s.events.SettleClaim(ctx, settlement)
		if err != nil || s.mode.Load() != wal {
			return held, err
		}
		fence := s.queue.state().fence
		blocked, err := s.blocked(ctx, pg.MapSlice(settlement.Spans, func(s outbox.Span) int16 { return s.Lane }))
		if err == nil {
			s.queue.release(settlement.Lease, blocked, fence)
		}
		return held, err
	}
	if events, fence := s.queue.asides(settlement); len(events) > 0 {
		err := s.setAside(ctx, events, fence)
		if errors.Is(err, errFenced) {
			s.queue.forget() // the reader begins again
		}
		if err != nil { // if it took effect all the same, the events are deferred twice
			return false, err
		}
	}
	return s.queue.settle(settlement), nil
}

// blocked returns the blocked aggregates of some lanes.
func (s *store) blocked(ctx context.Context, lanes []int16) ([]envelope.Aggregate, error) {
	rows, err := s.queries.ListBlockedAggregates(ctx, lanes)
	return pg.MapSlice(rows, func(row sqlcgen.ListBlockedAggregatesRow) envelope.Aggregate {
		return envelope.Aggregate{Type: row.AggregateType, ID: row.AggregateID}
	}), pg.Wrap(err, "list blocked aggregates")
}

// setAside copies events to the deferred ones, and blocks their aggregates. Then they count as settled. The seqs are drawn in the order of the
// events, from the sequence of pending events: so they are above all that was pending before mode wal. They are below all that is pending
// after it, because an event that has drawn its seq before the switch draws another.
func (s *store) setAside(ctx context.Context, events []aside, fence int64) error {
	err := pg.InTx(ctx, s.pool, "wal.setAside", func(ctx context.Context, tx *pg.Tx) error {
		q := sqlcgen.New(tx)
		pg.UseOutboxSettings(ctx, tx)
		if _, err := q.HoldReader(ctx, fence); errors.Is(err, pgx.ErrNoRows) {
			return errFenced
		} else if err != nil {
			return err
		}
		tx.Queue(q.HoldLanes(ctx, pg.MapSlice(events, func(e aside) int16 { return outbox.Lane(e.Message.Aggregate()) })))
		for _, e := range events {
			m := e.Message
			tx.Queue(q.SetAside(ctx, sqlcgen.SetAsideParams{
				Lane: outbox.Lane(m.Aggregate()), ID: m.ID, AggregateType: m.AggregateType, AggregateID: m.AggregateID, EventType: m.Type,
				Version: m.Version, SchemaVersion: m.SchemaVersion, Payload: m.Payload, OccurredAt: m.OccurredAt,
				Traceparent: pg.Optional(m.Traceparent), CausationID: pg.Optional(m.Causation.CausationID), CorrelationID: pg.Optional(m.Causation.CorrelationID),
				Attempts: pg.Limit(e.Attempts), RetryIn: e.RetryIn, LastError: pg.Escape(e.Error),
			}))
		}
		return nil
	})
	return pg.Wrap(err, "defer %d events of the log", len(events))
}
