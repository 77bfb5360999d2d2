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
	"example.com/videocatalog/internal/failpoint"
	"example.com/videocatalog/internal/telemetry/heartbeat"
)

// collect makes batches out of what the callbacks submit. A batch goes to a
// worker when it is full or its first delivery has waited for BatchDelay;
// while no worker is free it goes on filling.
func (r *run) collect() {
	delay := time.NewTimer(r.cfg.BatchDelay)
	delay.Stop()
	var batch []*delivery
	ripe := false
	for {
		queue, batches := r.queue, r.batches
		if len(batch) == r.cfg.BatchSize {
			queue, ripe = nil, true
		}
		if !ripe {
			batches = nil
		}
		select {
		case d := <-queue:
			if len(batch) == 0 {
				delay.Reset(r.cfg.BatchDelay)
			}
			batch = append(batch, d)
		case <-delay.C:
			ripe = true
		case batches <- batch:
			batch, ripe = nil, false
			delay.Stop()
		case <-r.work.Done():
			giveBack(batch)
			return
		}
	}
}

// apply is a worker: it gives every delivery of its batches a verdict.
func (r *run) apply(loop *heartbeat.Loop) {
	defer loop.Rest()
	for {
		loop.Rest()
		select {
		case batch := <-r.batches:
			r.applyBatch(batch, loop)
		case <-r.work.Done():
			return
		}
	}
}

// applyBatch projects what is new together, those of one route at a time, and
// whatever was refused before, or belongs into the quarantine, one by one, so that
// it harms nothing else.
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

// project applies deliveries of one route in one transaction and gives them their
// verdict, unless it returns an error: then the store has refused them.
func (r *run) project(deliveries []*delivery, loop *heartbeat.Loop) error {
	to := deliveries[0].route
	events := make([]any, len(deliveries))
	for i, d := range deliveries {
		events[i] = d.event
	}
	var outcomes []envelope.Outcome
	span, end := r.beginBatch(deliveries)
	patience := 1 // of one event the worker does not wait for more
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
	// A crash from here on: all of it comes again, as duplicates.
	failpoint.Hit(failpoint.ConsumerCommitted)
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

// refused gives the verdict on an event that the store has refused alone. One
// that takes too long is no worse than the database may be: it is tried again, for
// as long as it takes, after pauses that grow to a minute. It holds up what has its
// key, and of a worker less and less.
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

// setAside sets a message aside and gives the verdict on it. One that cannot
// be set aside is tried again for as long as it takes: it must not get lost.
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

// errGivenBack says that the projector was stopped before the store answered.
var errGivenBack = errors.New("stopped")

// tooLong is how often in a row a batch may take too long, for us or for the
// database with its statement_timeout or lock_timeout, before that is an answer.
const tooLong = 3

// persist calls the store until it answers. While the database is unavailable it
// waits, as long as the projector is not stopped; any other error is the
// store's answer. So are patience times context.DeadlineExceeded in a row: it may
// be for one of several messages, which then harms nothing else alone.
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

// guard makes a panic an error: one message must not end the process.
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

// backoff is the pause after a failure, the first being number 0: drawn from a
// range that doubles each time (full jitter), so that many who failed together
// do not come back together.
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

// sleep returns false when ctx ends first, or has ended.
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
