package consumer

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

// metrics are the instruments of a projector.
type metrics struct {
	events   metric.Int64Counter
	failures metric.Int64Counter
	lag      metric.Float64Histogram
}

// Outcomes that no handler returns.
const (
	outcomeQuarantined envelope.Outcome = "quarantined"
	outcomeUnhandled   envelope.Outcome = "unhandled"
	outcomeUnknown     envelope.Outcome = "unknown" // a handler returned a value that is not an outcome
)

// labels are the attributes of the metrics of one aggregate type. They are made once.
type labels struct {
	aggregate metric.MeasurementOption
	outcomes  map[envelope.Outcome]metric.MeasurementOption
}

func newLabels(aggregateType string) labels {
	aggregate := attribute.String("aggregate_type", aggregateType)
	l := labels{aggregate: metric.WithAttributeSet(attribute.NewSet(aggregate)), outcomes: make(map[envelope.Outcome]metric.MeasurementOption)}
	for _, o := range []envelope.Outcome{envelope.Applied, envelope.AppliedAfterGap, envelope.Stale, envelope.Duplicate, envelope.Conflict, outcomeQuarantined, outcomeUnhandled, outcomeUnknown} {
		l.outcomes[o] = metric.WithAttributeSet(attribute.NewSet(aggregate, attribute.String("outcome", string(o))))
	}
	return l
}

// outcome returns the attributes of an outcome.
func (l labels) outcome(o envelope.Outcome) metric.MeasurementOption {
	if option, ok := l.outcomes[o]; ok {
		return option
	}
	return l.outcomes[outcomeUnknown]
}

// What failed, as the attribute error.type of OpenTelemetry.
var (
	failedReceive     = errorType("receive")
	failedUnavailable = errorType("unavailable")
	failedRefused     = errorType("refused")
	failedPanic       = errorType("panic")
)

func errorType(name string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("error.type", name)))
}

// seconds sets bucket bounds in seconds, because the default bounds are meant for
// milliseconds.
var seconds = metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 3600)

func newMetrics(meter metric.Meter) (*metrics, error) {
	if meter == nil {
		meter = noop.Meter{}
	}
	var m metrics
	var errs [3]error
	m.events, errs[0] = meter.Int64Counter("consumer.events", metric.WithUnit("{event}"),
		metric.WithDescription("Messages applied or set aside, counted after the commit, by aggregate_type (a type with a handler, or other) and outcome: applied, applied_after_gap, stale, duplicate, conflict (two events have the same version), quarantined, unhandled (no handler for its aggregate type: it is only acknowledged), unknown (its handler returned none of these)."))
	m.failures, errs[1] = meter.Int64Counter("consumer.failures", metric.WithUnit("{failure}"),
		metric.WithDescription("Failures, by error.type: unavailable (the database), refused (by the store), panic, receive (the subscription could not be read)."))
	m.lag, errs[2] = meter.Float64Histogram("consumer.lag", metric.WithUnit("s"), seconds,
		metric.WithDescription("Time from when an event happened, by the clock of its command, until it was applied. Negative values, which wrong clocks cause, count as 0. Not of events that are published again."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("make instruments: %w", err)
	}
	return &m, nil
}

func (m *metrics) projected(ctx context.Context, to *route, deliveries []*delivery, got []envelope.Outcome) {
	for i, d := range deliveries {
		m.events.Add(ctx, 1, to.labels.outcome(got[i]))
		if applied := got[i] == envelope.Applied || got[i] == envelope.AppliedAfterGap; applied && d.envelope.Repeat == "" {
			// Another clock has set the time and may be ahead, and the sum of a histogram must not fall.
			m.lag.Record(d.traced(ctx), max(0, time.Since(d.envelope.OccurredAt).Seconds()), to.labels.aggregate)
		}
	}
}

func (m *metrics) quarantined(ctx context.Context, d *delivery) {
	m.events.Add(ctx, 1, d.route.labels.outcome(outcomeQuarantined))
}

func (m *metrics) unhandled(ctx context.Context, d *delivery) {
	m.events.Add(ctx, 1, d.route.labels.outcome(outcomeUnhandled))
}

func (m *metrics) failed(ctx context.Context, what metric.MeasurementOption) {
	m.failures.Add(ctx, 1, what)
}
