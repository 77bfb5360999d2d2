package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/googleapis/gax-go/v2"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/telemetry/heartbeat"
)

// applyBatches runs one worker, until r.work ends. Every delivery, a message in hand, gets its
// verdict: acknowledge it, try it again, or give it back.
func (r *run) applyBatches(loop *heartbeat.Loop) {
	defer loop.Rest()
	for r.work.Err() == nil {
		loop.Rest()
		r.applyBatch(r.collect(), loop)
	}
}

// collect takes a batch from the queue: a full one, or the deliveries that come within
// batchDelay after the first. One worker collects at a time. While all are busy, deliveries
// wait, and the next batch is larger. If r.work has ended, the batch is empty.
func (r *run) collect() (batch []*delivery) {
	if r.turn.Acquire(r.work, 1) != nil {
		return nil
	}
	defer r.turn.Release(1)
	var ripe <-chan time.Time
	for len(batch) < r.cfg.BatchSize {
		select {
		case d := <-r.queue:
			if len(batch) == 0 {
				ripe = time.After(batchDelay)
			}
			batch = append(batch, d)
		case <-ripe:
			return batch
		case <-r.work.Done():
			giveBack(batch)
			return nil
		}
	}
	return batch
}

// applyBatch applies the new deliveries of each aggregate type together. Then it handles
// alone every delivery that was refused before or belongs in the quarantine. So a bad
// message harms no other.
func (r *run) applyBatch(batch []*delivery, loop *heartbeat.Loop) {
	together := make(map[string][]*delivery)
	var alone []*delivery
	for _, d := range batch {
		if d.alone || d.reason != "" {
			alone = append(alone, d)
		} else {
			together[d.envelope.AggregateType] = append(together[d.envelope.AggregateType], d)
		}
	}
	for _, deliveries := range together {
		r.apply(deliveries, loop)
	}
	for _, d := range alone {
		if d.reason != "" {
			r.sendToQuarantine(d, loop)
		} else {
			r.apply([]*delivery{d}, loop)
		}
	}
}

// apply applies deliveries of one aggregate type in one transaction, and gives each its
// verdict. If the store refuses them, it applies each alone.
func (r *run) apply(deliveries []*delivery, loop *heartbeat.Loop) {
	var outcomes []envelope.Outcome
	err := r.persist(loop, func(ctx context.Context) (err error) {
		outcomes, err = r.Handlers[deliveries[0].envelope.AggregateType].apply(tracedTogether(ctx, deliveries), r.Consumer, deliveries)
		if err == nil && len(outcomes) != len(deliveries) {
			err = fmt.Errorf("project: %d outcomes for %d events", len(outcomes), len(deliveries))
		}
		return err
	})
	switch {
	case err == nil:
		// After a crash here, the broker delivers the whole batch again. The inbox finds the
		// duplicates.
		r.settle(deliveries, outcomes)
	case errors.Is(err, errGivenBack):
		giveBack(deliveries)
	case len(deliveries) == 1:
		r.retryOrQuarantine(deliveries[0], err, loop)
	default:
		r.log.WarnContext(r.work, "consumer: batch refused, going on one by one", "events", len(deliveries), "err", err)
		for i := range deliveries {
			r.apply(deliveries[i:i+1], loop)
		}
	}
}

// settle records the outcomes of deliveries that are applied, and gives the verdict.
func (r *run) settle(deliveries []*delivery, outcomes []envelope.Outcome) {
	r.metrics.countOutcomes(r.work, deliveries, outcomes)
	for i, d := range deliveries {
		switch outcomes[i] {
		case envelope.AppliedAfterGap:
			r.log.WarnContext(d.traced(r.work), "consumer: event applied, but one before it was not seen", d.logAttrs("version", d.envelope.Version)...)
		case envelope.Conflict:
			r.log.WarnContext(d.traced(r.work), "consumer: two events claim one version, the one with the greater id stays: did the owner lose a transaction in a failover?",
				d.logAttrs("version", d.envelope.Version)...)
		default:
		}
		if d.attempts > 0 {
			r.log.InfoContext(d.traced(r.work), "consumer: refused event applied", d.logAttrs("attempts", d.attempts+1)...)
		}
		d.verdict <- settled
	}
}

// retryOrQuarantine gives the verdict on an event that the store has refused alone. A timeout may be
// the fault of the database, so such an event is tried again without a limit. Until it
// succeeds, it holds up the later events of its ordering key.
func (r *run) retryOrQuarantine(d *delivery, err error, loop *heartbeat.Loop) {
	d.alone = true
	d.attempts++
	if !errors.Is(err, context.DeadlineExceeded) {
		d.refusals++
	}
	if d.refusals >= r.cfg.MaxAttempts {
		d.reason = fmt.Sprintf("refused %d times: %v", d.refusals, err)
		r.sendToQuarantine(d, loop)
		return
	}
	if d.postpone("refused") {
		r.log.WarnContext(r.work, "consumer: event refused, trying again", d.logAttrs("attempts", d.attempts, "retry_in_ms", d.pause.Milliseconds(), "err", err)...)
	}
	d.verdict <- retried
}

// sendToQuarantine stores a message in the quarantine and gives the verdict on it. If that fails,
// the message is tried again without a limit, because it must not get lost.
func (r *run) sendToQuarantine(d *delivery, loop *heartbeat.Loop) {
	whole := envelope.Quarantined{MessageID: d.ID, OrderingKey: d.Key, Attributes: d.Attributes, Payload: d.Data, Reason: d.reason, PublishTime: d.PublishTime}
	err := r.persist(loop, func(ctx context.Context) error { return r.quarantine.Quarantine(ctx, r.Consumer, whole) })
	switch {
	case errors.Is(err, errGivenBack):
		d.verdict <- givenBack
	case err != nil:
		if d.postpone("not quarantined") {
			r.log.ErrorContext(r.work, "consumer: cannot quarantine message, trying again",
				d.logAttrs("reason", d.reason, "attempts", d.attempts, "retry_in_ms", d.pause.Milliseconds(), "err", err)...)
		}
		d.verdict <- retried
	default:
		r.metrics.count(r.work, cmp.Or(d.Attributes[envelope.AttrAggregateType], otherType), outcomeQuarantined, 1)
		r.log.ErrorContext(d.traced(r.work), "consumer: message quarantined", d.logAttrs("attempts", d.attempts, "reason", d.reason)...)
		d.verdict <- settled
	}
}

// errGivenBack means that the receiver was stopped before the store returned a result.
var errGivenBack = errors.New("stopped")

// persist calls the store until it returns a result. While the database is unavailable,
// persist waits and tries again, until the receiver is stopped. Any other error is the
// result. A timeout, ours or the database's, is a result as well: an event may cause it.
func (r *run) persist(loop *heartbeat.Loop, call func(ctx context.Context) error) error {
	for pauses := newPauses(longestPause); ; {
		loop.Rest()
		if r.cfg.Permits.Acquire(r.work, 1) != nil {
			return errGivenBack
		}
		loop.Beat()
		err := r.guard(func() error {
			ctx, cancel := context.WithTimeout(r.work, r.cfg.TransactionTimeout)
			defer cancel()
			return call(ctx)
		})
		r.cfg.Permits.Release(1)
		if err == nil {
			return nil
		}
		if r.work.Err() != nil {
			return errGivenBack
		}
		timeout := errors.Is(err, context.DeadlineExceeded)
		if !timeout && !errors.Is(err, envelope.ErrUnavailable) {
			r.metrics.countFailure(r.work, failedRefused)
			return err
		}
		r.metrics.countFailure(r.work, failedUnavailable)
		if timeout {
			return err
		}
		pause := pauses.Pause()
		r.log.WarnContext(r.work, "consumer: the database is unavailable, trying again", "retry_in_ms", pause.Milliseconds(), "err", err)
		if gax.Sleep(r.stopping, pause) != nil {
			return errGivenBack
		}
	}
}

// guard turns a panic into an error: one message must not end the process.
func (r *run) guard(call func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			r.metrics.countFailure(r.work, failedPanic)
			r.log.ErrorContext(r.work, "consumer: panic", "panic", v, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return call()
}

func giveBack(deliveries []*delivery) {
	for _, d := range deliveries {
		d.verdict <- givenBack
	}
}
