package reactions

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"example.com/videocatalog/internal/pg"
)

// metrics are the instruments of a clock.
type metrics struct {
	timers   metric.Int64Counter
	failures metric.Int64Counter
	lateness metric.Float64Histogram
}

func newMetrics(meter metric.Meter) (*metrics, error) {
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

// maxTimers is the largest count of timers of a type that is measured.
const maxTimers = 100_000

// waitingTimers is a measurement of the waiting timers of one aggregate type.
type waitingTimers struct {
	late time.Duration
	n    int64
}

// observe creates the metrics of waiting timers, by aggregate type. Processes that fire no timers measure them, too, so the
// metrics exist when no process fires timers.
func observe(meter metric.Meter, types map[string]Timers) error {
	gets := make(map[string]func(context.Context) (waitingTimers, error), len(types)) // one function each: a slow type hides no other
	for aggregateType, timers := range types {
		gets[aggregateType] = pg.Sampled(func(ctx context.Context) (m waitingTimers, err error) {
			m.late, m.n, err = timers.Waiting(ctx, maxTimers)
			return m, err
		})
	}
	waiting, err1 := meter.Int64ObservableGauge("timer.waiting", metric.WithUnit("{timer}"),
		metric.WithDescription("Timers that wait, due or not, by aggregate_type, counted up to 100,000."))
	late, err2 := meter.Float64ObservableGauge("timer.oldest.lateness", metric.WithUnit("s"),
		metric.WithDescription("Time since the oldest timer was due, by aggregate_type and the clock of the database; 0 if none is due."))
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("make instruments: %w", err)
	}
	_, err := meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		for aggregateType, get := range gets {
			m, err := get(ctx)
			if err != nil {
				otel.Handle(err) // an error would drop all other metrics
				continue
			}
			labels := metric.WithAttributes(attribute.String("aggregate_type", aggregateType))
			o.ObserveInt64(waiting, m.n, labels)
			o.ObserveFloat64(late, m.late.Seconds(), labels)
		}
		return nil
	}, waiting, late)
	if err != nil {
		return fmt.Errorf("register callback: %w", err)
	}
	return nil
}
