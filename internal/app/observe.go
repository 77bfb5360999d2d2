package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"example.com/videocatalog/internal/port"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/telemetry"
)

// scope is the name of our meters.
const scope = "example.com/videocatalog"

// flushTimeout is how long an ending process may take to send its last spans and metrics.
const flushTimeout = time.Second

// closeTelemetry sends the remaining spans and metrics. If that fails, it logs a warning
// only.
func closeTelemetry(ctx context.Context, tel *telemetry.Telemetry, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	if err := tel.Close(ctx); err != nil {
		log.WarnContext(ctx, "telemetry: lost", "err", err)
	}
}

// observeStores makes metrics of the pools and of the stores that this process's roles use.
func observeStores(cfg config, tel *telemetry.Telemetry, database database, events *store.Outbox, registered []Registration) error {
	meter := tel.Meter(scope)
	if meter == nil {
		return nil
	}
	var errs []error
	if events != nil {
		errs = append(errs, events.Observe(meter))
	}
	if cfg.has(roleProjector) || cfg.hasPartRole() {
		var consumers []string
		for _, s := range cfg.program.replayed(registered, database.commandPool()) {
			consumers = append(consumers, s.Consumer)
		}
		errs = append(errs, store.NewInbox(database.queries.own).Observe(meter, consumers))
	}
	for name, pool := range database.all() { // last, so that it does not count the connections of the measurements above
		errs = append(errs, tel.ObservePool(pool, name))
	}
	return errors.Join(errs...)
}

// servePrivate serves the private port until ctx ends. It still runs while the process
// stops, so that the stop can be observed.
func (i *instance) servePrivate(ctx context.Context, listener net.Listener) error {
	i.log.InfoContext(ctx, "telemetry: private port open", "addr", listener.Addr().String())
	return telemetry.Serve(ctx, listener, port.RefusePages(i.cfg.hosts(), telemetry.Private(i.tel.Scrape)), i.log)
}

// listenPrivate opens the private port. It returns nil if no port is configured.
func listenPrivate(ctx context.Context, cfg config) (net.Listener, error) {
	if cfg.TelemetryAddr == "" {
		return nil, nil //nolint:nilnil // there may be none
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.TelemetryAddr)
	if err != nil {
		return nil, fmt.Errorf("TELEMETRY_ADDR: %w", err)
	}
	return listener, nil
}

// live returns the liveness check: it returns an error that names every stuck loop. The
// platform then restarts the process.
func live(checks ...func() error) func() error {
	return func() error {
		var errs []error
		for _, check := range checks {
			errs = append(errs, check())
		}
		return errors.Join(errs...)
	}
}
