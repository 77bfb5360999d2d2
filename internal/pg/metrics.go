package pg

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"example.com/videocatalog/internal/pg/internal/sqlcgen"
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
	count := observed(func(ctx context.Context) (int64, error) {
		n, err := b.queries.MeasureQuarantine(ctx, consumers, countLimit)
		return n, Wrap(err, "measure quarantine")
	}, func(o metric.Int64Observer, n int64) { o.Observe(n) })
	_, err := meter.Int64ObservableGauge("consumer.quarantine", metric.WithUnit("{message}"), metric.WithInt64Callback(count),
		metric.WithDescription(fmt.Sprintf("Messages in quarantine, which wait for a person. Counted up to %d.", countLimit)))
	if err = errors.Join(err, observeTransactions(meter, b.queries, "queries")); err != nil {
		return fmt.Errorf("make instrument: %w", err)
	}
	return nil
}

// observeTransactions adds the metric of the oldest transaction in the database server of a side. The
// id of a transaction is never used again, so the same id is the same transaction.
func observeTransactions(meter metric.Meter, queries *sqlcgen.Queries, side string) error {
	var oldest string
	var since time.Time
	age := observed(func(ctx context.Context) (time.Duration, error) {
		id, err := queries.GetOldestTransaction(ctx)
		if err == nil && (id != oldest || id == "") {
			oldest, since = id, time.Now()
		}
		return time.Since(since), Wrap(err, "get the oldest transaction")
	}, func(o metric.Float64Observer, age time.Duration) {
		o.Observe(age.Truncate(time.Millisecond).Seconds(), metric.WithAttributes(attribute.String("side", side)))
	})
	_, err := meter.Float64ObservableGauge("database.transaction.age", metric.WithUnit("s"), metric.WithFloat64Callback(age),
		metric.WithDescription("For how long this process has seen the oldest writing transaction open in the database server of a side (commands, queries), "+
			"also one of another database, and a prepared one; 0 if there is none. It holds back changes from watches, and dead rows from vacuum."))
	return err
}

// observed returns a callback that observes the samples of take. See [Sampled].
func observed[O, T any](take func(context.Context) (T, error), observe func(O, T)) func(context.Context, O) error {
	sample := Sampled(take)
	return func(ctx context.Context, o O) error {
		value, err := sample(ctx)
		if err != nil {
			otel.Handle(err)
			return nil
		}
		observe(o, value)
		return nil
	}
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

// Observe adds the metrics of the outbox to a meter. Every process reports the same values, because
// it reads them from the database: take their maximum, not their sum. If a sample fails, there are
// no values, and the error goes to the error handler of OpenTelemetry.
func (o *Outbox) Observe(meter metric.Meter) error {
	var errs [6]error
	gauge := func(i int, name, unit, description string) metric.Int64ObservableGauge {
		var g metric.Int64ObservableGauge
		g, errs[i] = meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
		return g
	}
	pending := gauge(0, "outbox.backlog", "{event}", fmt.Sprintf("Events that are not known to be in Pub/Sub, including events of blocked aggregates. Counted up to %d.", countLimit))
	blocked := gauge(1, "outbox.aggregates.blocked", "{aggregate}", fmt.Sprintf("Aggregates with an event that the broker refused, until their events are published; including parked ones. Counted up to %d.", countLimit))
	parked := gauge(2, "outbox.aggregates.parked", "{aggregate}", fmt.Sprintf("Blocked aggregates that wait for a person. Counted up to %d.", countLimit))
	days := gauge(3, "outbox.partitions.ahead", "d", "Future days that already have their partition. Maintenance keeps 7; without a partition for today, no event can be appended.")
	var oldest metric.Float64ObservableGauge
	oldest, errs[4] = meter.Float64ObservableGauge("outbox.backlog.age", metric.WithUnit("s"),
		metric.WithDescription("Age of the oldest event that may be published; 0 if there is none. Events that are published again have no age."))
	measure := func(ctx context.Context) (Backlog, error) { return o.Measure(ctx, countLimit) }
	_, errs[5] = meter.RegisterCallback(observed(measure, func(observer metric.Observer, m Backlog) {
		observer.ObserveInt64(pending, m.Pending)
		observer.ObserveInt64(blocked, m.Blocked)
		observer.ObserveInt64(parked, m.Parked)
		observer.ObserveInt64(days, m.DaysAhead)
		observer.ObserveFloat64(oldest, m.Age)
	}), pending, blocked, parked, days, oldest)
	if err := errors.Join(append(errs[:], observeTransactions(meter, o.queries, "commands"))...); err != nil {
		return fmt.Errorf("make instruments: %w", err)
	}
	return nil
}

// Backlog describes the events that are not known to be published.
type Backlog struct {
	// Oldest is the time of the oldest event in a lane; zero if there is none. An event
	// of a blocked aggregate is in its lane until a pass defers it. Events that are
	// published again do not count.
	Oldest time.Time `json:"oldest_event_time,omitzero"`
	// At is when it was measured, by the clock of the database.
	At time.Time `json:"-"`
	// Age is the age of Oldest in seconds when it was measured: a published event must not grow older.
	Age float64 `json:"oldest_seconds"`
	// Pending is the number of pending and deferred events, counted up to the limit.
	Pending int64 `json:"pending"`
	// Blocked counts the blocked aggregates, and Parked the parked ones among them, up to the limit.
	Blocked int64 `json:"blocked"`
	Parked  int64 `json:"parked"`
	// DaysAhead is the number of future days that have their partition.
	DaysAhead int64 `json:"days_ahead"`
	// Note says where other events wait, if an option does not let them become pending.
	Note string `json:"note,omitempty"`
}

// Measure returns the backlog. It counts up to maxCounted rows of each kind.
func (o *Outbox) Measure(ctx context.Context, maxCounted int) (b Backlog, err error) {
	err = inTx(ctx, o.pool, "pg.Measure", func(ctx context.Context, tx *Tx, q *sqlcgen.Queries) error {
		UseOutboxSettings(ctx, tx)
		row, err := q.MeasureOutbox(ctx, Limit(maxCounted))
		if err != nil {
			return err
		}
		b = Backlog{Oldest: notEpoch(row.Oldest), At: row.At, Pending: row.Pending, Blocked: row.Blocked, Parked: row.Parked, DaysAhead: row.DaysAhead}
		return tx.QueryRow(ctx, "SELECT coalesce(string_agg(m.needed, '; '), '') FROM video_catalog_migrations m").Scan(&b.Note)
	})
	if !b.Oldest.IsZero() {
		b.Age = max(0, b.At.Sub(b.Oldest).Seconds())
	}
	return b, Wrap(err, "measure outbox")
}
