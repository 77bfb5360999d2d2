package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"example.com/videocatalog/internal/envelope"
)

// metrics are the instruments of a publisher.
type metrics struct {
	events  metric.Int64Counter
	delay   metric.Float64Histogram
	breaker metric.Int64Gauge
}

var (
	outcomePublished = outcome("published")
	outcomeUnsettled = outcome("unsettled")
	outcomeRefused   = outcome("refused")
	outcomeUnknown   = outcome("unknown")
)

func outcome(name string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", name)))
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
	var errs [3]error
	m.events, errs[0] = meter.Int64Counter("outbox.events", metric.WithUnit("{event}"),
		metric.WithDescription("Events of passes, by outcome: published, unsettled, refused (by the broker), unknown. Unsettled events were published, but the settlement failed, its result is unknown, or the lease was lost. They are published again, unless the settlement took effect. Events that are only deferred are not counted."))
	m.delay, errs[1] = meter.Float64Histogram("outbox.publish.delay", metric.WithUnit("s"), seconds,
		metric.WithDescription("Time from when an event happened, by the clock of its command and before the commit, until the acknowledgement of the broker was read. Negative values, which wrong clocks cause, count as 0. Not of events that are published again."))
	m.breaker, errs[2] = meter.Int64Gauge("outbox.breaker.open", metric.WithUnit("{breaker}"),
		metric.WithDescription("1 while this process considers the broker unavailable and sends only probes, else 0."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("make instruments: %w", err)
	}
	m.breakerIs(context.Background(), false)
	return &m, nil
}

func (m *metrics) published(ctx context.Context, e envelope.Message) {
	if e.Repeat == "" {
		m.delay.Record(ctx, max(0, time.Since(e.OccurredAt).Seconds())) // the clock of the command may be ahead
	}
}

func (m *metrics) pass(ctx context.Context, result Result, settled bool) {
	published := outcomePublished
	if !settled {
		published = outcomeUnsettled
	}
	m.events.Add(ctx, int64(result.Published), published)
	m.events.Add(ctx, int64(result.Refused), outcomeRefused)
	m.events.Add(ctx, int64(result.Unknown), outcomeUnknown)
}

func (m *metrics) breakerIs(ctx context.Context, open bool) {
	value := int64(0)
	if open {
		value = 1
	}
	m.breaker.Record(ctx, value)
}
