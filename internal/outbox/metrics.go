package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"google.golang.org/grpc/status"

	"example.com/videocatalog/internal/envelope"
)

// metrics are the instruments of a publisher.
type metrics struct {
	events     metric.Int64Counter
	attempts   metric.Int64Counter
	failures   metric.Int64Counter
	batch      metric.Int64Histogram
	delay      metric.Float64Histogram
	duration   metric.Float64Histogram
	retry      metric.Float64Histogram
	lostLeases metric.Int64Counter
	breaker    metric.Int64Gauge
}

var (
	outcomePublished = outcome("published")
	outcomeUnsettled = outcome("unsettled")
	outcomeRefused   = outcome("refused")
	outcomeUnknown   = outcome("unknown")

	attemptFirst = attempt("first")
	attemptRetry = attempt("retry")
)

func outcome(name string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", name)))
}

func attempt(name string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("attempt", name)))
}

// seconds sets bucket bounds in seconds, because the default bounds are meant for
// milliseconds.
var seconds = metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 3600)

// newMetrics makes the instruments.
func newMetrics(meter metric.Meter) (*metrics, error) {
	if meter == nil {
		meter = noop.Meter{}
	}
	var m metrics
	var errs [9]error
	m.events, errs[0] = meter.Int64Counter("outbox.events", metric.WithUnit("{event}"),
		metric.WithDescription("Events of passes, by outcome: published, unsettled, refused (by the broker), unknown. Unsettled events were published, but the settlement failed, its result is unknown, or the lease was lost. They are published again, unless the settlement took effect. Events that are only set aside are not counted."))
	m.attempts, errs[1] = meter.Int64Counter("outbox.publish.attempts", metric.WithUnit("{attempt}"),
		metric.WithDescription("Messages handed to the broker, by attempt: first, or retry (of an event that was set aside)."))
	m.failures, errs[2] = meter.Int64Counter("outbox.publish.failures", metric.WithUnit("{failure}"),
		metric.WithDescription("Events that the broker did not acknowledge, by error.type: oversized, not_sent (behind a failed event, or the time of the pass was over), unanswered, or the gRPC code."))
	m.batch, errs[3] = meter.Int64Histogram("outbox.batch.size", metric.WithUnit("{event}"),
		metric.WithExplicitBucketBoundaries(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000),
		metric.WithDescription("Events per pass that claimed a lane, including those that are only set aside."))
	m.delay, errs[4] = meter.Float64Histogram("outbox.publish.delay", metric.WithUnit("s"), seconds,
		metric.WithDescription("Time from when an event happened, by the clock of its command and before the commit, until the acknowledgement of the broker was read. Negative values, which wrong clocks cause, count as 0. Not of events that are published again."))
	m.duration, errs[5] = meter.Float64Histogram("outbox.publish.duration", metric.WithUnit("s"), seconds,
		metric.WithDescription("Time from handing a message to the broker until its acknowledgement was read. Acknowledgements are read in order."))
	m.retry, errs[6] = meter.Float64Histogram("outbox.retry.interval", metric.WithUnit("s"), seconds,
		metric.WithDescription("Pause before a refused event is tried again."))
	m.lostLeases, errs[7] = meter.Int64Counter("outbox.lost_leases", metric.WithUnit("{lease}"),
		metric.WithDescription("Settlements that the fence rejected. Another publisher had taken the lease, or an earlier attempt had taken effect and its answer was lost."))
	m.breaker, errs[8] = meter.Int64Gauge("outbox.breaker.open", metric.WithUnit("{breaker}"),
		metric.WithDescription("1 while this process considers the broker unavailable and sends only probes, else 0."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("make instruments: %w", err)
	}
	m.breakerIs(context.Background(), false)
	return &m, nil
}

func (m *metrics) attempted(ctx context.Context, e Claimed) {
	if e.Retry {
		m.attempts.Add(ctx, 1, attemptRetry)
	} else {
		m.attempts.Add(ctx, 1, attemptFirst)
	}
}

func (m *metrics) published(ctx context.Context, e envelope.Message, handed time.Time) {
	now := time.Now()
	if e.Repeat == "" {
		m.delay.Record(ctx, max(0, now.Sub(e.OccurredAt).Seconds())) // set by another clock, which may be ahead
	}
	m.duration.Record(ctx, now.Sub(handed).Seconds())
}

func (m *metrics) failed(ctx context.Context, err error) {
	m.failures.Add(ctx, 1, metric.WithAttributes(attribute.String("error.type", errorType(err))))
}

// errorType returns the class of a failure. There are only a few classes, so the metric has
// few series.
func errorType(err error) string {
	switch {
	case errors.Is(err, pubsub.ErrOversizedMessage):
		return "oversized"
	case errors.Is(err, errLeftOut), errors.Is(err, errNotSent), errors.As(err, new(pubsub.ErrPublishingPaused)):
		return "not_sent"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return "unanswered"
	}
	return status.Code(err).String()
}

func (m *metrics) retrying(ctx context.Context, in time.Duration) { m.retry.Record(ctx, in.Seconds()) }

func (m *metrics) pass(ctx context.Context, claim Claim, result Result, settled bool) {
	m.batch.Record(ctx, int64(len(claim.Events)))
	published := outcomePublished
	if !settled {
		published = outcomeUnsettled
	}
	m.events.Add(ctx, int64(result.Published), published)
	m.events.Add(ctx, int64(result.Refused), outcomeRefused)
	m.events.Add(ctx, int64(result.Unknown), outcomeUnknown)
}

func (m *metrics) lostLease(ctx context.Context) { m.lostLeases.Add(ctx, 1) }

func (m *metrics) breakerIs(ctx context.Context, open bool) {
	value := int64(0)
	if open {
		value = 1
	}
	m.breaker.Record(ctx, value)
}
