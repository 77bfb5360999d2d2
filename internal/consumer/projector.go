package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/googleapis/gax-go/v2"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"

	"example.com/videocatalog/internal/telemetry/heartbeat"
)

// Projector applies the events of its sources, through their handlers.
type Projector struct {
	cfg        Config
	sources    []*source
	quarantine Quarantine
	log        *slog.Logger
	metrics    *metrics
	unhandled  unhandled
	tracer     trace.Tracer      // nil if there is no tracing
	loops      []*heartbeat.Loop // one per worker
}

// New makes a projector for sources. Each source has one of the workers for itself, so a slow
// one holds up no other; they share the rest. There must be as many workers as sources. meter
// may be nil.
func New(cfg Config, sources []Source, quarantine Quarantine, log *slog.Logger, meter metric.Meter) (*Projector, error) {
	made := make([]*source, len(sources))
	for i, s := range sources {
		if subscriber, ok := s.Subscriber.(*pubsub.Subscriber); ok {
			subscriber.ReceiveSettings = cfg.WithDefaults().receiveSettings()
		}
		made[i] = newSource(s)
	}
	if err := errors.Join(cfg.Validate(), checkSources(made, cfg.WithDefaults().Workers)); err != nil {
		return nil, err
	}
	m, err := newMetrics(meter)
	if err != nil {
		return nil, err
	}
	p := &Projector{
		cfg: cfg.WithDefaults(), sources: made, quarantine: quarantine, log: log, metrics: m, unhandled: unhandled{logged: make(map[string]time.Time)},
	}
	if cfg.Tracing != nil {
		p.tracer = cfg.Tracing.Tracer("example.com/videocatalog/internal/consumer")
	}
	for i := range p.cfg.Workers {
		p.loops = append(p.loops, heartbeat.New(fmt.Sprintf("consumer: worker %d", i), p.cfg.TransactionTimeout+p.cfg.RetryMax))
	}
	return p, nil
}

// Stuck returns an error if a worker is in one store call for three times as long as it may
// take. It also returns one if the client has stopped, and was not restarted within three
// times the longest pause. Neither recovers by itself, so the process should be restarted.
// Calls that fail because the database is unavailable do return, so they are not stuck. A
// client that receives nothing is not stuck either: there may be no messages.
func (p *Projector) Stuck() error {
	loops := slices.Clone(p.loops)
	for _, s := range p.sources {
		loops = append(loops, s.receiving)
	}
	return heartbeat.Check(loops...)
}

// run holds what the goroutines of one Run share.
type run struct {
	*Projector

	// stopping ends when Run is told to stop. The client then stops pulling, and a message
	// that fails is given back instead of tried again.
	stopping context.Context
	// work ends when nothing is in hand, or when the time to stop is over: the rest is then
	// given back. Every store call uses it.
	work context.Context

	batches chan []*delivery // from the collectors to the workers that the sources share
	checks  chan struct{}    // holds a token per ack whose result is awaited
}

// Run projects until ctx ends. It then returns nil, once the messages in hand are settled
// or Config.StopTimeout is over. If a subscription fails or does not exist, Run logs that
// and tries again. Do not call Run while it is running.
//
// After a crash at any point, the broker delivers every unacknowledged message again. A
// message whose transaction was committed is then a duplicate.
func (p *Projector) Run(ctx context.Context) error {
	work, endWork := context.WithCancel(context.WithoutCancel(ctx))
	defer endWork()
	r := &run{
		Projector: p,
		stopping:  ctx,
		work:      work,
		batches:   make(chan []*delivery),
		checks:    make(chan struct{}, p.cfg.MaxOutstandingMessages),
	}
	var workers sync.WaitGroup
	for i, loop := range p.loops {
		batches := r.batches
		if i < len(p.sources) {
			batches = p.sources[i].batches
		}
		workers.Go(func() { r.apply(batches, loop) })
	}
	for _, s := range p.sources {
		workers.Go(func() { r.collect(s) })
	}
	received := make(chan struct{})
	go func() {
		defer close(received)
		var receivers sync.WaitGroup
		for _, s := range p.sources {
			receivers.Go(func() { r.receive(s) })
		}
		receivers.Wait()
	}()

	<-ctx.Done()
	// In the last fifth, the store rolls back and the client sends its nacks.
	lastCall := time.AfterFunc(p.cfg.StopTimeout*4/5, endWork)
	defer lastCall.Stop()
	select {
	case <-received: // every callback has returned, too
	case <-time.After(p.cfg.StopTimeout):
		// The client waits for an unavailable broker. Its goroutines end when its owner
		// closes it, or at most half a minute later if they are in a pause between two
		// attempts. Whatever they still pass to r.handle is given back immediately.
		p.log.WarnContext(ctx, "consumer: the client did not stop in time, its last acks may be lost")
	}
	for range cap(r.checks) {
		r.checks <- struct{}{} // takes every token, so all checks have ended; lastCall ends those that still wait
	}
	endWork()
	workers.Wait()
	return nil
}

// RetrySoon limits the client's pauses to one second between attempts to open a stream,
// acknowledge, or extend a lease. The client's own pauses grow to a minute. So it would
// still sleep when the broker is back, and a broker that waits for acks sends nothing.
// Which errors are retried, and for how long in total, does not change. Call RetrySoon
// before anything is received.
func RetrySoon(client *pubsub.Client) {
	soon := func(again ...codes.Code) gax.CallOption { // the client's own codes
		return gax.WithRetry(func() gax.Retryer {
			return gax.OnCodes(again, gax.Backoff{Initial: 100 * time.Millisecond, Max: time.Second, Multiplier: 2})
		})
	}
	options := client.SubscriptionAdminClient.CallOptions
	options.StreamingPull = append(options.StreamingPull,
		soon(codes.DeadlineExceeded, codes.ResourceExhausted, codes.Aborted, codes.Internal, codes.Unavailable))
	options.Acknowledge = append(options.Acknowledge, soon(codes.Unavailable))
	options.ModifyAckDeadline = append(options.ModifyAckDeadline, soon(codes.Unavailable))
}

// receiveRetryMax is the longest pause before the client is restarted.
const receiveRetryMax = 5 * time.Second

// receive lets the client pull messages of a source until the projector is stopped. The
// client reconnects by itself. It gives up when the broker refuses, for example because the
// subscription does not exist; receive then restarts it.
func (r *run) receive(s *source) {
	loop := s.receiving
	defer loop.Rest()
	for failures := 0; r.stopping.Err() == nil; failures++ {
		loop.Rest() // while the client runs
		start := time.Now()
		err := s.Receive(r.stopping, func(ctx context.Context, msg *pubsub.Message) { r.handle(ctx, s, msg) })
		loop.Beat()
		if r.stopping.Err() != nil {
			return
		}
		if time.Since(start) > receiveRetryMax {
			failures = 0
		}
		pause := backoff(failures, r.cfg.RetryMin, receiveRetryMax)
		r.metrics.failed(r.work, failedReceive)
		r.log.ErrorContext(r.work, "consumer: cannot receive, trying again", "subscription", s.String(), "retry_in", pause, "err", err)
		sleep(r.stopping, pause)
	}
}
