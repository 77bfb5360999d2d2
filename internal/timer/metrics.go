package timer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel"
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

const (
	// maxCounted is up to how many timers are counted.
	maxCounted = 100_000
	// measureTimeout limits how long a reader of metrics waits for the measurement of all types.
	measureTimeout = 2 * time.Second
	// sendTime is kept free for sending metrics, of the second that an ending process has for
	// its metrics.
	sendTime = 500 * time.Millisecond
)

// Observe makes metrics of the timers that wait. A measurement that fails is left out, and its
// error goes to the handler of OpenTelemetry: a reader that got it would drop all other metrics.
func Observe(meter metric.Meter, types map[string]Timers) error {
	waiting, err1 := meter.Int64ObservableGauge("timer.waiting", metric.WithUnit("{timer}"),
		metric.WithDescription("Timers that wait, due or not, by aggregate_type, counted up to 100,000."))
	late, err2 := meter.Float64ObservableGauge("timer.oldest.lateness", metric.WithUnit("s"),
		metric.WithDescription("Time since the oldest timer was due, by aggregate_type and the clock of the database; 0 if none is due."))
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("make instruments: %w", err)
	}
	_, err := meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		end := time.Now().Add(measureTimeout)
		if deadline, ok := ctx.Deadline(); ok && deadline.Add(-sendTime).Before(end) {
			end = deadline.Add(-sendTime)
		}
		ctx, cancel := context.WithDeadline(ctx, end)
		defer cancel()
		for aggregateType, timers := range types {
			oldest, n, err := timers.Waiting(ctx, maxCounted)
			if err != nil {
				otel.Handle(err)
				continue
			}
			labels := metric.WithAttributes(attribute.String("aggregate_type", aggregateType))
			o.ObserveInt64(waiting, n, labels)
			o.ObserveFloat64(late, oldest.Seconds(), labels)
		}
		return nil
	}, waiting, late)
	if err != nil {
		return fmt.Errorf("register callback: %w", err)
	}
	return nil
}
