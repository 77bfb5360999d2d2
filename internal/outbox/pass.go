package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/googleapis/gax-go/v2"
	"go.opentelemetry.io/otel/trace"

	"example.com/videocatalog/internal/envelope"
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

	bytes int64 // of the payloads of the claim
	left  bool  // some events were not published, the claim was full, or an aggregate goes on: there may be more work now
}

// sent is an event of a claim that was handed to the broker. The zero value is one that was not.
type sent struct {
	receipt Receipt
	span    trace.Span // nil if its trace is not sampled
}

// RunOnce makes one pass over a lane, or [AnyLane]: over at most batch pending events, and half
// as many deferred ones. When ctx ends, it hands nothing more to the broker and stops
// waiting for responses. Events that were acknowledged by then are still settled.
func (p *Publisher) RunOnce(ctx context.Context, lane int16, batch int) (Result, error) {
	// The deadline begins before the claim, so that the pass stops before the lease ends by
	// the clock of the database.
	deadline := time.Now().Add(p.cfg.PublishTimeout)
	claimCtx, cancel := context.WithDeadline(ctx, deadline)
	claim, err := p.store.ClaimEvents(claimCtx, lane, batch, p.cfg.BatchBytes, p.cfg.Lease)
	cancel()
	if err != nil || claim.Token == 0 {
		return Result{}, err
	}
	// After a crash here, the lane stays leased. Its events wait until leased_until, then
	// another publisher claims them.
	all := p.publish(ctx, claim, deadline)
	// After a crash here, or anywhere before the settlement is committed, published events
	// are still pending. They are published a second time.
	result, settlement := p.collect(ctx, claim, all, deadline)
	full := len(claim.Events) >= batch || result.bytes >= p.cfg.BatchBytes
	result.left = full || result.Published < len(claim.Events) || len(settlement.Resumed) > 0
	held, err := p.settle(ctx, settlement, deadline)
	p.count(ctx, result, held)
	return result, err
}

// publish hands the events of a claim to the broker, in order. It leaves out blocked
// events, and the rest of the claim when the time of the pass is over. An event that is left
// out has no receipt. It does not wait between events of an aggregate: the broker sends none
// behind one that failed, see Broker.
func (p *Publisher) publish(ctx context.Context, claim Claim, deadline time.Time) []sent {
	all := make([]sent, len(claim.Events))
	for i, e := range claim.Events {
		if e.Blocked {
			continue
		}
		// Checked before each event, because a process can be stopped at any line for
		// longer than its lease.
		if ctx.Err() != nil || time.Now().After(deadline) {
			break
		}
		all[i].span = p.startSpan(ctx, &e)
		all[i].receipt = p.broker.Publish(e.Message)
	}
	return all
}

// collect waits for the responses in the order of the claim, and returns the result and the
// settlement. An aggregate stops at its first event that is not acknowledged: see tally.
func (p *Publisher) collect(ctx context.Context, claim Claim, all []sent, deadline time.Time) (Result, Settlement) {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	t := tally{
		result: Result{Claimed: true}, stopped: make(map[envelope.Aggregate]bool),
		settlement: Settlement{Lane: claim.Lane, Token: claim.Token, Resumed: make(map[envelope.Aggregate]int64)},
	}
	for i, e := range claim.Events {
		t.result.bytes += int64(len(e.Payload))
		if e.Blocked {
			t.deferred(e)
			continue
		}
		var err error
		if all[i].receipt != nil {
			err = all[i].receipt.Wait(ctx)
		}
		traced := endSpan(ctx, all[i].span, err)
		if t.behind(e) {
			continue // it is recorded
		}
		var refused *RefusedError
		switch {
		case all[i].receipt == nil:
			t.unknown(e)
		case err == nil:
			t.published(e)
			if e.Repeat == "" {
				p.delay.Record(traced, max(0, time.Since(e.OccurredAt).Seconds())) // the clock of the command may be ahead
			}
		case errors.As(err, &refused):
			if t.refused(e) {
				t.settlement.Refused = append(t.settlement.Refused, p.refusal(ctx, e, refused.Err))
			}
		default:
			t.unknown(e)
			t.result.Outage = cmp.Or(t.result.Outage, err) // the first
		}
	}
	if t.result.Published+t.result.Refused > 0 {
		t.result.Outage = nil
	}
	return t.result, t.settlement
}

// refusal decides when a refused event is tried again, or parks it.
func (p *Publisher) refusal(ctx context.Context, e Claimed, cause error) Refusal {
	attempts := e.Attempts + 1
	refusal := Refusal{Aggregate: e.Aggregate(), Seq: e.Seq, Attempts: attempts, Error: cause.Error()}
	// At the first attempt, another message of the same request may be the cause.
	parked := e.Attempts > 0 && attempts >= p.cfg.MaxAttempts
	if !parked {
		refusal.RetryIn = backoff(attempts, p.cfg.RetryMin, p.cfg.RetryMax)
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
// done, it tries once, within Config.SettleTimeout. held is false if the settlement took no
// effect, or if that is unknown.
//
// The first attempt is short, because its connection may be lost. Each later attempt has
// more time. Otherwise a slow database would never settle, and the same events would be
// published again and again.
func (p *Publisher) settle(ctx context.Context, settlement Settlement, deadline time.Time) (held bool, err error) {
	leaseEnd := deadline.Add(p.cfg.Lease - p.cfg.PublishTimeout)
	alive, end := after(ctx, p.cfg.SettleTimeout)
	defer end()
	for attempt := 1; ; attempt++ {
		once, cancel := context.WithTimeout(alive, p.cfg.SettleTimeout*time.Duration(attempt))
		held, err := p.store.SettleClaim(once, settlement)
		cancel()
		if err == nil {
			if !held {
				// Either another publisher has the lane, because we were too slow, and may
				// publish our events again. Or an earlier attempt took effect and its
				// response was lost.
				p.log.WarnContext(ctx, "outbox: lease lost before the settlement", "lane", settlement.Lane)
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
