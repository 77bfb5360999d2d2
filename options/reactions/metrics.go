package timer

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// metrics are the instruments of a clock.
type metrics struct {
	timers   metric.Int64Counter
	failures metric.Int64Counter
	lateness metric.Float64Histogram
}

func newMetrics(meter metric.Meter) (*metrics, error) {
	if meter == nil {
		meter = noop.Meter{}
	}
	var m metrics
	var errs [3]error
	m.timers, errs[0] = meter.Int64Counter("timer.fired", metric.WithUnit("{timer}"),
		metric.WithDescription("Timers that have fired, by aggregate_type."))
	m.failures, errs[1] = meter.Int64Counter("timer.failures", metric.WithUnit("{failure}"),
		metric.WithDescription("Failures, by aggregate_type and error.type: unavailable (the database), refused (one timer; it is tried again later)."))
	m.lateness, errs[2] = meter.Float64Histogram("timer.lateness", metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 3600),
		metric.WithDescription("Time from when a timer was due until it fired, by the clock of the database."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("make instruments: %w", err)
	}
	return &m, nil
}

func (m *metrics) fired(ctx context.Context, aggregateType string, result Fired) {
	of := attribute.String("aggregate_type", aggregateType)
	labels := metric.WithAttributes(of)
	m.timers.Add(ctx, int64(len(result.Late)), labels)
	for _, late := range result.Late {
		m.lateness.Record(ctx, late.Seconds(), labels)
	}
	m.failures.Add(ctx, int64(len(result.Failed)), metric.WithAttributes(of, attribute.String("error.type", "refused")))
}

func (m *metrics) unavailable(ctx context.Context, aggregateType string) {
	m.failures.Add(ctx, 1, metric.WithAttributes(attribute.String("aggregate_type", aggregateType), attribute.String("error.type", "unavailable")))
}
