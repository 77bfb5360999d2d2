package consumer

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/googleapis/gax-go/v2"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"example.com/videocatalog/internal/telemetry/heartbeat"
)

// Input is what a receiver consumes.
type Input struct {
	Source Source
	// Consumer is the name in the inbox and the quarantine; no other receiver may have
	// the same. Under a new name every event is new.
	Consumer string
	// Handlers has a handler per aggregate type. A message of any other type is
	// acknowledged.
	Handlers Handlers
}

// Receiver applies the events of a subscription, through their handlers.
type Receiver struct {
	Input
	cfg        Config
	quarantine Quarantine
	log        *slog.Logger
	metrics    *metrics
	tracer     trace.Tracer
	loops      []*heartbeat.Loop // one per worker
	unhandled  rate.Sometimes    // when a message without a handler is logged
}

// New makes a receiver of a subscription.
func New(cfg Config, from Input, quarantine Quarantine, log *slog.Logger, meter metric.Meter) (*Receiver, error) {
	if from.Consumer == "" {
		return nil, fmt.Errorf("subscription %s has no consumer name", from.Source)
	}
	for aggregateType, handler := range from.Handlers {
		if handler.apply == nil {
			return nil, fmt.Errorf("the handler of %q is empty: make it with Handle", aggregateType)
		}
	}
	cfg = cfg.WithDefaults()
	cfg.Permits = cmp.Or(cfg.Permits, semaphore.NewWeighted(int64(cfg.Workers)))
	m, err := newMetrics(meter)
	if err != nil {
		return nil, err
	}
	c := &Receiver{Input: from, cfg: cfg, quarantine: quarantine, log: log, metrics: m, unhandled: rate.Sometimes{Interval: time.Minute}}
	c.tracer = cmp.Or[trace.TracerProvider](cfg.Tracing, noop.NewTracerProvider()).Tracer("example.com/videocatalog/internal/consumer")
	for i := range cfg.Workers {
		c.loops = append(c.loops, heartbeat.New(fmt.Sprintf("consumer %s: worker %d", from.Consumer, i), cfg.TransactionTimeout+longestPause))
	}
	return c, nil
}

// Stuck returns an error if one store call of a worker takes three times as long as it may.
// Such a worker does not recover by itself, so the process should be restarted. Calls that
// fail because the database is unavailable do return, so they are not stuck.
func (c *Receiver) Stuck() error { return heartbeat.Check(c.loops...) }

// run holds what the goroutines of one Run share.
type run struct {
	*Receiver

	// stopping ends when Run is told to stop. The source then receives nothing more, and a
	// message that fails is given back instead of tried again.
	stopping context.Context
	// work ends when nothing is in hand, or when the time to stop is over: the rest is then
	// given back. Every store call uses it.
	work context.Context

	queue chan *delivery      // from the source to the worker that collects
	turn  *semaphore.Weighted // of the worker that collects
}

// Run receives until ctx ends. It then returns nil, once the messages in hand are settled
// or Config.StopTimeout is over. If the subscription fails or does not exist, Run logs that
// and tries again. Do not call Run while it is running.
//
// After a crash at any point, the broker delivers every unacknowledged message again. A
// message whose transaction was committed is then a duplicate.
func (c *Receiver) Run(ctx context.Context) error {
	work, endWork := context.WithCancel(context.WithoutCancel(ctx))
	defer endWork()
	r := &run{Receiver: c, stopping: ctx, work: work, queue: make(chan *delivery), turn: semaphore.NewWeighted(1)}
	var workers sync.WaitGroup
	for _, loop := range c.loops {
		workers.Go(func() { r.applyBatches(loop) })
	}
	received := make(chan struct{})
	go func() {
		defer close(received)
		r.receive()
	}()

	<-ctx.Done()
	// In the last fifth, the store rolls back and the client sends its nacks.
	lastCall := time.AfterFunc(c.cfg.StopTimeout*4/5, endWork)
	defer lastCall.Stop()
	select {
	case <-received: // every message has its verdict
	case <-time.After(c.cfg.StopTimeout):
		// The client waits for an unavailable broker. Its goroutines end when its owner
		// closes it, or at most half a minute later if they are in a pause between two
		// attempts. Whatever they still pass to r.handle is given back immediately.
		c.log.WarnContext(ctx, "consumer: the client did not stop in time, its last acks may be lost", "subscription", c.Source.String())
	}
	endWork()
	workers.Wait()
	return nil
}

// receive receives until the receiver is stopped. If the broker refuses, receive tries
// again.
func (r *run) receive() {
	pauses := newPauses(longestPause)
	for r.stopping.Err() == nil {
		start := time.Now()
		err := r.Source.Receive(r.stopping, r.handle)
		if r.stopping.Err() != nil {
			return
		}
		if time.Since(start) > longestPause {
			pauses = newPauses(longestPause)
		}
		pause := pauses.Pause()
		r.metrics.countFailure(r.work, failedReceive)
		r.log.ErrorContext(r.work, "consumer: cannot receive, trying again", "subscription", r.Source.String(), "retry_in_ms", pause.Milliseconds(), "err", err)
		_ = gax.Sleep(r.stopping, pause)
	}
}

// newPauses returns random pauses whose limit doubles from firstPause to longest. So callers
// that failed together do not come back together.
func newPauses(longest time.Duration) gax.Backoff {
	return gax.Backoff{Initial: firstPause, Max: longest}
}
