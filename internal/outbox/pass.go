package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/googleapis/gax-go/v2"
)

// Result is the outcome of a pass.
type Result struct {
	Claimed   bool // there was work, and there may be more
	Published int  // events that the broker acknowledged
	Refused   int  // events that the broker refused because of their content
	Unknown   int  // events that stay where they are, because it is unknown whether the broker has them
	// Outage is why the broker seems to be unavailable: a sent event failed, and the broker
	// acknowledged or refused none. Else it is nil.
	Outage error

	full bool          // a limit has left out events: there is more work now
	left bool          // some events were not published, or an aggregate goes on: there may be more work soon
	took time.Duration // from the first message until the last response
}

// RunOnce makes one pass over all free lanes, over at most batch pending events, and half as many deferred ones.
// When ctx ends, it hands nothing more to the broker and stops waiting for responses. Events that were
// acknowledged by then are still settled.
func (p *Publisher) RunOnce(ctx context.Context, batch int) (Result, error) {
	return p.pass(ctx, Limits{Lanes: Lanes, Events: batch, Bytes: p.cfg.BatchBytes, Lease: p.cfg.Lease}, func(Claim) {})
}

// pass claims, publishes and settles. It calls claimed when it has found work, before it publishes.
func (p *Publisher) pass(ctx context.Context, limits Limits, claimed func(Claim)) (Result, error) {
	// The deadline begins before the claim, so that the pass stops before the lease ends by
	// the clock of the database.
	begin := time.Now()
	deadline, leaseEnd := begin.Add(p.cfg.PublishTimeout), begin.Add(p.cfg.Lease)
	claimCtx, cancel := context.WithDeadline(ctx, deadline)
	claim, err := p.store.ClaimEvents(claimCtx, limits)
	cancel()
	if err != nil || claim.Token == 0 {
		return Result{}, err
	}
	// After a crash here, the lanes stay leased. Their events wait until leased_until, then
	// another publisher claims them.
	claimed(claim)
	start := time.Now()
	receipts := p.publish(ctx, claim.Events, deadline)
	// After a crash here, or anywhere before the settlement is committed, published events
	// are still pending. They are published a second time.
	result, settlement := p.collect(ctx, claim, receipts, deadline)
	result.took, result.full = time.Since(start), claim.Full
	held, err := p.settle(ctx, settlement, leaseEnd)
	p.count(ctx, result, held)
	return result, err
}

// publish hands events to the broker, in order. It leaves out events with Behind, and the rest of the claim
// when the time of the pass is over. An event that is left out has no receipt. It does not wait between events
// of an aggregate: the broker sends none behind one that failed, see Broker.
func (p *Publisher) publish(ctx context.Context, events []Claimed, deadline time.Time) []Receipt {
	receipts := make([]Receipt, len(events))
	for i, e := range events {
		if e.Behind {
			continue
		}
		// Checked before each event, because a process can be stopped at any line for
		// longer than its lease.
		if ctx.Err() != nil || time.Now().After(deadline) {
			break
		}
		receipts[i] = p.broker.Publish(e.Message)
	}
	return receipts
}

// collect waits for the responses in the order of the claim, and returns the result and the
// settlement.
func (p *Publisher) collect(ctx context.Context, claim Claim, receipts []Receipt, deadline time.Time) (Result, Settlement) {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	t := newTally(claim.Lease)
	for i, e := range claim.Events {
		err := errNotHanded
		if receipts[i] != nil {
			err = receipts[i].Wait(ctx)
		}
		if refused := t.add(e, err); refused != nil {
			t.settlement.Refused = append(t.settlement.Refused, p.refusal(ctx, e, refused.Err))
		}
	}
	if t.result.Published+t.result.Refused > 0 {
		t.result.Outage = nil
	}
	t.result.left = t.result.Published < len(claim.Events) || len(t.settlement.Resumed) > 0
	return t.result, t.settlement
}

// refusal decides when a refused event is tried again, or parks it.
func (p *Publisher) refusal(ctx context.Context, e Claimed, cause error) Refusal {
	attempts := e.Attempts + 1
	refusal := Refusal{Aggregate: e.Aggregate(), Seq: e.Seq, Attempts: attempts, Error: cause.Error()}
	// At the first attempt, another message of the same request may be the cause.
	parked := e.Attempts > 0 && attempts >= p.cfg.MaxAttempts
	if !parked {
		refusal.RetryIn = backoff(attempts, firstRetry, lastRetry)
	}
	if attempts == 1 || parked {
		p.log.ErrorContext(ctx, "outbox: event refused", "event_id", e.ID, "ordering_key", e.AggregateID, "version", e.Version,
			"attempts", attempts, "parked", parked, "retry_in_ms", refusal.RetryIn.Milliseconds(), "err", cause)
	}
	return refusal
}

// settle records the result of a claim, even if ctx is done: otherwise acknowledged events
// would be published again. While the database fails, it tries again until the lease may
// have ended. The last attempt may end later, which the fence makes harmless. If ctx is
// done, it tries once, within SettleTimeout. held is false if the settlement took no
// effect, or if that is unknown.
//
// The first attempt is short, because its connection may be lost. Each later attempt has
// more time. Otherwise a slow database would never settle, and the same events would be
// published again and again.
func (p *Publisher) settle(ctx context.Context, settlement Settlement, leaseEnd time.Time) (held bool, err error) {
	alive, end := after(ctx, SettleTimeout)
	defer end()
	for attempt := 1; ; attempt++ {
		once, cancel := context.WithTimeout(alive, SettleTimeout*time.Duration(attempt))
		held, err := p.store.SettleClaim(once, settlement)
		cancel()
		if err == nil {
			if !held {
				// Either another publisher has a lane, because we were too slow, and may
				// publish our events again. Or an earlier attempt took effect and its
				// response was lost.
				p.log.WarnContext(ctx, "outbox: lease lost before the settlement")
			}
			return held, nil
		}
		pause := backoff(attempt, minPause, time.Second)
		if ctx.Err() != nil || time.Now().Add(pause).After(leaseEnd) {
			return false, fmt.Errorf("settle published events: %w", err)
		}
		_ = gax.Sleep(ctx, pause) // if ctx ends, the next attempt is the last
	}
}
