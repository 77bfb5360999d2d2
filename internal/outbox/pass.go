package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/failpoint"
)

// Result is what a pass did.
type Result struct {
	// Claimed: there was work, and may be more.
	Claimed bool
	// Published events were acknowledged by the broker.
	Published int
	// Refused events were not, for what they are.
	Refused int
	// Unknown events stay pending: nobody knows whether the broker has them.
	Unknown int

	err  error // of the first event that the broker left unanswered
	left bool  // not all was published, or an aggregate has recovered: there may be more to do at once
}

// outage reports whether the broker seems to be unavailable: it was sent events, and
// answered none.
func (r Result) outage() bool { return r.err != nil && r.Published == 0 && r.Refused == 0 }

// passes makes passes: it claims, publishes and settles. When, it does not know:
// see schedule.
type passes struct {
	store   Store
	broker  Broker
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	tracer  trace.Tracer // nil: none
	full    func()       // called when a claim is full, so that there may be work for another worker
}

// run makes one pass over at most batch events, and as many that were set aside;
// of one lane when there is an aggregate: see Store. When ctx ends it hands
// nothing more to the broker and waits for it no longer. Events that were
// acknowledged by then are settled all the same.
func (p *passes) run(ctx context.Context, batch int, of envelope.Aggregate) (Result, error) {
	// Before the claim, so that by the clock of the database we stop earlier
	// than we think.
	start := time.Now()
	deadline := start.Add(p.cfg.PublishTimeout)
	claimCtx, cancel := context.WithDeadline(ctx, deadline)
	claim, err := p.store.ClaimEvents(claimCtx, batch, p.cfg.BatchBytes, p.cfg.Lease, of)
	cancel()
	if err != nil || claim.Token == 0 {
		return Result{}, err
	}
	// A crash from here on leaves the lane leased: its events wait until
	// leased_until, then another publisher claims them.
	if p.isFull(claim, batch) {
		p.full()
	}
	failpoint.Hit(failpoint.OutboxClaimed)
	spans := passTrace{tracer: p.tracer}
	spans.claimed(ctx, claim, start)
	receipts := p.publish(ctx, claim, deadline, &spans)
	failpoint.Hit(failpoint.OutboxHanded)
	// A crash here, or anywhere before the settlement is committed, leaves
	// events that were published and are still pending: they are published a
	// second time.
	result, settlement := p.collect(ctx, claim, receipts, deadline, &spans)
	result.left = result.Published < len(claim.Events) || len(settlement.Recovered) > 0
	failpoint.Hit(failpoint.OutboxPublished)
	held, err := p.settle(ctx, settlement, deadline)
	p.metrics.pass(ctx, claim, result, held)
	return result, err
}

// isFull reports whether a claim has as many events or bytes as a pass takes.
func (p *passes) isFull(claim Claim, batch int) bool {
	var bytes int64
	for _, e := range claim.Events {
		bytes += int64(len(e.Payload))
	}
	return len(claim.Events) >= batch || bytes >= p.cfg.BatchBytes
}

// publish hands the events of a claim to the broker, in their order. What is
// blocked, or comes when the pass is at its end, it leaves out: that has no
// receipt.
func (p *passes) publish(ctx context.Context, claim Claim, deadline time.Time, spans *passTrace) []handed {
	receipts := make([]handed, len(claim.Events))
	for i, e := range claim.Events {
		if e.Blocked {
			continue
		}
		// Checked before each, because a process can be stopped anywhere for
		// longer than its lease.
		now := time.Now()
		if ctx.Err() != nil || now.After(deadline) {
			break
		}
		p.metrics.attempted(ctx, e)
		receipts[i] = handed{p.broker.Publish(spans.publish(ctx, i, len(claim.Events), e)), now}
	}
	return receipts
}

// handed is what the broker was given: its receipt, and when that was. The zero
// value says that it was not.
type handed struct {
	receipt Receipt
	at      time.Time
}

var errLeftOut = errors.New("not sent: the pass was at its end")

// collect waits for the answers, in the order of the claim, and returns what
// became of the events. An aggregate stops at its first event that is not
// acknowledged: see tally.
func (p *passes) collect(ctx context.Context, claim Claim, receipts []handed, deadline time.Time, spans *passTrace) (Result, Settlement) {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	t := newTally(claim)
	for i, e := range claim.Events {
		if e.Blocked {
			t.setAside(e)
			continue
		}
		err := errLeftOut
		if receipt := receipts[i].receipt; receipt != nil {
			err = receipt.Wait(ctx)
		}
		traced := spans.answered(ctx, i, err)
		if err != nil {
			p.metrics.failed(traced, err)
		}
		var refusal *RefusedError
		switch {
		case t.behind(e):
		case err == nil:
			t.published(e)
			p.metrics.published(traced, e.Message, receipts[i].at)
		case errors.As(err, &refusal):
			if t.refused(e) {
				t.settlement.Failed = append(t.settlement.Failed, p.failure(ctx, e, refusal.Err))
			} else {
				p.log.WarnContext(ctx, "outbox: event refused behind another one", "event_id", e.ID, "ordering_key", e.AggregateID, "version", e.Version, "err", refusal.Err)
			}
		default:
			t.unknown(e)
			if t.result.err == nil && receipts[i].receipt != nil {
				t.result.err = err
			}
		}
	}
	return t.result, t.settlement
}

// failure decides when a refused event is tried again.
func (p *passes) failure(ctx context.Context, e Claimed, cause error) Failure {
	attempts := e.Attempts + 1
	failure := Failure{Aggregate: e.Aggregate(), Seq: e.Seq, Attempts: attempts, Error: cause.Error()}
	alone := e.Retry && e.Attempts > 0 // else it may be refused for what is sent with it
	if alone && attempts >= p.cfg.MaxAttempts {
		failure.Park = true
	} else {
		failure.RetryIn = backoff(attempts, p.cfg.RetryMin, p.cfg.RetryMax)
		p.metrics.retrying(ctx, failure.RetryIn)
	}
	p.log.ErrorContext(ctx, "outbox: event refused", "event_id", e.ID, "ordering_key", e.AggregateID, "version", e.Version,
		"attempts", attempts, "parked", failure.Park, "retry_in", failure.RetryIn, "err", cause)
	return failure
}

// settle records what became of a claim, also when ctx is done: forgetting
// what the broker has would publish it again. While the database does not
// answer it tries until the lease may have ended or, when ctx is done, once.
// Each attempt has longer than the one before, because a database that is slow
// would never settle what is published again and again; the first is short,
// because its connection may be lost. held is false when the settlement took no
// effect, or nobody knows.
func (p *passes) settle(ctx context.Context, settlement Settlement, deadline time.Time) (held bool, err error) {
	leaseEnd := deadline.Add(p.cfg.Lease - p.cfg.PublishTimeout)
	for attempt := 1; ; attempt++ {
		timeout := p.cfg.SettleTimeout * time.Duration(attempt)
		if attempt > 1 {
			timeout = min(timeout, time.Until(leaseEnd))
		}
		held, err := p.settleOnce(ctx, settlement, timeout)
		if err == nil {
			if !held {
				// Somebody else has the lane: we were too slow, and what we
				// published may be published again. Or an attempt before this
				// one took effect, and its answer was lost. Never a success.
				p.metrics.lostLease(ctx)
				p.log.WarnContext(ctx, "outbox: lease lost before the settlement", "lane", settlement.Lane, "events", len(settlement.Done)+len(settlement.Retried))
			}
			return held, nil
		}
		pause := backoff(attempt, minPause, time.Second)
		if ctx.Err() != nil || time.Now().Add(pause).After(leaseEnd) {
			return false, fmt.Errorf("settle %d published events: %w", len(settlement.Done)+len(settlement.Retried), err)
		}
		sleep(ctx, pause)
	}
}

// settleOnce has timeout, but only Config.SettleTimeout from when ctx is done.
func (p *passes) settleOnce(ctx context.Context, settlement Settlement, timeout time.Duration) (bool, error) {
	ctx, end := after(ctx, p.cfg.SettleTimeout)
	defer end()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return p.store.SettleClaim(ctx, settlement)
}
