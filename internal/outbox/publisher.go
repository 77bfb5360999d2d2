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

	// wake has a token per worker that should look at the outbox now.
	wake chan struct{}
	// sentry is held by the one idle worker that watches the clock.
	sentry chan struct{}
	// worked has a token when a worker became idle that had work.
	worked chan struct{}
	// pause is how long the sentry waits; owned by who holds sentry.
	pause time.Duration
	// busy is how many workers are in a pass.
	busy atomic.Int32
	// missed: a worker was nudged and found nothing while others were in a
	// pass. The event may be in the lane of one of them, whose claim came before.
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
		wake:    make(chan struct{}, cfg.Workers),
		sentry:  make(chan struct{}, 1),
		worked:  make(chan struct{}, 1),
		pause:   minPause,
	}, nil
}

// Nudge says that an event was committed. It never blocks and may be called
// from anywhere, also when Run is not running.
func (p *Publisher) Nudge() {
	select {
	case p.wake <- struct{}{}:
	default: // every worker has a reason to look already
	}
}

// Run publishes until ctx is done. Then it goes on until the outbox is empty
// or the broker is away, for at most Config.StopTimeout, so that what was
// committed last does not wait for another process; settles, and answers nil.
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

// Stuck answers an error when a worker is in a pass for three times as long as
// it may take, or none has made a pass for as long: none ever will, and the
// process should be started anew. Passes that fail, because the database or the
// broker is away, are passes.
func (p *Publisher) Stuck() error { return errors.Join(p.passes.Check(), heartbeat.Check(p.loops...)) }

// after answers a context that ends a while after ctx.
func after(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	later, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		sleep(later, d)
		cancel()
	})
	return later, func() { stop(); cancel() }
}

// Drain publishes until nothing is left but blocked aggregates and what other
// publishers have in hand, and answers how many events that were. The error is
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
// ctx is done it ends where it would wait, begins no pass when begin is done,
// and gives up the one in hand when grace is.
func (p *Publisher) work(ctx, begin, grace context.Context, loop *heartbeat.Loop) {
	defer loop.Rest()
	failures, worked, nudged := 0, false, false
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
		start, others := time.Now(), p.busy.Add(1)-1
		result, err := p.RunOnce(grace, batch)
		p.busy.Add(-1)
		if err != nil && !errors.Is(err, context.Canceled) { // a claim that was told to stop
			p.log.ErrorContext(ctx, "outbox: pass failed", "err", err)
		}
		if ctx.Err() != nil && (err != nil || !result.Claimed || result.outage()) {
			return
		}
		if opened, closed := p.breaker.report(time.Now(), batch, result); opened {
			p.log.ErrorContext(ctx, "outbox: broker is away, publishing pauses", "err", result.err)
		} else if closed {
			p.log.InfoContext(ctx, "outbox: broker is back")
			p.wakeAll()
		}
		switch {
		case err != nil:
			failures++
			sleep(ctx, backoff(failures, minPause, maxPause))
		case p.again(result, nudged, others > 0, time.Since(start)):
			failures, worked = 0, worked || result.Claimed
		default:
			nudged = p.idle(ctx, worked || result.Claimed, loop)
			failures, worked = 0, false
		}
	}
}

// again tells whether a worker looks once more after a pass, or waits until it
// is called. Called by the clock it looks until there is nothing. Called by a
// nudge, which is about one event, it has mostly done its work with one pass:
// to look again after each would double the load of the database. What that may
// miss waits for minPause, the first pause of the sentry.
func (p *Publisher) again(result Result, nudged, others bool, took time.Duration) bool {
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
		// A long pass: more has come, and its nudges may be lost while every worker is busy.
		return !nudged || p.missed.Swap(false) || took > minPause
	}
}

const (
	// minPause is the first pause of the sentry, and after a pass or a settlement that failed.
	minPause = 5 * time.Millisecond
	// maxPause is the longest pause after a pass that failed.
	maxPause = 5 * time.Second
)

// idle waits until there may be work, and tells whether a nudge says so. One of the idle workers is the sentry,
// which also watches the clock, so that an idle process makes one query per
// PollInterval, whatever its workers are. After work the pause doubles from
// minPause: an event of another process often follows the last one closely.
func (p *Publisher) idle(ctx context.Context, worked bool, loop *heartbeat.Loop) (nudged bool) {
	if worked {
		select {
		case p.worked <- struct{}{}:
		default: // the sentry does not know of the last time yet
		}
	}
	loop.Rest()
	select {
	case <-ctx.Done():
		return false
	case <-p.wake:
		return true
	case p.sentry <- struct{}{}:
		defer func() { <-p.sentry }()
		timer := time.NewTimer(p.pause)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return false
			case <-p.wake:
				p.pause = minPause
				return true
			case <-p.worked:
				if p.pause > minPause { // else it ends as soon, and must not be put off again and again
					p.pause = minPause
					timer.Reset(p.pause)
				}
			case <-timer.C:
				p.pause = min(2*p.pause, p.cfg.PollInterval)
				return false
			}
		}
	}
}

func (p *Publisher) wakeAll() {
	for range p.cfg.Workers {
		p.Nudge()
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
