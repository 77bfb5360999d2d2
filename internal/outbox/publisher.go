package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/telemetry/heartbeat"
)

// Publisher publishes the events of the outbox. One goroutine, the dispatcher, decides with
// a plan which pass starts when, and hands it to a worker.
type Publisher struct {
	cfg     Config
	log     *slog.Logger
	passes  *passes
	loops   []*heartbeat.Loop // one per worker; it rests while the worker has no pass
	wakeUps chan laneSet      // holds at most one set: the woken lanes that the dispatcher has not taken yet
}

// New makes a publisher. meter may be nil.
func New(store Store, broker Broker, cfg Config, log *slog.Logger, meter metric.Meter) (*Publisher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.WithDefaults()
	m, err := newMetrics(meter)
	if err != nil {
		return nil, err
	}
	var tracer trace.Tracer
	if cfg.Tracing != nil {
		tracer = cfg.Tracing.Tracer("example.com/videocatalog/internal/outbox")
	}
	loops := make([]*heartbeat.Loop, cfg.Workers)
	for i := range loops {
		loops[i] = heartbeat.New(fmt.Sprintf("outbox: worker %d", i), cfg.Lease) // a pass ends with its lease
	}
	return &Publisher{
		cfg: cfg, log: log, loops: loops, wakeUps: make(chan laneSet, 1),
		passes: &passes{store: store, broker: broker, cfg: cfg, log: log, metrics: m, tracer: tracer},
	}, nil
}

// Wake starts a pass of the lane of an aggregate after the commit of its event. It never
// blocks and is safe for concurrent use, also while Run is not running.
func (p *Publisher) Wake(aggregate envelope.Aggregate) {
	lanes := setOf(Lane(aggregate))
	for {
		select {
		case p.wakeUps <- lanes:
			return
		case others := <-p.wakeUps:
			lanes |= others
		}
	}
}

// Run publishes until ctx ends, settles, and returns nil. After ctx has ended it continues
// until the outbox is empty or the broker is unavailable, for at most Config.StopTimeout.
// So the last commits do not wait for another process. Call Run once.
func (p *Publisher) Run(ctx context.Context) error {
	grace, cancel := after(ctx, p.cfg.StopTimeout)
	defer cancel()
	jobs, ends := make(chan job), make(chan ended)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer close(jobs)
	for _, loop := range p.loops {
		workers.Go(func() { p.work(grace, loop, jobs, ends) })
	}
	p.dispatch(ctx, jobs, ends)
	return nil
}

// dispatch starts passes until ctx has ended and the plan has stopped. It is the only user
// of the plan. A crash anywhere in this loop loses wake-ups and results, but no event: the
// passes of other processes find pending events, and those of ours when their leases end.
func (p *Publisher) dispatch(ctx context.Context, jobs chan<- job, ends <-chan ended) {
	stop := ctx.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	plan := newPlan(p.cfg, time.Now())
	p.passes.metrics.breakerIs(ctx, false)
	for {
		j, wait, ok := plan.next(time.Now())
		if ok {
			jobs <- j // a worker without a job receives immediately
			continue
		}
		if plan.stopped() {
			return
		}
		timer.Reset(wait)
		select {
		case lanes := <-p.wakeUps:
			plan.woken |= lanes
		case o := <-ends:
			open := plan.outages > 0
			plan.end(time.Now(), o)
			p.report(ctx, open, plan.outages > 0, o)
		case <-stop:
			plan.stop(time.Now())
			stop = nil
		case <-timer.C:
		}
	}
}

// work makes passes until there are no more jobs.
func (p *Publisher) work(ctx context.Context, loop *heartbeat.Loop, jobs <-chan job, ends chan<- ended) {
	for j := range jobs {
		loop.Beat()
		result, err := p.passes.run(ctx, j.batch, j.lane) // which says what a crash leaves
		loop.Rest()
		ends <- ended{j, result, err}
	}
}

// report logs a failed pass, and a change of the breaker.
func (p *Publisher) report(ctx context.Context, was, is bool, o ended) {
	if o.failure != nil && !errors.Is(o.failure, context.Canceled) { // StopTimeout ended during a claim
		p.log.ErrorContext(ctx, "outbox: pass failed", "err", o.failure)
	}
	switch {
	case was == is:
		return
	case is:
		p.log.ErrorContext(ctx, "outbox: broker unavailable, publishing pauses", "err", o.err)
	default:
		p.log.InfoContext(ctx, "outbox: broker available again")
	}
	p.passes.metrics.breakerIs(ctx, is)
}

// RunOnce makes one pass over at most batch events, and as many that were set aside: claim,
// publish, settle. When ctx ends, it hands nothing more to the broker and stops waiting for
// answers. Events that were acknowledged by then are still settled.
func (p *Publisher) RunOnce(ctx context.Context, batch int) (Result, error) {
	return p.passes.run(ctx, batch, AnyLane)
}

// Stuck returns an error that names every worker in one pass for three times as long as a
// lease. Such a worker does not recover by itself, so the process should be restarted. A
// pass that fails, because the database or the broker is unavailable, still ends.
func (p *Publisher) Stuck() error { return heartbeat.Check(p.loops...) }

// after returns a context that ends d after ctx has ended.
func after(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	later, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		sleep(later, d)
		cancel()
	})
	return later, func() { stop(); cancel() }
}

// Drain publishes until only blocked aggregates and the lanes of other publishers are left,
// and returns how many events it published. It stops at the first pass that fails and
// returns its error. If ctx ends, Drain settles the current pass, as Run does, and returns
// the error of ctx.
func (p *Publisher) Drain(ctx context.Context) (published int, err error) {
	grace, cancel := after(ctx, p.cfg.StopTimeout)
	defer cancel()
	for ctx.Err() == nil {
		result, err := p.RunOnce(grace, p.cfg.Batch)
		published += result.Published
		if err != nil || !result.Claimed {
			return published, err
		}
		if result.outage() {
			return published, result.err
		}
	}
	return published, ctx.Err()
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
