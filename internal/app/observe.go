package app

import (
	"context"
	"errors"
	"fmt"
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
func (s *Service) closeTelemetry(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	if err := s.tel.Close(ctx); err != nil {
		s.Log.WarnContext(ctx, "telemetry: lost", "err", err)
	}
}

// observeStores makes metrics of the pools and of the stores that this process's roles use.
func (s *Service) observeStores(events *store.Outbox, inbox *store.Inbox) error {
	if s.Meter == nil {
		return nil
	}
	var errs []error
	if s.Commands != nil {
		errs = append(errs, events.Observe(s.Meter))
	}
	if s.cfg.has(roleProjector) || s.cfg.hasPartRole() {
		var consumers []string
		for _, subscribed := range s.Replayed() {
			consumers = append(consumers, subscribed.Consumer)
		}
		errs = append(errs, inbox.Observe(s.Meter, consumers))
	}
	for name, pool := range s.pools { // last, so that it does not count the connections of the measurements above
		errs = append(errs, s.tel.ObservePool(pool, name))
	}
	return errors.Join(errs...)
}

// startPrivatePort opens the private port, if one is configured. It still runs while the process
// stops, so that the stop can be observed.
func (s *Service) startPrivatePort(ctx context.Context) error {
	if s.cfg.TelemetryAddr == "" {
		return nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.cfg.TelemetryAddr)
	if err != nil {
		return fmt.Errorf("TELEMETRY_ADDR: %w", err)
	}
	s.Log.InfoContext(ctx, "telemetry: private port open", "addr", listener.Addr().String())
	s.Go("private port", func(ctx context.Context) error {
		return telemetry.Serve(ctx, listener, port.RefusePages(s.Hosts, telemetry.Private(s.tel.Scrape)), s.Log)
	}, nil)
	return nil
}
