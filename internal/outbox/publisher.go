package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/telemetry/heartbeat"
)

// Publisher empties the outbox.
type Publisher struct {
	store   Store
	broker  Broker
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	breaker *breaker
	tracer  trace.Tracer      // nil: none
	loops   []*heartbeat.Loop // one per worker, which rests while it is idle
	passes  *heartbeat.Loop   // of all workers: one of them looks every PollInterval

	// wake has an entry per worker that should look at the outbox now: at the
	// lane of that aggregate, or at all of them.
	wake chan envelope.Aggregate
	// sentry is held by the one idle worker that watches the clock.
	sentry chan struct{}
	clock  *clock
	// sooner has a token when the clock was set forward.
	sooner chan struct{}
	// busy is how many workers are in a pass.
	busy atomic.Int32
	// missed: who ends a pass should look at all lanes. A worker was nudged and
	// found nothing while others were in a pass, and the event may be in the lane
	// of one of them, whose claim came before; or a nudge had no place.
	missed atomic.Bool
}

// New makes a publisher. meter may be nil.
func New(store Store, broker Broker, cfg Config, log *slog.Logger, meter metric.Meter) (*Publisher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.WithDefaults()
	breaker := &breaker{max: cfg.ProbeInterval, batch: cfg.Batch}
	m, err := newMetrics(meter, breaker.isOpen)
	if err != nil {
		return nil, err
	}
	var tracer trace.Tracer
	if cfg.Tracing != nil {
		tracer = cfg.Tracing.Tracer("example.com/videocatalog/internal/outbox")
	}
	// A pass ends with its lease, and one of the pauses comes on top.
	interval := cfg.Lease + max(cfg.PollInterval, cfg.ProbeInterval, maxPause)
	loops := make([]*heartbeat.Loop, cfg.Workers)
	for i := range loops {
		loops[i] = heartbeat.New(fmt.Sprintf("outbox: worker %d", i), interval)
	}
	return &Publisher{
		store: store, broker: broker, cfg: cfg, log: log, metrics: m, tracer: tracer, loops: loops,
		passes:  heartbeat.New("outbox: any worker", interval),
		breaker: breaker,
		wake:    make(chan envelope.Aggregate, cfg.Workers),
		sentry:  make(chan struct{}, 1),
		sooner:  make(chan struct{}, 1),
		clock:   newClock(cfg.PollInterval),
	}, nil
}

// Nudge says that an event of an aggregate was committed; of the zero
// Aggregate, that there may be something anywhere. It never blocks and may be
// called from anywhere, also when Run is not running.
func (p *Publisher) Nudge(aggregate envelope.Aggregate) {
	select {
	case p.wake <- aggregate:
	default: // every worker has a reason to look already, but perhaps elsewhere
		p.missed.Store(true)
		p.hasten()
	}
}

// Run publishes until ctx is done. Then it goes on until the outbox is empty
// or the broker is away, for at most Config.StopTimeout, so that what was
// committed last does not wait for another process; settles, and returns nil.
// It must be called once.
func (p *Publisher) Run(ctx context.Context) error {
	grace, cancel := after(ctx, p.cfg.StopTimeout)
	defer cancel()
	// The last pass has the other half for its answers: what is not answered is published again.
	begin, cancel := after(ctx, p.cfg.StopTimeout/2)
	defer cancel()
	var workers sync.WaitGroup
	for _, loop := range p.loops {
		workers.Go(func() { p.work(ctx, begin, grace, loop) })
	}
	workers.Wait()
	p.passes.Rest()
	return nil
}

// Stuck returns an error when a worker is in a pass for three times as long as
// it may take, or none has made a pass for as long: none ever will, and the
// process should be started anew. Passes that fail, because the database or the
// broker is away, are passes.
func (p *Publisher) Stuck() error { return errors.Join(p.passes.Check(), heartbeat.Check(p.loops...)) }

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

// work makes passes while there is work, and waits while there is none. Once
// ctx is done it ends after a look at all lanes that finds nothing, begins no
// pass when begin is done, and gives up the one in hand when grace is.
func (p *Publisher) work(ctx, begin, grace context.Context, loop *heartbeat.Loop) {
	defer loop.Rest()
	failures, nudged := 0, false
	var about envelope.Aggregate // what the nudge was about
	for begin.Err() == nil {
		loop.Beat()
		p.passes.Beat()
		batch, wait := p.breaker.allow(time.Now())
		if wait > 0 {
			if ctx.Err() != nil {
				return
			}
			sleep(ctx, wait)
			continue
		}
		all := about == envelope.Aggregate{}
		others := p.busy.Add(1) - 1
		result, err := p.pass(grace, batch, about)
		p.busy.Add(-1)
		about = envelope.Aggregate{}
		if err != nil && !errors.Is(err, context.Canceled) { // a claim that was told to stop
			p.log.ErrorContext(ctx, "outbox: pass failed", "err", err)
		}
		if ctx.Err() != nil && (err != nil || (all && !result.Claimed) || result.outage()) {
			return
		}
		if opened, closed := p.breaker.report(time.Now(), batch, result); opened {
			p.log.ErrorContext(ctx, "outbox: broker is away, publishing pauses", "err", result.err)
		} else if closed {
			p.log.InfoContext(ctx, "outbox: broker is back")
			p.wakeAll()
		}
		// What other processes write goes on where a look at all lanes found something, and the lane of a nudge
		// that was in vain may be in the hands of one.
		found, inVain := all && result.Claimed, !all && !result.Claimed
		if found || inVain || result.left {
			p.hasten()
		}
		switch {
		case err != nil:
			failures++
			sleep(ctx, backoff(failures, minPause, maxPause))
		case p.again(result, nudged, others > 0):
			failures = 0
		default:
			about, nudged = p.idle(ctx, loop)
			failures = 0
		}
	}
}

// again tells whether a worker looks once more after a pass, at all lanes, or
// waits until it is called. Called by the clock it looks until there is nothing.
// Called by a nudge, which is about one event, it has mostly done its work with
// one pass: to look again after each would double the load of the database.
func (p *Publisher) again(result Result, nudged, others bool) bool {
	switch {
	case !result.Claimed && nudged && others:
		// Somebody's pass began before us, perhaps in the lane of the event that we
		// were called for: who is last in a pass looks for it. Whoever ends one
		// reads missed after busy, we write it before, so one of us sees the other.
		p.missed.Store(true)
		return p.busy.Load() == 0 && p.missed.Swap(false)
	case !result.Claimed:
		return false
	default:
		return !nudged || p.missed.Swap(false)
	}
}

// idle waits until there may be work, and tells whether a nudge says so, and
// what that is about. One of the idle workers is the sentry, which also watches
// the clock, so that an idle process makes one query per PollInterval, whatever
// its workers are. Nudges that never cease put a look that is due off by some
// passes: which is heard first is drawn by lot.
func (p *Publisher) idle(ctx context.Context, loop *heartbeat.Loop) (about envelope.Aggregate, nudged bool) {
	loop.Rest()
	select {
	case <-ctx.Done():
		return about, false
	case about = <-p.wake:
		return about, true
	case p.sentry <- struct{}{}:
		defer func() { <-p.sentry }()
		timer := time.NewTimer(p.clock.wait())
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return about, false
			case about = <-p.wake:
				return about, true
			case <-p.sooner:
				timer.Reset(p.clock.wait())
			case <-timer.C:
				p.clock.rang()
				return about, false
			}
		}
	}
}

// hasten makes the next look at all lanes come after minPause.
func (p *Publisher) hasten() {
	p.clock.soon()
	select {
	case p.sooner <- struct{}{}:
	default: // the sentry does not know of the last time yet
	}
}

func (p *Publisher) wakeAll() {
	for range p.cfg.Workers {
		p.Nudge(envelope.Aggregate{})
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
