package store

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/metric"
)

// Observe lets a meter show the outbox. Every process reports the same values, those of the
// database: take their maximum, not their sum. If a sample fails, it shows nothing, and the
// error goes to the handler of OpenTelemetry.
func (o *Outbox) Observe(meter metric.Meter) error {
	var errs [9]error
	gauge := func(i int, name, unit, description string, options ...metric.Int64ObservableGaugeOption) metric.Int64ObservableGauge {
		var g metric.Int64ObservableGauge
		g, errs[i] = meter.Int64ObservableGauge(name, append(options, metric.WithUnit(unit), metric.WithDescription(description))...)
		return g
	}
	age := func(i int, name, description string) metric.Float64ObservableGauge {
		var g metric.Float64ObservableGauge
		g, errs[i] = meter.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(description))
		return g
	}
	type measured struct {
		Backlog
		age, blockedAge float64 // at the time of the sample; later the event may be gone, and must not seem to grow older
	}
	backlogs := sample[measured]{take: func(ctx context.Context) (measured, error) {
		backlog, err := o.Measure(ctx, countLimit)
		return measured{Backlog: backlog, age: since(backlog.Oldest), blockedAge: since(backlog.OldestBlocked)}, err
	}}
	tables := sample[outboxTables]{take: o.measureTables}

	pending := gauge(0, "outbox.backlog", "{event}", fmt.Sprintf("Events that are not known to be in Pub/Sub, including those of blocked aggregates. Counted up to %d.", countLimit), ahead(&backlogs))
	oldest := age(1, "outbox.backlog.age", "Age of the oldest event that may be published; 0 if there is none. Events that are published again have no age.")
	blocked := gauge(2, "outbox.aggregates.blocked", "{aggregate}", fmt.Sprintf("Aggregates with an event that the broker refused, until their events are published; including parked ones. Counted up to %d.", countLimit))
	parked := gauge(3, "outbox.aggregates.parked", "{aggregate}", fmt.Sprintf("Blocked aggregates that wait for a person. Counted up to %d.", countLimit))
	oldestBlocked := age(4, "outbox.blocked.age", "Age of the oldest event of a blocked aggregate; 0 if none is blocked. Events that are published again have no age.")
	leased := gauge(5, "outbox.lanes.leased", "{lane}", "Lanes, of eight, that a publisher has leased.")
	days := gauge(6, "outbox.partitions.ahead", "d", "Future days that already have their partition. Maintenance keeps 7; without a partition for today, no event can be appended.")
	size := gauge(7, "outbox.table.size", "By", "Bytes on disk, by table: outbox, outbox_pending.", ahead(&tables))
	_, errs[8] = meter.RegisterCallback(func(ctx context.Context, observer metric.Observer) error {
		backlog, err := backlogs.get(ctx)
		if err == nil {
			observer.ObserveInt64(pending, backlog.Pending)
			observer.ObserveInt64(blocked, backlog.Blocked)
			observer.ObserveInt64(parked, backlog.Parked)
			observer.ObserveInt64(leased, backlog.Leased)
			observer.ObserveFloat64(oldest, backlog.age)
			observer.ObserveFloat64(oldestBlocked, backlog.blockedAge)
		}
		table, tablesErr := tables.get(ctx)
		if tablesErr == nil {
			observer.ObserveInt64(days, int64(table.daysAhead))
			observer.ObserveInt64(size, table.outbox, ofTable("outbox"))
			observer.ObserveInt64(size, table.pending, ofTable("outbox_pending"))
		}
		report(errors.Join(err, tablesErr))
		return nil
	}, pending, oldest, blocked, parked, oldestBlocked, leased, days, size)
	if err := errors.Join(errs[:]...); err != nil {
		return fmt.Errorf("make instruments: %w", err)
	}
	return nil
}

type outboxTables struct {
	daysAhead       int32
	outbox, pending int64
}

func (o *Outbox) measureTables(ctx context.Context) (outboxTables, error) {
	row, err := o.queries.MeasureOutboxTables(ctx)
	return outboxTables{daysAhead: row.DaysAhead, outbox: row.OutboxBytes, pending: row.PendingBytes}, wrap(err, "measure tables of the outbox")
}
