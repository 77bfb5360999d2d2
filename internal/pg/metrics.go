package pg

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
)

const (
	// countLimit is the largest number of rows that a sample counts. Measuring must not make a large
	// backlog larger.
	countLimit = 10_000
	// sampleAge is the age at which a sample is taken again. Readers in between get the
	// last sample.
	sampleAge = 5 * time.Second
	// sampleTimeout limits how long a reader of metrics waits for one sample.
	sampleTimeout = 2 * time.Second
)

// Observe adds a metric of the quarantine of some consumers to a meter: see [Outbox.Observe].
func (b *Inbox) Observe(meter metric.Meter, consumers []string) error {
	count := Sampled(func(ctx context.Context) (int64, error) {
		n, err := b.queries.MeasureQuarantine(ctx, consumers, countLimit)
		return n, Wrap(err, "measure quarantine")
	})
	_, err := meter.Int64ObservableGauge("consumer.quarantine", metric.WithUnit("{message}"),
		metric.WithDescription(fmt.Sprintf("Messages in quarantine, which wait for a person. Counted up to %d.", countLimit)),
		metric.WithInt64Callback(func(ctx context.Context, o metric.Int64Observer) error {
			n, err := count(ctx)
			if err != nil {
				otel.Handle(err)
				return nil
			}
			o.Observe(n)
			return nil
		}))
	if err != nil {
		return fmt.Errorf("make instrument: %w", err)
	}
	return nil
}

// Sampled returns a function that measures with take, at most once in 5 s. A measurement takes at most 2 s,
// and at most half of the time until the deadline of its context. In between the function returns the last
// result. It is safe for concurrent use.
//
// The callback of an instrument must not return the error, but pass it to otel.Handle. Otherwise the
// PeriodicReader of go.opentelemetry.io/otel/sdk/metric drops all other metrics, too.
func Sampled[T any](take func(context.Context) (T, error)) func(context.Context) (T, error) {
	var (
		mu    sync.Mutex
		taken time.Time
		value T
		err   error
	)
	return func(ctx context.Context) (T, error) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(taken) >= sampleAge {
			timeout := sampleTimeout
			if deadline, ok := ctx.Deadline(); ok { // an ending process must still send all other metrics
				timeout = min(timeout, time.Until(deadline)/2)
			}
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			value, err = take(ctx)
			taken = time.Now()
		}
		return value, err
	}
}
