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

// Projector has the events of its sources applied.
type Projector struct {
	cfg        Config
	sources    []*source
	quarantine Quarantine
	log        *slog.Logger
	metrics    *metrics
	unhandled  unhandled
	tracer     trace.Tracer      // nil: none
	loops      []*heartbeat.Loop // one per worker
}

// New makes a projector of some sources, which share its workers. meter may be
// nil.
func New(cfg Config, sources []Source, quarantine Quarantine, log *slog.Logger, meter metric.Meter) (*Projector, error) {
	made := make([]*source, len(sources))
	for i, s := range sources {
		s.Subscriber.ReceiveSettings = cfg.WithDefaults().receiveSettings()
		made[i] = newSource(s.Subscriber, s.Consumer, s.Handlers)
	}
	return newProjector(cfg, made, quarantine, log, meter)
}

func newProjector(cfg Config, sources []*source, quarantine Quarantine, log *slog.Logger, meter metric.Meter) (*Projector, error) {
	if err := errors.Join(cfg.Validate(), checkSources(sources)); err != nil {
		return nil, err
	}
	m, err := newMetrics(meter)
	if err != nil {
		return nil, err
	}
	p := &Projector{
		cfg: cfg.WithDefaults(), sources: sources, quarantine: quarantine, log: log, metrics: m, unhandled: unhandled{logged: make(map[string]time.Time)},
	}
	if cfg.Tracing != nil {
		p.tracer = cfg.Tracing.Tracer("example.com/videocatalog/internal/consumer")
	}
	for i := range p.cfg.Workers {
		p.loops = append(p.loops, heartbeat.New(fmt.Sprintf("consumer: worker %d", i), p.cfg.TransactionTimeout+p.cfg.RetryMax))
	}
	return p, nil
}

// Stuck returns an error when a worker is in a call of the store for three times
// as long as it may take, or the client has given up and was not started again
// for three times the longest pause: that will never be, and the process should
// be started again. Calls that fail, because the database is unavailable, return. A
// client that pulls and gets nothing cannot be told from one that is given
// nothing, and is not stuck.
func (p *Projector) Stuck() error {
	loops := slices.Clone(p.loops)
	for _, s := range p.sources {
		loops = append(loops, s.receiving)
	}
	return heartbeat.Check(loops...)
}

// run is what the goroutines of one Run share.
type run struct {
	*Projector

	// stopping ends when Run is told to stop: the client pulls nothing more, and
	// what fails from then on is given back instead of tried again.
	stopping context.Context
	// work ends when nothing is in hand, or when it is too late for what is: that
	// is given back. Every call of the store is made under it.
	work context.Context

	queue   chan *delivery   // from the callbacks to the collector
	batches chan []*delivery // from the collector to the workers
	checks  chan struct{}    // holds a token per ack whose result is awaited
}

// Run projects until ctx is done and returns nil when what was in hand is
// settled, or Config.StopTimeout is over. A subscription that fails or does not
// exist is logged and tried again. Run must not be called while it runs.
//
// A crash at any point leaves every message that is not acknowledged with the
// broker. One whose transaction was committed comes again, as a duplicate.
func (p *Projector) Run(ctx context.Context) error {
	work, endWork := context.WithCancel(context.WithoutCancel(ctx))
	defer endWork()
	r := &run{
		Projector: p,
		stopping:  ctx,
		work:      work,
		queue:     make(chan *delivery),
		batches:   make(chan []*delivery),
		checks:    make(chan struct{}, p.cfg.MaxOutstandingMessages),
	}
	var workers sync.WaitGroup
	workers.Go(r.collect)
	for _, loop := range p.loops {
		workers.Go(func() { r.apply(loop) })
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
	// The last fifth is for the store to roll back and the client to send nacks.
	lastCall := time.AfterFunc(p.cfg.StopTimeout*4/5, endWork)
	defer lastCall.Stop()
	select {
	case <-received: // and with it every callback
	case <-time.After(p.cfg.StopTimeout):
		// It waits for an unavailable broker. Its goroutines end by themselves when its owner closes it, or, in a pause
		// between two attempts, up to half a minute later; what they still hand to r.handle is given back at once.
		p.log.WarnContext(ctx, "consumer: the client did not stop in time, its last acks may be lost")
	}
	for range cap(r.checks) {
		r.checks <- struct{}{} // until the last one is free; lastCall ends those that wait
	}
	endWork()
	workers.Wait()
	return nil
}

// RetrySoon bounds the pauses of a client between two attempts to open a stream,
// to acknowledge and to extend leases by a second. Its own grow up to a minute, so
// it would sleep on when the broker is back, and a broker that waits for acks
// sends nothing. What is tried again, and for how long in all, stays as it was.
// Call it before anything is received.
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

// receiveRetryMax is the longest pause before the client is started again.
const receiveRetryMax = 5 * time.Second

// receive lets the client pull the messages of a source until the projector is stopped. The
// client goes on by itself when its connection breaks; it gives up when the
// broker refuses, as for a subscription that does not exist.
func (r *run) receive(s *source) {
	loop := s.receiving
	defer loop.Rest()
	for failures := 0; r.stopping.Err() == nil; failures++ {
		loop.Rest() // for as long as the client goes on
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
