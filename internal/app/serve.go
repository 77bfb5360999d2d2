package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"example.com/videocatalog/api"
	"example.com/videocatalog/internal/auth"
	"example.com/videocatalog/internal/port"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/telemetry"
)

// closeTimeout is how long a finished process waits for requests to the broker, and then for
// connections to the database, which no longer matter.
const closeTimeout = 500 * time.Millisecond

// serve runs the roles of this process until ctx ends.
//
// At the stop accepted requests are finished first. The loops still run meanwhile, so that the last
// writes are published. Then the loops finish the work in hand, and everything is closed in the
// reverse order of its opening. A test keeps the sum of these times below the limit of Cloud Run.
// A crash at any point loses nothing: unsettled work is still in PostgreSQL or at the broker.
func serve(ctx context.Context, s *Service, _ io.Writer) (err error) {
	cfg := s.cfg
	if s.tel, err = telemetry.Start(ctx, cfg.telemetry(), s.Log); err != nil {
		return err
	}
	s.Meter = s.tel.Meter(scope)
	err = s.open(ctx, cfg.sides(), s.tel.QueryTracer())
	s.closers = append(s.closers, func() { s.closeTelemetry(ctx) }) // before the database, which the last export measures
	if err != nil {
		return err
	}
	events, inbox := store.NewOutbox(s.commands.own), store.NewInbox(s.queries.own)
	if err := s.observeStores(events, inbox); err != nil {
		return err
	}
	if cfg.sides().commands {
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
	if cfg.sides().commands {
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

// newServer returns the server of the port. Without the role api it serves health checks only.
func (s *Service) newServer(ctx context.Context) (*port.Server, error) {
	deps := port.Deps{
		Sides: s.readiness(), Live: s.stuck, OpenAPI: api.OpenAPI,
		Wrap: s.wrapped, Tracing: s.tel.Tracing, Metrics: s.tel.Metrics, Log: s.Log,
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

// wrapped returns a handler behind the middlewares of the parts.
func (s *Service) wrapped(handler http.Handler) http.Handler {
	for _, middleware := range s.wrap {
		handler = middleware(handler)
	}
	return handler
}

// addAPI adds the services of all aggregate types, and the gate that admits calls unless AUTH is
// off.
func (s *Service) addAPI(deps *port.Deps) error {
	backend := Backend{
		Commands: s.commands.calls, Queries: s.queries.calls, Wake: s.wake, Port: s.cfg.limits.Port,
	}
	var descs []*grpc.ServiceDesc
	for _, r := range s.Registered {
		if r.Services == nil {
			continue
		}
		services, err := r.Services(backend)
		if err != nil {
			return err
		}
		for _, service := range services {
			deps.Services, descs = append(deps.Services, service), append(descs, service.Desc)
		}
	}
	deps.Proxies = int(s.cfg.TrustedProxies)
	if s.cfg.Auth == authOff {
		return nil
	}
	gate := &auth.Gate{CallerRate: int(s.cfg.CallerRate), Proxies: deps.Proxies, Log: s.Log}
	for _, part := range s.cfg.program.Parts {
		if part.NewChecker != nil && part.Name == s.cfg.Auth {
			var err error
			if gate.Checker, err = part.NewChecker(s, port.Methods(descs...)); err != nil {
				return UsageError(err)
			}
		}
	}
	deps.Admit = gate.Admit
	return nil
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
