// Package wal sends events from the log of PostgreSQL, in place of the table of pending events.
//
// The mode is a row of the table outbox_relay. In mode lanes the publisher sends the pending events. In the others a trigger drops the
// pending copy of a new event. In mode external another program, such as Debezium, reads a logical slot, and sends the events of the log. In
// mode wal the publisher itself does: its [store] claims what the [reader] has queued. In both, deferred events and snapshots come from the
// tables, as in mode lanes. Appends read the mode only during a switch: see 00302_relay_triggers.sql.
//
// The command relay switches under load: no event is lost, and first deliveries of an aggregate stay in order. The reader of mode external
// must be stopped meanwhile: nobody can tell it to wait.
package wal

import (
	"context"
	"embed"
	"errors"
	"time"

	"github.com/googleapis/gax-go/v2"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/options/wal/internal/sqlcgen"
)

// The modes, as the table outbox_relay names them.
const lanes, external, wal = "lanes", "external", "wal"

const markInterval = 5 * time.Second

//go:embed migrations/*.sql
var migrations embed.FS

// Option returns the option.
func Option() app.Option {
	var r *reader // of a process with a publisher
	return app.Option{
		Name: "wal", Migrations: migrations,
		NewStore: func(ctx context.Context, process *app.Process, events outbox.Store) (_ outbox.Store, err error) {
			if process.Subcommand != "serve" { // the others have no loops, so they publish what is in the tables
				return events, nil
			}
			r, err = newReader(ctx, process, events)
			return r, err
		},
		Start: func(ctx context.Context, process *app.Process) error {
			if r != nil {
				process.Go("reader of the log", r.run, r.beats.Check)
			}
			return start(ctx, process)
		}, Subcommands: map[string]app.Subcommand{"relay": run},
		Help: `  server relay status                  show who sends new events, and how much of the log each slot keeps
  server relay external                hand new events to the log, for the reader of a slot, which it makes
         --slot NAME                   of external and wal: another slot than the last one; the first is video_catalog_outbox
  server relay wal                     let the publisher read new events from the log, in place of the pending ones
  server relay lanes                   let the publisher send pending events again, first what the stopped reader has not confirmed
         --since TIME                  if the slot is lost: first what happened since TIME (RFC 3339)
`,
	}
}

// start refuses a mode that this database cannot serve, and measures the reader in each process that uses the command side.
func start(ctx context.Context, process *app.Process) error {
	if process.CommandPool == nil {
		return nil
	}
	queries := sqlcgen.New(pg.Autocommit(process.CommandPool))
	relay, err := queries.GetRelay(ctx)
	if err == nil && relay.Mode != lanes {
		err = check(ctx, queries, "")
	}
	if err = errors.Join(err, observe(queries, process.Meter)); err == nil {
		process.Go("marks of the log", func(ctx context.Context) error { return mark(ctx, queries) }, nil)
	}
	return pg.Wrap(err, "relay of the outbox")
}

// mark notes the end of the log every few seconds, so that the age of what the reader has not confirmed is known. A crash leaves an
// older mark: the age is larger than it is.
func mark(ctx context.Context, queries *sqlcgen.Queries) error {
	for next := time.Duration(0); gax.Sleep(ctx, next) == nil; next = markInterval {
		limited, cancel := context.WithTimeout(ctx, time.Second) // a connection may be silent
		_ = queries.MarkRelay(limited)                           // an older mark does no harm
		cancel()
	}
	return nil
}

// observe adds what the log has to the metrics of the outbox. The age has the name and the description that internal/pg gives it,
// so that the alert OutboxStalled is about both. Like those metrics, it is the same in every process.
func observe(queries *sqlcgen.Queries, meter metric.Meter) error {
	age, err := meter.Float64ObservableGauge("outbox.backlog.age", metric.WithUnit("s"),
		metric.WithDescription("Age of the oldest event that may be published; 0 if there is none. Events that are published again have no age."))
	kept, keptErr := meter.Int64ObservableGauge("outbox.relay.kept", metric.WithUnit("By"),
		metric.WithDescription("Log that the slot of the relay keeps on the disk of PostgreSQL; 0 in mode lanes."))
	sample := pg.Sampled(queries.GetRelay)
	_, callbackErr := meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		relay, err := sample(ctx)
		if err == nil && relay.Mode != lanes {
			o.ObserveFloat64(age, relay.Age, metric.WithAttributes(attribute.String("relay", "log")))
		}
		if err != nil {
			otel.Handle(err)
			return nil
		}
		o.ObserveInt64(kept, relay.Kept)
		return nil
	}, age, kept)
	return errors.Join(err, keptErr, callbackErr)
}

// check returns what keeps a reader of a slot from the events; "" is the slot of the mode.
func check(ctx context.Context, queries *sqlcgen.Queries, slot string) error {
	return errorOf(queries.ListMistakes(ctx, slot))
}

func errorOf(mistakes []string, err error) error {
	for _, mistake := range mistakes {
		err = errors.Join(err, errors.New(mistake))
	}
	return err
}
