package store

import (
	"cmp"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// ClaimEvents implements outbox.Store. The lease lasts until leaseFor from now by the clock
// of the database.
//
// The token is random. A claim is committed asynchronously, so a crash or a failover may
// forget it, and the next claim must have another token.
func (o *Outbox) ClaimEvents(ctx context.Context, lane int16, maxEvents int, maxBytes int64, leaseFor time.Duration) (outbox.Claim, error) {
	claim := outbox.Claim{Token: 1 + rand.Int64N(math.MaxInt64)}
	first, last := lane, lane
	if lane == outbox.AnyLane {
		first, last = 0, outbox.Lanes-1
	}
	maxDeferred := (maxEvents + 1) / 2
	err := inTx(ctx, o.pool, "store.ClaimEvents", func(ctx context.Context, q *sqlcgen.Queries) error {
		Queue(q.UseOutboxIndexes(ctx))
		Queue(q.CommitOutboxAsync(ctx))
		lease, err := q.LeaseLane(ctx, sqlcgen.LeaseLaneParams{Token: claim.Token, LeaseFor: leaseFor, FirstLane: first, LastLane: last})
		if err != nil {
			return err
		}
		claim.Lane = lease.Lane
		if lease.Due {
			Queue(q.EndBlocks(ctx, lease.Lane))
			rows, err := q.ReadDeferred(ctx, lease.Lane, limit(maxDeferred), maxBytes)
			if err != nil {
				return err
			}
			claim.Events = mapSlice(rows, claimedOf)
			for i := range claim.Events {
				claim.Events[i].Deferred = true
			}
		}
		rows, err := q.ReadPending(ctx, sqlcgen.ReadPendingParams{
			Lane: lease.Lane, FloorSeq: lease.FloorSeq, MaxEvents: limit(maxEvents), MaxBytes: maxBytes,
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
		return outbox.Claim{}, wrap(err, "claim events")
	}
	slices.SortFunc(claim.Events, func(a, b outbox.Claimed) int { return cmp.Compare(a.Seq, b.Seq) })
	unblock(claim.Events, maxDeferred, maxBytes)
	return claim, nil
}

func claimedOf(row sqlcgen.ReadDeferredRow) outbox.Claimed {
	return outbox.Claimed{Seq: row.Seq, Attempts: int(row.Attempts), Blocked: row.Blocked, Message: envelope.Message{
		ID: row.ID, AggregateType: row.AggregateType, AggregateID: row.AggregateID, Type: row.EventType, Version: row.Version,
		SchemaVersion: row.SchemaVersion, Payload: row.Payload, OccurredAt: row.OccurredAt.UTC(), Traceparent: valueOf[string](row.Traceparent), Repeat: row.Repeat,
		Cause: envelope.Cause{CausationID: valueOf[uuid.UUID](row.CausationID), CorrelationID: valueOf[uuid.UUID](row.CorrelationID)},
	}}
}

// unblock lets pending events follow the deferred events of their aggregate, if the claim
// has all of those. Otherwise an aggregate that gets new events all the time would stay
// blocked. The claim may lack some of them if it is full. It always lacks some for an
// aggregate with attempts, of which it has one event.
func unblock(events []outbox.Claimed, maxDeferred int, maxBytes int64) {
	whole := make(map[envelope.Aggregate]bool)
	rows, bytes := 0, int64(0)
	for _, e := range events {
		if e.Deferred {
			whole[e.Aggregate()] = e.Attempts == 0
			rows++
			bytes += int64(len(e.Payload))
		}
	}
	if rows >= maxDeferred || bytes >= maxBytes {
		return
	}
	for i := range events {
		events[i].Blocked = events[i].Blocked && !whole[events[i].Aggregate()]
	}
}
