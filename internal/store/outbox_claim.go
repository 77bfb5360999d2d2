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

// ClaimEvents takes the lease of a lane that has work, until leaseFor from
// now by the clock of the database, and returns its oldest events: at most
// maxEvents, and none behind the one with which their payloads have maxBytes.
// As much again of what was set aside and is due.
// The zero Claim: there is nothing to do.
//
// With an aggregate (not the zero one) it takes the lane of that or none, and
// none when nothing was committed there since its last claims. That costs
// half, and is for who knows of a commit: what is due for a retry, and
// what was committed later than what is behind it, may wait for a claim without.
//
// A claim that fails without a word from PostgreSQL may have been made, or be
// made later. What it holds, or will, later claims of the same Outbox take as
// if it were free.
func (o *Outbox) ClaimEvents(ctx context.Context, maxEvents int, maxBytes int64, leaseFor time.Duration, of envelope.Aggregate) (outbox.Claim, error) {
	token := 1 + rand.Int64N(math.MaxInt64) // why at random: see video.outbox_claim
	rows, err := o.queries.ClaimOutbox(ctx, sqlcgen.ClaimOutboxParams{
		MaxEvents: limit(maxEvents), MaxBytes: maxBytes, LeaseFor: leaseFor, OfType: optional(of.Type), OfID: optional(of.ID),
		Token: token, LostTokens: o.lost.list(),
	})
	if err != nil {
		if !isRefused(err) {
			o.lost.add(token)
		}
		return outbox.Claim{}, wrap(err, "claim events")
	}
	claim := claimOf(rows)
	// Here, because sorting rows with their payloads costs the database more.
	slices.SortFunc(claim.Events, func(a, b outbox.Claimed) int { return cmp.Compare(a.Seq, b.Seq) })
	unblock(&claim, maxEvents, maxBytes)
	return claim, nil
}

// claimOf is what the rows of a claim say. One with Seq 0 is no event: with an
// aggregate, that one has recovered.
func claimOf(rows []sqlcgen.ClaimOutboxRow) (claim outbox.Claim) {
	for _, row := range rows {
		claim.Lane, claim.Token = row.Lane, row.LeaseToken
		e := outbox.Claimed{
			Message: envelope.Message{
				ID: row.ID, AggregateType: row.AggregateType, AggregateID: row.AggregateID, Type: row.EventType, Version: row.Version,
				SchemaVersion: row.SchemaVersion, Payload: row.Payload, OccurredAt: row.OccurredAt.UTC(), Traceparent: row.Traceparent,
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

// unblock lets the events of a lane follow those of their aggregate that were
// set aside, when the claim has all of those. Else an aggregate that never rests
// would stay blocked. The claim may lack some when it is full, and always does
// of an aggregate with attempts, of which it has one event.
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
