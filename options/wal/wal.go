// Package wal lets another program send the events: one that reads the log of PostgreSQL, such as Debezium.
//
// The mode is a row of the table outbox_relay. In mode lanes the publisher sends the pending events, as without this option. In mode
// external a trigger drops the pending copy of a new event: the event is only in the outbox, and so in the log, and the reader of a
// logical slot sends it. The publisher still sends deferred events and snapshots. [run] switches under load, in both
// directions: no event is lost, and first deliveries of an aggregate stay in order, if the reader is stopped during a switch. After a
// crash of the reader, or of a switch to lanes, events come again.
//
// The package does not read the events itself, and cannot tell a reader to wait.
package wal

import (
	"context"
	"embed"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/options/wal/internal/sqlcgen"
)

// The modes, as the table outbox_relay names them.
const (
	lanes    = "lanes"
	external = "external"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Option returns the option.
func Option() app.Option {
	return app.Option{
		Name: "wal", Start: start, Migrations: migrations, Subcommands: map[string]app.Subcommand{"relay": run},
		Help: `  server relay status                  show who sends new events, and how much of the log each slot keeps
  server relay external                hand new events to the log, for the reader of a slot, which it makes
         --slot NAME                   another slot than video_catalog_outbox
  server relay lanes                   let the publisher send again, first what the stopped reader has not confirmed
         --since TIME                  if the slot is lost: first what happened since TIME (RFC 3339)
`,
	}
}

const (
	watchInterval = 5 * time.Second
	watchTimeout  = 4 * time.Second
)

// start refuses a mode that this database cannot serve, and measures the reader in each process that uses the command side.
func start(ctx context.Context, process *app.Process) error {
	if process.CommandPool == nil {
		return nil
	}
	w := &watch{queries: sqlcgen.New(pg.Autocommit(process.CommandPool)), log: process.Log}
	relay, err := w.queries.GetRelay(ctx)
	if err == nil && relay.Mode != lanes {
		err = check(ctx, w.queries, "")
	}
	if err = errors.Join(err, w.observe(process.Meter)); err != nil {
		return pg.Wrap(err, "relay of the outbox")
	}
	process.Go("watch of the relay", w.run, nil)
	return nil
}

// watch measures how far the reader is behind.
type watch struct {
	queries *sqlcgen.Queries
	log     *slog.Logger
	last    atomic.Pointer[sqlcgen.GetRelayRow] // nil: the database is unavailable
}

// run measures until ctx ends. A crash leaves an older mark, so the reader looks later than it is.
func (w *watch) run(ctx context.Context) error {
	status := ""
	for again := time.Tick(watchInterval); ; {
		relay, err := w.measure(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			w.log.WarnContext(ctx, "relay: not measured", "err", err)
		case err == nil && relay.Mode != lanes && relay.WalStatus != status:
			w.log.InfoContext(ctx, "relay: slot", "slot", relay.Slot, "wal_status", relay.WalStatus, "kept_bytes", relay.Kept)
			status = relay.WalStatus
		}
		select {
		case <-ctx.Done():
			return nil
		case <-again:
		}
	}
}

func (w *watch) measure(ctx context.Context) (relay sqlcgen.GetRelayRow, err error) {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	if relay, err = w.queries.GetRelay(ctx); err == nil && relay.Mode != lanes {
		err = w.queries.MarkRelay(ctx)
	}
	w.last.Store(nil)
	if err == nil {
		w.last.Store(&relay)
	}
	return relay, err
}

// observe adds what the log has to the metrics of the outbox, with the attribute relay. The age has the name and the description that
// internal/pg gives it: so the alert OutboxStalled is about both.
func (w *watch) observe(meter metric.Meter) error {
	age, err := meter.Float64ObservableGauge("outbox.backlog.age", metric.WithUnit("s"),
		metric.WithDescription("Age of the oldest event that may be published; 0 if there is none. Events that are published again have no age."))
	kept, keptErr := meter.Int64ObservableGauge("outbox.relay.kept", metric.WithUnit("By"),
		metric.WithDescription("Log that the slot of the relay keeps on the disk of PostgreSQL; 0 in mode lanes."))
	_, callbackErr := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		if relay := w.last.Load(); relay != nil && relay.Mode != lanes {
			o.ObserveFloat64(age, relay.Age, metric.WithAttributes(attribute.String("relay", "log")))
			o.ObserveInt64(kept, relay.Kept)
		} else if relay != nil {
			o.ObserveInt64(kept, 0)
		}
		return nil
	}, age, kept)
	return errors.Join(err, keptErr, callbackErr)
}

// check returns what keeps a reader of a slot from the events; "" is the slot of the mode.
func check(ctx context.Context, queries *sqlcgen.Queries, slot string) error {
	mistakes, err := queries.ListMistakes(ctx, slot)
	for _, mistake := range mistakes {
		err = errors.Join(err, errors.New(mistake))
	}
	return err
}
