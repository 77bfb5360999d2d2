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

// Publisher empties the outbox.
type Publisher struct {
	cfg      Config
	log      *slog.Logger
	schedule *schedule
	passes   *passes
	loops    []*heartbeat.Loop // one per worker, which rests while it is idle
	anyLoop  *heartbeat.Loop   // of all workers: one of them polls every PollInterval
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
	// A pass ends with its lease, and one of the pauses comes on top.
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

// Wake wakes a worker after the commit of an event of an aggregate; the zero
// Aggregate means any. It never blocks, and is safe for concurrent use, also when
// Run is not running.
func (p *Publisher) Wake(aggregate envelope.Aggregate) { p.schedule.wake(aggregate) }

// Run publishes until ctx is done. Then it goes on until the outbox is empty or
// the broker is unavailable, for at most Config.StopTimeout, so that the last
// commits do not wait for another process; settles, and returns nil. Call it once.
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

// RunOnce makes one pass over at most batch events, and as many that were set
// aside: claim, publish, settle. When ctx ends it hands nothing more to the broker
// and waits for it no longer. Events that were acknowledged by then are settled
// all the same.
func (p *Publisher) RunOnce(ctx context.Context, batch int) (Result, error) {
	return p.passes.run(ctx, batch, envelope.Aggregate{})
}

// Stuck returns an error when a worker is in a pass for three times as long as
// it may take, or none has made a pass for as long: none ever will, and the
// process should be restarted. Passes that fail, because the database or the
// broker is unavailable, are passes.
func (p *Publisher) Stuck() error { return errors.Join(p.anyLoop.Check(), heartbeat.Check(p.loops...)) }

// after returns a context that ends a while after ctx.
func after(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	later, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		sleep(later, d)
		cancel()
	})
	return later, func() { stop(); cancel() }
}

// Drain publishes until nothing is left but blocked aggregates and what other
// publishers have in hand, and returns how many events that were. The error is
// that of the first pass that failed, or ctx's when it ended before; the pass
// in hand is then settled, as by Run.
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

// work makes passes while there is work, and waits while there is none. Once ctx
// is done it ends after a poll of all lanes that finds nothing. It begins no pass
// when begin is done.
func (p *Publisher) work(ctx, begin context.Context, loop *heartbeat.Loop) {
	defer loop.Rest()
	failures, woken := 0, false
	var of envelope.Aggregate // of which lane the next pass is; the zero Aggregate: of any
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

// pass makes one pass. Its time ends with StopTimeout, of which begin is the first
// half: the second half is for the answers to the last pass.
func (p *Publisher) pass(begin context.Context, batch int, of envelope.Aggregate) (Result, error) {
	grace, cancel := after(begin, p.cfg.StopTimeout/2)
	defer cancel()
	result, err := p.passes.run(grace, batch, of)
	if err != nil && !errors.Is(err, context.Canceled) { // a claim that was told to stop
		p.log.ErrorContext(grace, "outbox: pass failed", "err", err)
	}
	return result, err
}

// report tells the breaker how a pass went.
func (p *Publisher) report(ctx context.Context, batch int, result Result) {
	switch opened, closed := p.schedule.breaker.report(time.Now(), batch, result); {
	case opened:
		p.log.ErrorContext(ctx, "outbox: broker is away, publishing pauses", "err", result.err)
	case closed:
		p.log.InfoContext(ctx, "outbox: broker is back")
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

// backoff is the pause after the n-th failure: drawn from the upper half of a
// range that doubles each time, so that many who failed together do not come
// back together, and none comes back at once.
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
