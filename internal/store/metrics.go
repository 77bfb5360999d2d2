package store

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

const (
	// countLimit is up to how many rows a sample counts. A backlog is measured when it is
	// largest, and measuring must not make it larger.
	countLimit = 10_000
	// sampleAge is the age at which a sample is taken again. Readers in between get the
	// last one.
	sampleAge = 5 * time.Second
	// sampleTimeout limits how long a reader of metrics waits for all samples together. It
	// is less than sampleAge, so two samples of one kind never run at the same time.
	sampleTimeout = 2 * time.Second
	// sendTime is kept free for sending metrics, of the second that an ending process has
	// for its metrics.
	sendTime = 500 * time.Millisecond
)

// Observe lets a meter show the quarantine of some consumers, and the tables of the query
// side, as Outbox.Observe shows the outbox.
func (b *Inbox) Observe(meter metric.Meter, consumers []string) error {
	type measured struct {
		quarantine sqlcgen.MeasureQuarantineRow
		tables     []sqlcgen.MeasureTablesRow
	}
	measures := sample[measured]{take: func(ctx context.Context) (m measured, err error) {
		if m.quarantine, err = b.queries.MeasureQuarantine(ctx, consumers, countLimit); err != nil {
			return m, wrap(err, "measure quarantine")
		}
		m.tables, err = b.queries.MeasureTables(ctx)
		return m, wrap(err, "measure tables")
	}}
	quarantined, err := meter.Int64ObservableGauge("consumer.quarantine", metric.WithUnit("{message}"),
		metric.WithDescription(fmt.Sprintf("Messages in quarantine, which wait for a person. Counted up to %d.", countLimit)), ahead(&measures))
	if err != nil {
		return fmt.Errorf("make instrument: %w", err)
	}
	kept, err := meter.Int64ObservableGauge("consumer.quarantine.size", metric.WithUnit("By"),
		metric.WithDescription(fmt.Sprintf("Bytes of payloads, attributes and reasons in quarantine, of all consumers. Messages that would exceed %d are kept without their payload.", QuarantineBytes)))
	if err != nil {
		return fmt.Errorf("make instrument: %w", err)
	}
	size, err := meter.Int64ObservableGauge("consumer.table.size", metric.WithUnit("By"),
		metric.WithDescription("Bytes on disk of each table of the query side, such as inbox."))
	if err != nil {
		return fmt.Errorf("make instrument: %w", err)
	}
	_, err = meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		m, err := measures.get(ctx)
		if err != nil {
			report(err)
			return nil
		}
		o.ObserveInt64(quarantined, m.quarantine.Quarantined)
		o.ObserveInt64(kept, m.quarantine.QuarantineBytes)
		for _, table := range m.tables {
			o.ObserveInt64(size, table.Bytes, ofTable(table.Name))
		}
		return nil
	}, quarantined, kept, size)
	if err != nil {
		return fmt.Errorf("register callback: %w", err)
	}
	return nil
}

// report passes the error of a failed sample to OpenTelemetry. A callback must not return
// it: an exporting reader would then drop all other metrics too, just when the database is
// unavailable (PeriodicReader of go.opentelemetry.io/otel/sdk/metric).
func report(err error) {
	if err != nil {
		otel.Handle(err)
	}
}

func ofTable(name string) metric.ObserveOption {
	return metric.WithAttributes(attribute.String("table", name))
}

// since returns the age of t in seconds; 0 for the zero time.
func since(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return max(0, time.Since(t).Seconds())
}

// sample is a measurement. It is taken again when it is older than sampleAge, also if it
// failed. A reader that comes while it is taken waits for the result.
type sample[T any] struct {
	take func(ctx context.Context) (T, error)

	mu   sync.Mutex
	last *taken[T] // guarded by mu
}

type taken[T any] struct {
	begun time.Time
	ended chan struct{} // closed when value and err are set
	value T
	err   error
}

// Sampled returns take as the metrics of an option read it: begin starts a measurement unless the
// last one is young, and does not wait; get waits for it, for a limited time.
func Sampled[T any](take func(context.Context) (T, error)) (begin func(context.Context), get func(context.Context) (T, error)) {
	s := &sample[T]{take: take}
	return func(ctx context.Context) { s.begin(ctx) }, s.get
}

// begin starts a new sample, unless the last one is younger than sampleAge. It does not
// wait. The sample must end within limited(ctx).
func (s *sample[T]) begin(ctx context.Context) *taken[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last != nil && time.Since(s.last.begun) < sampleAge {
		return s.last
	}
	t := &taken[T]{begun: time.Now(), ended: make(chan struct{})}
	s.last = t
	go func() {
		defer close(t.ended)
		ctx, cancel := limited(ctx)
		defer cancel()
		t.value, t.err = s.take(ctx)
	}()
	return t
}

func (s *sample[T]) get(ctx context.Context) (T, error) {
	t := s.begin(ctx)
	ctx, cancel := limited(ctx)
	defer cancel()
	select {
	case <-t.ended:
	case <-ctx.Done():
	}
	// A wait for another sample may have used all the time. A sample that has ended is still
	// read then.
	select {
	case <-t.ended:
		return t.value, t.err
	default:
		var none T
		return none, fmt.Errorf("wait for a sample: %w", ctx.Err())
	}
}

// limited returns a context that limits the wait for samples. If ctx has a deadline, as in
// a process that ends, it keeps the last sendTime for all other metrics.
func limited(ctx context.Context) (context.Context, context.CancelFunc) {
	end := time.Now().Add(sampleTimeout)
	if deadline, ok := ctx.Deadline(); ok && deadline.Add(-sendTime).Before(end) {
		end = deadline.Add(-sendTime)
	}
	return context.WithDeadline(ctx, end)
}

// ahead returns an option that starts a sample before a reader waits for any other. A
// reader first calls the callbacks of single instruments (pipeline.produce of
// go.opentelemetry.io/otel/sdk/metric). Then it calls the registered callbacks, one after
// the other, and those wait. If that order changes, readers only wait longer.
func ahead[T any](s *sample[T]) metric.Int64ObservableGaugeOption {
	return metric.WithInt64Callback(func(ctx context.Context, _ metric.Int64Observer) error {
		s.begin(ctx)
		return nil
	})
}
