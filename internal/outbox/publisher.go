package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/telemetry/heartbeat"
)

// Publisher publishes the events of the outbox. One goroutine dispatches passes to workers.
type Publisher struct {
	store   Store
	broker  Broker
	cfg     Config
	log     *slog.Logger
	tracer  trace.Tracer // nil if there is no tracing
	events  metric.Int64Counter
	delay   metric.Float64Histogram
	breaker metric.Int64Gauge
	loops   []*heartbeat.Loop // one per worker; it rests while the worker has no pass
	wakeUps chan laneSet      // holds at most one set: the woken lanes that the dispatcher has not taken yet
}

// New makes a publisher.
func New(store Store, broker Broker, cfg Config, log *slog.Logger, meter metric.Meter) (*Publisher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.WithDefaults()
	p := &Publisher{store: store, broker: broker, cfg: cfg, log: log, wakeUps: make(chan laneSet, 1)}
	if cfg.Tracing != nil {
		p.tracer = cfg.Tracing.Tracer("example.com/videocatalog/internal/outbox")
	}
	for i := range cfg.Workers {
		p.loops = append(p.loops, heartbeat.New(fmt.Sprintf("outbox: worker %d", i), cfg.Lease)) // a pass ends with its lease
	}
	if err := p.instrument(meter); err != nil {
		return nil, err
	}
	return p, nil
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
// until the outbox is empty, a pass fails, or the broker is unavailable: see
// Config.StopTimeout. So the last commits do not wait for another process. Call Run once.
func (p *Publisher) Run(ctx context.Context) error {
	grace, cancel := after(ctx, p.cfg.StopTimeout)
	defer cancel()
	jobs, ends := make(chan job), make(chan ended)
	defer close(jobs)
	for _, loop := range p.loops {
		go p.work(grace, loop, jobs, ends)
	}
	p.dispatch(ctx, jobs, ends)
	return nil
}

// dispatch starts passes until ctx has ended, the plan has stopped and every pass has
// ended. A crash loses the plan and no event: every event is pending in the database until
// its settlement, and polls of any process find it there.
func (p *Publisher) dispatch(ctx context.Context, jobs chan<- job, ends <-chan ended) {
	plan, stop := newPlan(p.cfg, time.Now()), ctx.Done()
	for {
		j, wait := plan.next(time.Now())
		if wait == 0 {
			jobs <- j // does not block: a worker is idle
			continue
		}
		if plan.stopped() {
			return
		}
		select {
		case lanes := <-p.wakeUps:
			// After a crash here, or before Wake, the next poll finds the event.
			plan.woken |= lanes
		case e := <-ends:
			// The pass is settled, or its lane is leased until another process may take it.
			wasOpen := plan.open
			plan.end(time.Now(), e)
			p.report(ctx, e, wasOpen, plan.open)
		case <-stop:
			plan.stop(time.Now())
			stop = nil
		case <-time.After(wait):
		}
	}
}

// work makes passes until there are no more jobs. See RunOnce for a crash in a pass.
func (p *Publisher) work(ctx context.Context, loop *heartbeat.Loop, jobs <-chan job, ends chan<- ended) {
	for j := range jobs {
		loop.Beat()
		result, err := p.RunOnce(ctx, j.lane, j.batch)
		loop.Rest()
		ends <- ended{j, result, err}
	}
}

// report logs a failed pass, and a change of the breaker.
func (p *Publisher) report(ctx context.Context, e ended, wasOpen, open bool) {
	if e.failure != nil && !errors.Is(e.failure, context.Canceled) { // StopTimeout ended during a claim
		p.log.ErrorContext(ctx, "outbox: pass failed", "err", e.failure)
	}
	if wasOpen == open || ctx.Err() != nil { // at shutdown we do not wait for all responses
		return
	}
	if open {
		p.log.ErrorContext(ctx, "outbox: broker unavailable, publishing pauses", "err", e.Outage)
		p.breaker.Record(ctx, 1)
	} else {
		p.log.InfoContext(ctx, "outbox: broker available again")
		p.breaker.Record(ctx, 0)
	}
}

// Stuck returns an error that names every worker whose pass has taken longer than three leases.
// Such a worker does not recover by itself, so the process should be restarted. A
// pass that fails, because the database or the broker is unavailable, still ends.
func (p *Publisher) Stuck() error { return heartbeat.Check(p.loops...) }

// after returns a context that ends d after ctx has ended.
func after(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	later, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(d, cancel) })
	return later, func() { stop(); cancel() }
}
