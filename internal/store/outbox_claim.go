package store

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// ClaimEvents takes the lease of a lane that has work, until leaseFor from now by the clock
// of the database, and returns its oldest events. It returns at most maxEvents, and stops
// at the event with which their payloads reach maxBytes. It also returns events that were
// set aside and are due, up to the same limits again. If there is no work, it returns the
// zero Claim.
//
// With a lane other than outbox.AnyLane it takes only that lane, if something was committed
// there since its last claims. That costs half, and is for a caller
// that knows of a commit. Two kinds of events may wait for a claim of any lane:
// those that are due for a retry, and those committed later than an event behind them.
//
// If a claim fails without an error from PostgreSQL, the claim may still have taken effect,
// or may do so later. Later claims of the same Outbox treat its lane as free.
func (o *Outbox) ClaimEvents(ctx context.Context, lane int16, maxEvents int, maxBytes int64, leaseFor time.Duration) (outbox.Claim, error) {
	token := 1 + rand.Int64N(math.MaxInt64) // video_catalog.outbox_claim says why it is random
	var only *int16
	if lane != outbox.AnyLane {
		only = &lane
	}
	rows, err := o.queries.ClaimOutbox(ctx, sqlcgen.ClaimOutboxParams{
		MaxEvents: limit(maxEvents), MaxBytes: maxBytes, LeaseFor: leaseFor, OnlyLane: only,
		Token: token, LostTokens: o.lost.list(),
	})
	if err != nil {
		if !isRefused(err) {
			o.lost.add(token)
		}
		return outbox.Claim{}, wrap(err, "claim events")
	}
	claim := claimOf(rows)
	// Sorted here, because sorting rows with their payloads costs the database more.
	slices.SortFunc(claim.Events, func(a, b outbox.Claimed) int { return cmp.Compare(a.Seq, b.Seq) })
	unblock(&claim, maxEvents, maxBytes)
	return claim, nil
}

// claimOf returns the claim that rows describe. A row with Seq 0 is not an event. If it
// names an aggregate, that aggregate has recovered.
func claimOf(rows []sqlcgen.ClaimOutboxRow) (claim outbox.Claim) {
	for _, row := range rows {
		claim.Lane, claim.Token = row.Lane, row.LeaseToken
		e := outbox.Claimed{
			Message: envelope.Message{
				ID: row.ID, AggregateType: row.AggregateType, AggregateID: row.AggregateID, Type: row.EventType, Version: row.Version,
				SchemaVersion: row.SchemaVersion, Payload: row.Payload, OccurredAt: row.OccurredAt.UTC(), Traceparent: row.Traceparent, Repeat: row.Repeat,
				Cause: envelope.Cause{CausationID: row.CausationID, CorrelationID: row.CorrelationID},
			},
			Seq: row.Seq, Retry: row.Retry, Blocked: row.Blocked, Attempts: int(row.Attempts),
		}
		switch {
		case e.Seq != 0:
			claim.Events = append(claim.Events, e)
		case e.AggregateID != "":
			claim.Recovered = append(claim.Recovered, e.Aggregate())
		}
	}
	return claim
}

// unblock lets events of a lane follow the events of their aggregate that were set aside,
// if the claim has all of those. Otherwise an aggregate that gets new events all the time
// would stay blocked. The claim may lack some of them if it is full. It always lacks some
// for an aggregate with attempts, of which it has one event.
func unblock(claim *outbox.Claim, maxEvents int, maxBytes int64) {
	whole := make(map[envelope.Aggregate]bool)
	rows, bytes := len(claim.Recovered), int64(0)
	for _, aggregate := range claim.Recovered {
		whole[aggregate] = true
	}
	for _, e := range claim.Events {
		if e.Retry {
			whole[e.Aggregate()] = e.Attempts == 0
			rows++
			bytes += int64(len(e.Payload))
		}
	}
	if rows == 0 || rows >= maxEvents || bytes >= maxBytes {
		return
	}
	for i := range claim.Events {
		e := &claim.Events[i]
		e.Blocked = e.Blocked && !whole[e.Aggregate()]
	}
}
