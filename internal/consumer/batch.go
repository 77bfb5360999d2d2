package consumer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"go.opentelemetry.io/otel/trace"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/telemetry/heartbeat"
)

// collect makes batches of the deliveries that the callbacks of a source submit. A batch is
// ready when it is full, or when its first delivery has waited for BatchDelay. A ready batch
// that finds no free worker keeps filling. Sources that wait for a shared worker get it in
// turn.
func (r *run) collect(s *source) {
	delay := time.NewTimer(r.cfg.BatchDelay)
	delay.Stop()
	var batch []*delivery
	ripe := false
	for {
		queue, own, shared := s.queue, s.batches, r.batches
		if len(batch) == r.cfg.BatchSize {
			queue, ripe = nil, true
		}
		if !ripe {
			own, shared = nil, nil
		}
		select {
		case d := <-queue:
			if len(batch) == 0 {
				delay.Reset(r.cfg.BatchDelay)
			}
			batch = append(batch, d)
		case <-delay.C:
			ripe = true
		case own <- batch:
			batch, ripe = nil, false
			delay.Stop()
		case shared <- batch:
			batch, ripe = nil, false
			delay.Stop()
		case <-r.work.Done():
			giveBack(batch)
			return
		}
	}
}

// apply runs one worker. It gives a verdict to every delivery of its batches.
func (r *run) apply(batches <-chan []*delivery, loop *heartbeat.Loop) {
	defer loop.Rest()
	for {
		loop.Rest()
		select {
		case batch := <-batches:
			r.applyBatch(batch, loop)
		case <-r.work.Done():
			return
		}
	}
}

// applyBatch applies the new deliveries of each route together, in one transaction per
// route. It handles alone every delivery that was refused before or belongs in the
// quarantine. So a bad message harms no other.
func (r *run) applyBatch(batch []*delivery, loop *heartbeat.Loop) {
	together := make(map[*route][]*delivery)
	var alone []*delivery
	for _, d := range batch {
		if d.reason == "" && d.failures == 0 && d.slow == 0 {
			together[d.route] = append(together[d.route], d)
		} else {
			alone = append(alone, d)
		}
	}
	for _, deliveries := range together {
		if len(deliveries) > 1 {
			err := r.project(deliveries, loop)
			if err == nil {
				continue
			}
			r.log.WarnContext(r.work, "consumer: batch refused, going on one by one", "events", len(deliveries), "err", err)
		}
		alone = append(deliveries, alone...)
	}
	for _, d := range alone {
		if d.reason != "" {
			r.setAside(d, loop)
		} else if err := r.project([]*delivery{d}, loop); err != nil {
			r.refused(d, err, loop)
		}
	}
}

// project applies deliveries of one route in one transaction and gives each its verdict. If
// the store refuses them, it returns the error and gives no verdict.
func (r *run) project(deliveries []*delivery, loop *heartbeat.Loop) error {
	to := deliveries[0].route
	events := make([]any, len(deliveries))
	for i, d := range deliveries {
		events[i] = d.event
	}
	var outcomes []envelope.Outcome
	span, end := r.beginBatch(deliveries)
	patience := 1 // a single event that times out is refused at once
	if len(events) > 1 {
		patience = tooLong
	}
	err := r.persist(loop, patience, func(ctx context.Context) (err error) {
		if span != nil {
			ctx = trace.ContextWithSpan(ctx, span)
		}
		outcomes, err = to.handler.apply(ctx, to.consumer, events)
		if err == nil && len(outcomes) != len(events) {
			err = fmt.Errorf("project: %d outcomes for %d events", len(outcomes), len(events))
		}
		return err
	})
	end(err)
	if errors.Is(err, errGivenBack) {
		giveBack(deliveries)
		return nil
	}
	if err != nil {
		return err
	}
	// After a crash here, the broker delivers the whole batch again. The inbox finds the
	// duplicates.
	r.metrics.projected(r.work, to, deliveries, outcomes)
	for i, d := range deliveries {
		switch outcomes[i] {
		case envelope.AppliedAfterGap:
			r.log.WarnContext(d.traced(r.work), "consumer: event applied, but one before it was not seen", d.with("version", d.envelope.Version)...)
		case envelope.Conflict:
			r.log.WarnContext(d.traced(r.work), "consumer: two events claim one version, the later one stays: did the owner lose a transaction in a failover?",
				d.with("version", d.envelope.Version)...)
		default:
		}
		d.verdict <- settled
	}
	return nil
}

// refused gives the verdict on an event that the store has refused alone. A timeout may be
// the fault of the database, so such an event is tried again without a limit. The pauses
// grow to a minute, so the event occupies a worker less and less. Until it succeeds, it
// holds up the later events of its ordering key.
func (r *run) refused(d *delivery, err error, loop *heartbeat.Loop) {
	if errors.Is(err, context.DeadlineExceeded) {
		d.slow++
		r.log.WarnContext(r.work, "consumer: event takes too long, trying again", d.with("err", err)...)
		d.verdict <- retried
		return
	}
	d.failures++
	if d.failures < r.cfg.MaxAttempts {
		r.log.WarnContext(r.work, "consumer: event refused, trying again", d.with("attempts", d.failures, "err", err)...)
		d.verdict <- retried
		return
	}
	d.reason = fmt.Sprintf("refused %d times: %v", d.failures, err)
	r.setAside(d, loop)
}

// setAside stores a message in the quarantine and gives the verdict on it. If that fails,
// the message is tried again without a limit, because it must not get lost.
func (r *run) setAside(d *delivery, loop *heartbeat.Loop) {
	err := r.persist(loop, tooLong, func(ctx context.Context) error {
		return r.quarantine.Quarantine(ctx, d.route.consumer, d.quarantined())
	})
	switch {
	case errors.Is(err, errGivenBack):
		d.verdict <- givenBack
	case err != nil:
		d.failures++
		r.log.ErrorContext(r.work, "consumer: cannot quarantine message, trying again", d.with("reason", d.reason, "err", err)...)
		d.verdict <- retried
	default:
		r.metrics.quarantined(r.work, d)
		r.log.ErrorContext(d.traced(r.work), "consumer: message quarantined", d.with("reason", d.reason)...)
		d.verdict <- settled
	}
}

// errGivenBack means that the projector was stopped before the store returned a result.
var errGivenBack = errors.New("stopped")

// tooLong is the number of timeouts in a row at which persist gives up. A timeout is ours
// (TransactionTimeout) or the database's (statement_timeout, lock_timeout).
const tooLong = 3

// persist calls the store until it returns a result. While the database is unavailable,
// persist waits and tries again, until the projector is stopped. Any other error is the
// result. So is a context.DeadlineExceeded that comes patience times in a row: one message
// of the batch may cause it, and the caller then tries each alone.
func (r *run) persist(loop *heartbeat.Loop, patience int, call func(ctx context.Context) error) error {
	timeouts := 0
	for failures := 0; ; failures++ {
		loop.Beat()
		err := r.guard(func() error {
			ctx, cancel := context.WithTimeout(r.work, r.cfg.TransactionTimeout)
			defer cancel()
			return call(ctx)
		})
		if err == nil {
			return nil
		}
		if r.work.Err() != nil {
			return errGivenBack
		}
		if !isUnavailable(err) {
			r.metrics.failed(r.work, failedRefused)
			return err
		}
		r.metrics.failed(r.work, failedUnavailable)
		if !errors.Is(err, context.DeadlineExceeded) {
			timeouts = 0
		} else if timeouts++; timeouts == patience {
			return err
		}
		pause := backoff(failures, r.cfg.RetryMin, r.cfg.RetryMax)
		r.log.WarnContext(r.work, "consumer: the database is unavailable, trying again", "failures", failures+1, "retry_in", pause, "err", err)
		if !sleep(r.stopping, pause) {
			return errGivenBack
		}
	}
}

func isUnavailable(err error) bool {
	return errors.Is(err, envelope.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)
}

// guard turns a panic into an error: one message must not end the process.
func (r *run) guard(call func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			r.metrics.failed(r.work, failedPanic)
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

// backoff returns a random pause after failure n, which counts from 0. The upper limit
// doubles with each failure, from shortest to longest (full jitter). So callers that failed
// together do not come back together.
func backoff(n int, shortest, longest time.Duration) time.Duration {
	limit := shortest
	for range n {
		if limit *= 2; limit >= longest {
			limit = longest
			break
		}
	}
	return rand.N(limit) + 1
}

// sleep waits for d and returns true. It returns false if ctx has ended or ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}
