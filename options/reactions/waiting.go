package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"example.com/videocatalog/internal/timer"
)

// maxTimers is up to how many timers of a type are counted.
const maxTimers = 100_000

// ObserveTimers lets a meter show the timers that wait, by aggregate type, as Outbox.Observe
// shows the outbox.
func ObserveTimers(meter metric.Meter, types map[string]timer.Timers) error {
	type measured struct {
		late    time.Duration
		waiting int64
	}
	samples := make(map[string]*sample[measured], len(types)) // one each: a slow type hides no other
	for aggregateType, timers := range types {
		samples[aggregateType] = &sample[measured]{take: func(ctx context.Context) (m measured, err error) {
			m.late, m.waiting, err = timers.Waiting(ctx, maxTimers)
			return m, err
		}}
	}
	begin := func(ctx context.Context, _ metric.Int64Observer) error { // as ahead does
		for _, s := range samples {
			s.begin(ctx)
		}
		return nil
	}
	waiting, err1 := meter.Int64ObservableGauge("timer.waiting", metric.WithUnit("{timer}"),
		metric.WithDescription("Timers that wait, due or not, by aggregate_type, counted up to 100,000."), metric.WithInt64Callback(begin))
	late, err2 := meter.Float64ObservableGauge("timer.oldest.lateness", metric.WithUnit("s"),
		metric.WithDescription("Time since the oldest timer was due, by aggregate_type and the clock of the database; 0 if none is due."))
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("make instruments: %w", err)
	}
	_, err := meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		for aggregateType, s := range samples {
			m, err := s.get(ctx)
			if err != nil {
				report(err)
				continue
			}
			labels := metric.WithAttributes(attribute.String("aggregate_type", aggregateType))
			o.ObserveInt64(waiting, m.waiting, labels)
			o.ObserveFloat64(late, m.late.Seconds(), labels)
		}
		return nil
	}, waiting, late)
	if err != nil {
		return fmt.Errorf("register callback: %w", err)
	}
	return nil
}
