package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/telemetry/heartbeat"
)

// Publisher publishes the events of the outbox.
type Publisher struct {
	cfg      Config
	log      *slog.Logger
	schedule *schedule
	passes   *passes
	loops    []*heartbeat.Loop // one per worker; it rests while the worker is idle
	anyLoop  *heartbeat.Loop   // of all workers together: one of them polls every PollInterval
}

// New makes a publisher. meter may be nil.
func New(store Store, broker Broker, cfg Config, log *slog.Logger, meter metric.Meter) (*Publisher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.WithDefaults()
	schedule := newSchedule(cfg)
	m, err := newMetrics(meter, schedule.breaker.isOpen)
	if err != nil {
		return nil, err
	}
	var tracer trace.Tracer
	if cfg.Tracing != nil {
		tracer = cfg.Tracing.Tracer("example.com/videocatalog/internal/outbox")
	}
	full := func() { schedule.wake(envelope.Aggregate{}) }
	// A pass ends with its lease, and one of the pauses may come on top.
	interval := cfg.Lease + max(cfg.PollInterval, cfg.ProbeInterval, maxPause)
	loops := make([]*heartbeat.Loop, cfg.Workers)
	for i := range loops {
		loops[i] = heartbeat.New(fmt.Sprintf("outbox: worker %d", i), interval)
	}
	return &Publisher{
		cfg: cfg, log: log, schedule: schedule,
		passes:  &passes{store: store, broker: broker, cfg: cfg, log: log, metrics: m, tracer: tracer, full: full},
		loops:   loops,
		anyLoop: heartbeat.New("outbox: any worker", interval),
	}, nil
}

// Wake wakes a worker after the commit of an event of an aggregate. The zero Aggregate
// means any lane. It never blocks and is safe for concurrent use, also while Run is not
// running.
func (p *Publisher) Wake(aggregate envelope.Aggregate) { p.schedule.wake(aggregate) }

// Run publishes until ctx ends, settles, and returns nil. After ctx has ended it continues
// until the outbox is empty or the broker is unavailable, for at most Config.StopTimeout.
// So the last commits do not wait for another process. Call Run once.
func (p *Publisher) Run(ctx context.Context) error {
	begin, cancel := after(ctx, p.cfg.StopTimeout/2)
	defer cancel()
	var workers sync.WaitGroup
	for _, loop := range p.loops {
		workers.Go(func() { p.work(ctx, begin, loop) })
	}
	workers.Wait()
	p.anyLoop.Rest()
	return nil
}

// RunOnce makes one pass over at most batch events, and as many that were set aside: claim,
// publish, settle. When ctx ends, it hands nothing more to the broker and stops waiting for
// answers. Events that were acknowledged by then are still settled.
func (p *Publisher) RunOnce(ctx context.Context, batch int) (Result, error) {
	return p.passes.run(ctx, batch, AnyLane)
}

// Stuck returns an error if a worker is in one pass for three times as long as it may take.
// It also returns one if no worker has made a pass for that long. Neither recovers by
// itself, so the process should be restarted. A pass that fails, because the database or
// the broker is unavailable, still counts as a pass.
func (p *Publisher) Stuck() error { return errors.Join(p.anyLoop.Check(), heartbeat.Check(p.loops...)) }

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

// work makes passes while there is work, and waits while there is none. After ctx has
// ended, it stops when a poll of all lanes finds nothing. It starts no pass after begin has
// ended.
func (p *Publisher) work(ctx, begin context.Context, loop *heartbeat.Loop) {
	defer loop.Rest()
	failures, woken := 0, false
	var of envelope.Aggregate // the next pass claims the lane of this aggregate; zero means any lane
	for begin.Err() == nil {
		loop.Beat()
		p.anyLoop.Beat()
		batch, wait := p.schedule.breaker.allow(time.Now())
		if wait > 0 {
			if ctx.Err() != nil {
				return
			}
			sleep(ctx, wait)
			continue
		}
		polled := of == envelope.Aggregate{}
		others := p.schedule.begin()
		result, err := p.pass(begin, batch, of)
		p.schedule.end(polled, result)
		of = envelope.Aggregate{}
		if ctx.Err() != nil && (err != nil || (polled && !result.Claimed) || result.outage()) {
			return
		}
		p.report(ctx, batch, result)
		switch {
		case err != nil:
			failures++
			sleep(ctx, backoff(failures, minPause, maxPause))
		case p.schedule.again(result, woken, others):
			failures = 0
		default:
			loop.Rest()
			of, woken = p.schedule.wait(ctx)
			failures = 0
		}
	}
}

// pass makes one pass. begin covers the first half of StopTimeout, and the pass may use the
// second half to wait for answers.
func (p *Publisher) pass(begin context.Context, batch int, of envelope.Aggregate) (Result, error) {
	grace, cancel := after(begin, p.cfg.StopTimeout/2)
	defer cancel()
	lane := AnyLane
	if of != (envelope.Aggregate{}) {
		lane = Lane(of)
	}
	result, err := p.passes.run(grace, batch, lane)
	if err != nil && !errors.Is(err, context.Canceled) { // ctx ended during a claim
		p.log.ErrorContext(grace, "outbox: pass failed", "err", err)
	}
	return result, err
}

// report passes the result of a pass to the breaker, and logs a change.
func (p *Publisher) report(ctx context.Context, batch int, result Result) {
	switch opened, closed := p.schedule.breaker.report(time.Now(), batch, result); {
	case opened:
		p.log.ErrorContext(ctx, "outbox: broker unavailable, publishing pauses", "err", result.err)
	case closed:
		p.log.InfoContext(ctx, "outbox: broker available again")
		p.schedule.wakeAll()
	}
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// backoff returns a random pause after the n-th failure. It is from the upper half of a
// limit that doubles each time. So workers that failed together do not come back together,
// and none comes back immediately.
func backoff(n int, shortest, longest time.Duration) time.Duration {
	d := shortest
	for range n - 1 {
		if d *= 2; d >= longest {
			d = longest
			break
		}
	}
	return d/2 + rand.N(d/2+1)
}
