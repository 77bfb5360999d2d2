package pg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"

	"example.com/videocatalog/internal/pg/internal/sqlcgen"
)

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
	backlogs := Sampled(func(ctx context.Context) (Backlog, error) { return o.Measure(ctx, countLimit) })
	_, errs[5] = meter.RegisterCallback(func(ctx context.Context, observer metric.Observer) error {
		m, err := backlogs(ctx)
		if err != nil {
			otel.Handle(err)
			return nil
		}
		observer.ObserveInt64(pending, m.Pending)
		observer.ObserveInt64(blocked, m.Blocked)
		observer.ObserveInt64(parked, m.Parked)
		observer.ObserveInt64(days, m.DaysAhead)
		observer.ObserveFloat64(oldest, m.Age)
		return nil
	}, pending, blocked, parked, days, oldest)
	if err := errors.Join(errs[:]...); err != nil {
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
	// Age is the age of Oldest in seconds when it was measured: a published event must not grow older.
	Age float64 `json:"oldest_seconds"`
	// Pending is the number of pending and deferred events, counted up to the limit.
	Pending int64 `json:"pending"`
	// Blocked counts the blocked aggregates, and Parked the parked ones among them, up to the limit.
	Blocked int64 `json:"blocked"`
	Parked  int64 `json:"parked"`
	// DaysAhead is the number of future days that have their partition.
	DaysAhead int64 `json:"days_ahead"`
}

// Measure returns the backlog. It counts up to maxCounted rows of each kind.
func (o *Outbox) Measure(ctx context.Context, maxCounted int) (Backlog, error) {
	var row sqlcgen.MeasureOutboxRow
	err := inTx(ctx, o.pool, "pg.Measure", func(ctx context.Context, tx *Tx, q *sqlcgen.Queries) (err error) {
		UseOutboxSettings(ctx, tx)
		row, err = q.MeasureOutbox(ctx, Limit(maxCounted))
		return err
	})
	if err != nil {
		return Backlog{}, Wrap(err, "measure outbox")
	}
	b := Backlog{Oldest: notEpoch(row.Oldest), Pending: row.Pending, Blocked: row.Blocked, Parked: row.Parked, DaysAhead: row.DaysAhead}
	if !b.Oldest.IsZero() {
		b.Age = max(0, time.Since(b.Oldest).Seconds())
	}
	return b, nil
}
