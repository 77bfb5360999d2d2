package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"example.com/videocatalog/internal/telemetry/heartbeat"
)

// Publisher publishes the events of the outbox. Its workers loop: wait for work, claim, publish, settle.
type Publisher struct {
	store   Store
	broker  Broker
	cfg     Config
	log     *slog.Logger
	events  metric.Int64Counter
	breaker metric.Int64Gauge
	loops   []*heartbeat.Loop // one per worker; it rests while the worker has no pass
	waiting chan struct{}     // holds the right to wait for work and claim it, while no worker has it
	changed chan struct{}     // wakes the worker that waits for work, when the pace has changed

	mu   sync.Mutex
	pace *pace // guarded by mu
}

// New makes a publisher.
func New(store Store, broker Broker, cfg Config, log *slog.Logger, meter metric.Meter) (*Publisher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.WithDefaults()
	p := &Publisher{
		store: store, cfg: cfg, log: log, pace: newPace(cfg, time.Now()),
		waiting: make(chan struct{}, 1), changed: make(chan struct{}, 1),
	}
	p.waiting <- struct{}{}
	for i := range cfg.Workers {
		p.loops = append(p.loops, heartbeat.New(fmt.Sprintf("outbox: worker %d", i), cfg.Lease)) // a pass ends with its lease
	}
	if err := p.instrument(broker, meter); err != nil {
		return nil, err
	}
	return p, nil
}

// Wake makes a claim due at once. Call it after the commit of an event. It never blocks and is safe
// for concurrent use, also while Run is not running.
func (p *Publisher) Wake() { p.update((*pace).wake) }

// update changes the pace, and lets the worker that waits look at it again.
func (p *Publisher) update(change func(*pace)) {
	p.mu.Lock()
	change(p.pace)
	p.mu.Unlock()
	select {
	case p.changed <- struct{}{}:
	default: // it has not seen the last change yet
	}
}

// Run publishes until ctx ends, settles, and returns nil. After ctx has ended it continues
// until the outbox is empty, a pass fails, or the broker is unavailable: see
// StopTimeout. So the last commits do not wait for another process. Call Run once.
func (p *Publisher) Run(ctx context.Context) error {
	grace, cancel := after(ctx, StopTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { p.update(func(pace *pace) { pace.stop(time.Now()) }) })()
	var workers sync.WaitGroup
	for _, loop := range p.loops {
		workers.Go(func() { p.work(ctx, grace, loop) })
	}
	workers.Wait()
	return nil
}

// work makes passes until the publisher has stopped. One worker at a time waits for work and claims it. Then the next one
// waits, while this one publishes. With a backlog it need not wait for the claim. See pass for a crash in it.
func (p *Publisher) work(ctx, grace context.Context, loop *heartbeat.Loop) {
	for {
		<-p.waiting
		t, ok := p.await()
		if !ok {
			p.waiting <- struct{}{}
			return
		}
		loop.Beat()
		next := sync.OnceFunc(func() { p.waiting <- struct{}{} })
		slow := time.AfterFunc(time.Second, next) // the connection of a claim may be dead
		if t.rush {
			next()
		}
		result, err := p.pass(grace, t.Limits, func(c Claim) {
			p.update(func(pace *pace) { pace.claimed(c.Full) })
			next()
		})
		p.end(ctx, t, result, err)
		slow.Stop()
		next()
		loop.Rest()
	}
}

// await waits until a claim is due, and begins its pass. ok is false if the publisher has stopped. After a crash here, or
// before Wake, the events are pending in the database, where the polls of any process find them.
func (p *Publisher) await() (t turn, ok bool) {
	for {
		p.mu.Lock()
		now := time.Now()
		wait, stopped := p.pace.wait(now), p.pace.stopped(now)
		if wait == 0 {
			t = p.pace.begin(now)
		}
		p.mu.Unlock()
		if wait == 0 || stopped {
			return t, !stopped
		}
		select {
		case <-p.changed: // an event was committed, a pass has ended, or Run stops
		case <-time.After(wait):
		}
	}
}

// end records the end of a pass. It logs a failure, and a change of the breaker.
func (p *Publisher) end(ctx context.Context, t turn, result Result, failure error) {
	var wasOpen, open bool
	p.update(func(pace *pace) {
		wasOpen = pace.open
		pace.end(time.Now(), t, result, failure)
		if open = pace.open; ctx.Err() == nil { // at shutdown we do not wait for all responses
			p.breaker.Record(ctx, map[bool]int64{true: 1}[open])
		}
	})
	if failure != nil && !errors.Is(failure, context.Canceled) { // StopTimeout ended during a claim
		p.log.ErrorContext(ctx, "outbox: pass failed", "err", failure)
	}
	if wasOpen == open || ctx.Err() != nil {
		return
	}
	if open {
		p.log.ErrorContext(ctx, "outbox: broker unavailable, publishing pauses", "err", result.Outage)
	} else {
		p.log.InfoContext(ctx, "outbox: broker available again")
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
