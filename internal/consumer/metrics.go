package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"example.com/videocatalog/internal/envelope"
)

// metrics are the instruments of a receiver.
type metrics struct {
	events   metric.Int64Counter
	failures metric.Int64Counter
	lag      metric.Float64Histogram
}

// Outcomes that no handler returns.
const (
	outcomeQuarantined envelope.Outcome = "quarantined"
	outcomeUnhandled   envelope.Outcome = "unhandled"
)

// otherType replaces an aggregate type without a handler. Senders choose it, so it may have
// any value.
const otherType = "other"

// The values of the attribute error.type of OpenTelemetry.
const (
	failedReceive     = "receive"
	failedUnavailable = "unavailable"
	failedRefused     = "refused"
	failedPanic       = "panic"
)

func newMetrics(meter metric.Meter) (*metrics, error) {
	var m metrics
	var errs [3]error
	m.events, errs[0] = meter.Int64Counter("consumer.events", metric.WithUnit("{event}"),
		metric.WithDescription("Messages applied or quarantined, counted after the commit, by aggregate_type (a type with a handler, or other) and outcome: applied, applied_after_gap, stale, duplicate, conflict (two events have the same version), quarantined, unhandled (no handler for its aggregate type: it is only acknowledged)."))
	m.failures, errs[1] = meter.Int64Counter("consumer.failures", metric.WithUnit("{failure}"),
		metric.WithDescription("Failures, by error.type: unavailable (the database), refused (by the store), panic, receive (the subscription could not be read)."))
	// Bounds in seconds, because the default bounds are meant for milliseconds.
	m.lag, errs[2] = meter.Float64Histogram("consumer.lag", metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 3600),
		metric.WithDescription("Time from when an event happened, by the clock of its command, until it was applied. Negative values, which wrong clocks cause, count as 0. Not of events that are published again."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("make instruments: %w", err)
	}
	return &m, nil
}

// countOutcomes counts the outcomes of deliveries of one aggregate type.
func (m *metrics) countOutcomes(ctx context.Context, deliveries []*delivery, outcomes []envelope.Outcome) {
	aggregateType := deliveries[0].envelope.AggregateType
	byType := metric.WithAttributeSet(attribute.NewSet(attribute.String("aggregate_type", aggregateType)))
	counts := make(map[envelope.Outcome]int64)
	for i, d := range deliveries {
		counts[outcomes[i]]++
		if applied := outcomes[i] == envelope.Applied || outcomes[i] == envelope.AppliedAfterGap; applied && d.envelope.Repeat == "" {
			// The clock of the command may be ahead, and the sum of a histogram must not fall.
			m.lag.Record(d.traced(ctx), max(0, time.Since(d.envelope.OccurredAt).Seconds()), byType)
		}
	}
	for outcome, n := range counts {
		m.count(ctx, aggregateType, outcome, n)
	}
}

// count counts messages that are acknowledged.
func (m *metrics) count(ctx context.Context, aggregateType string, outcome envelope.Outcome, n int64) {
	m.events.Add(ctx, n, metric.WithAttributes(attribute.String("aggregate_type", aggregateType), attribute.String("outcome", string(outcome))))
}

func (m *metrics) countFailure(ctx context.Context, what string) {
	m.failures.Add(ctx, 1, metric.WithAttributes(attribute.String("error.type", what)))
}
