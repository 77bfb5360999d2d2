package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/videocatalog/api"
	"example.com/videocatalog/internal/auth"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/port"
	"example.com/videocatalog/internal/telemetry"
)

// closeTimeout is how long a finished process waits for requests to the broker, and then for
// connections to the database, which no longer matter.
const closeTimeout = 500 * time.Millisecond

// flushTimeout is how long an ending process may take to send its last spans and metrics.
const flushTimeout = time.Second

// serve runs the roles of this process until ctx ends.
//
// At the stop accepted requests are finished first. The loops still run meanwhile, so that the last
// writes are published. Then the loops finish the work in hand, and everything is closed in the
// reverse order of its opening. A test keeps the sum of these times below the limit of Cloud Run.
// A crash at any point loses nothing: unsettled work is still in PostgreSQL or at the broker.
func serve(ctx context.Context, s *Service, _ []string, _ io.Writer) (err error) {
	cfg := s.cfg
	s.tel, err = telemetry.Start(ctx, telemetry.Config{Service: names.Service, Version: cfg.program.Version, Prometheus: cfg.TelemetryAddr != ""}, s.Log)
	if err != nil {
		return err
	}
	s.Meter = s.tel.Meter("example.com/videocatalog")
	commands, queries := cfg.sides()
	err = s.Open(ctx, commands, queries)
	s.closers = append(s.closers, func() { s.closeTelemetry(ctx) }) // closed before the pools, which the last export measures
	if err != nil {
		return err
	}
	events, inbox := pg.NewOutbox(s.commands.own), pg.NewInbox(s.queries.own)
	if err := s.observeStores(events, inbox); err != nil {
		return err
	}
	if commands {
		if err := s.maintainPartitions(ctx, events); err != nil {
			return err
		}
	}

	group, stopping := errgroup.WithContext(ctx) // the first error ends all
	loops, stopLoops := context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		stopLoops()
		_ = group.Wait() // waits if the start has failed
	}()
	s.group, s.loops = group, loops
	if cfg.has(rolePublisher) {
		publisher, err := s.newPublisher(ctx, events)
		if err != nil {
			return err
		}
		s.wake = publisher.Wake
		s.Go("publisher", publisher.Run, publisher.Stuck)
	}
	if cfg.has(roleProjector) {
		if err := s.consume(ctx, cfg.limits.Consumer, cfg.program.projected()); err != nil {
			return err
		}
		s.maintain("maintenance of the inbox", maintainInterval, s.inboxSteps(inbox)...)
	}
	for _, part := range cfg.program.Parts {
		if err := s.startPart(ctx, part); err != nil {
			return err
		}
	}
	if commands {
		s.maintain("maintenance of the outbox", maintainInterval, s.outboxSteps(events)...)
		s.maintain("floors of the outbox", floorInterval, func(ctx context.Context) (more bool, err error) { return false, events.RaiseFloors(ctx) })
	}
	if err := s.startPrivatePort(ctx); err != nil {
		return err
	}
	srv, err := s.newServer(ctx)
	if err != nil {
		return err
	}
	group.Go(func() error {
		defer stopLoops() // not before the last response is sent
		return srv.Run(stopping)
	})
	return group.Wait()
}

// observeStores makes metrics of the pools and of the stores that this process's roles use.
func (s *Service) observeStores(events *pg.Outbox, inbox *pg.Inbox) error {
	if s.tel.Metrics == nil {
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

func (s *Service) startPart(ctx context.Context, part Part) error {
	if part.Start != nil {
		if err := part.Start(ctx, s); err != nil {
			return err
		}
	}
	if part.Subscriptions == nil || !s.cfg.has(part.Role) {
		return nil
	}
	limits, subscribed := s.cfg.limits.Consumer, part.Subscriptions(s.Registered)
	limits.Workers = commandWorkers(subscribed)
	return s.consume(ctx, limits, subscribed)
}

// newServer returns the server of the port. Without the role api it serves no method of the API.
func (s *Service) newServer(ctx context.Context) (*port.Server, error) {
	deps := port.Deps{
		Sides: s.readiness(), Live: s.stuck, OpenAPI: api.OpenAPI,
		Wrap: s.wrap, Tracing: s.tel.Tracing, Metrics: s.tel.Metrics, Log: s.Log,
	}
	if s.cfg.has(roleAPI) {
		if err := s.addAPI(&deps); err != nil {
			return nil, err
		}
	}
	var err error
	deps.Listener, err = new(net.ListenConfig).Listen(ctx, "tcp", s.cfg.listenAddr())
	if err != nil {
		return nil, fmt.Errorf("PORT: %w", err)
	}
	srv, err := port.New(s.cfg.limits.Port, deps)
	if err != nil {
		return nil, errors.Join(err, deps.Listener.Close())
	}
	s.Log.InfoContext(ctx, "server: started", "version", s.cfg.program.Version, "roles", s.Roles, "auth", s.cfg.Auth, "addr", deps.Listener.Addr().String())
	return srv, nil
}

// addAPI adds the services of all aggregate types, and the gate that admits calls unless AUTH is
// off.
func (s *Service) addAPI(deps *port.Deps) error {
	backend := Backend{
		Commands: s.commands.calls, Queries: s.queries.calls, Log: s.Log, Wake: s.wake, Port: s.cfg.limits.Port,
	}
	for _, r := range s.Registered {
		if r.Services == nil {
			continue
		}
		services, err := r.Services(backend)
		if err != nil {
			return err
		}
		deps.Services = append(deps.Services, services...)
	}
	deps.Proxies = int(s.cfg.TrustedProxies)
	if s.cfg.Auth == authOff {
		return nil
	}
	gate := &auth.Gate{CallerRate: int(s.cfg.CallerRate), Proxies: deps.Proxies, Log: s.Log}
	for _, part := range s.cfg.program.Parts {
		if part.NewChecker != nil && part.Name == s.cfg.Auth {
			var err error
			if gate.Checker, err = part.NewChecker(s, port.Methods(deps.Services)); err != nil {
				return UsageError(err)
			}
		}
	}
	deps.Admit = gate.Admit
	return nil
}

// closeTelemetry sends the remaining spans and metrics. If that fails, it logs a warning
// only.
func (s *Service) closeTelemetry(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	if err := s.tel.Close(ctx); err != nil {
		s.Log.WarnContext(ctx, "telemetry: lost", "err", err)
	}
}

// closeInTime calls end, and waits at most closeTimeout.
func closeInTime(end func()) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		end()
	}()
	select {
	case <-closed:
	case <-time.After(closeTimeout): // the process ends, and with it the rest of the work
	}
}
