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
	"example.com/videocatalog/internal/telemetry"
	"example.com/videocatalog/internal/transport"
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
// reverse order of its opening. A test keeps the sum of the default times below the limit of Cloud Run.
// A crash at any point loses nothing: unsettled work is still in PostgreSQL or at the broker.
func serve(ctx context.Context, p *Process, _ []string, _ io.Writer) (err error) {
	cfg := p.cfg
	p.tel, err = telemetry.Start(ctx, telemetry.Config{Service: names.Service, Version: cfg.program.Version, Prometheus: cfg.TelemetryAddr != ""}, p.Log)
	if err != nil {
		return err
	}
	p.Meter = p.tel.Meter("example.com/videocatalog")
	if cfg.hasAny(roleAPI, rolePublisher) {
		err = p.OpenCommandSide(ctx)
	}
	if cfg.hasAny(roleAPI, roleProjector) && err == nil {
		err = p.OpenQuerySide(ctx)
	}
	p.closers = append(p.closers, func() { p.closeTelemetry(ctx) }) // closed before the pools, which the last export measures
	if err != nil {
		return err
	}
	events, inbox := pg.NewOutbox(p.commandSide.own), pg.NewInbox(p.querySide.own)
	if err := p.observeStores(events, inbox); err != nil {
		return err
	}
	if p.CommandPool != nil {
		if err := p.WhenAvailable(ctx, func(ctx context.Context) error { return p.maintainPartitions(ctx, events) }); err != nil {
			return err
		}
	}

	group, stopping := errgroup.WithContext(ctx) // the first error ends all
	loops, stopLoops := context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		stopLoops()
		_ = group.Wait() // waits if the start has failed
	}()
	p.group, p.loops = group, loops
	if cfg.has(rolePublisher) {
		publisher, err := p.newPublisher(ctx, events)
		if err != nil {
			return err
		}
		p.wake = publisher.Wake
		p.Go("publisher", publisher.Run, publisher.Stuck)
	}
	if err := p.consume(ctx, roleProjector, p.querySide); err != nil {
		return err
	}
	if cfg.has(roleProjector) {
		p.maintain("maintenance of the inbox", maintainInterval, p.allQuerySteps(inbox)...)
	}
	for _, option := range cfg.program.Options {
		if option.Start != nil {
			if err := option.Start(ctx, p); err != nil {
				return err
			}
		}
		if err := p.consume(ctx, option.Role, p.commandSide); err != nil {
			return err
		}
	}
	if p.CommandPool != nil {
		p.maintain("maintenance of the outbox", maintainInterval, p.allCommandSteps(events)...)
		p.maintain("floors of the outbox", floorInterval, func(ctx context.Context) (more bool, err error) { return false, events.RaiseFloors(ctx) })
	}
	if err := p.startPrivatePort(ctx); err != nil {
		return err
	}
	srv, err := p.newServer(ctx)
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
func (p *Process) observeStores(events *pg.Outbox, inbox *pg.Inbox) error {
	if p.tel.Metrics == nil {
		return nil
	}
	var errs []error
	if p.CommandPool != nil {
		errs = append(errs, events.Observe(p.Meter))
	}
	if p.cfg.hasAny(roleProjector) {
		errs = append(errs, inbox.Observe(p.Meter, pg.MapSlice(p.Replayed(), func(s Subscription) string { return s.Consumer })))
	}
	for name, pool := range p.pools { // last, so that it does not count the connections of the measurements above
		errs = append(errs, p.tel.ObservePool(pool, name))
	}
	return errors.Join(errs...)
}

// startPrivatePort opens the private port, if one is configured. It still runs while the process
// stops, so that the stop can be observed.
func (p *Process) startPrivatePort(ctx context.Context) error {
	if p.cfg.TelemetryAddr == "" {
		return nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", p.cfg.TelemetryAddr)
	if err != nil {
		return fmt.Errorf("TELEMETRY_ADDR: %w", err)
	}
	p.Log.InfoContext(ctx, "telemetry: private port open", "addr", listener.Addr().String())
	p.Go("private port", func(ctx context.Context) error {
		return telemetry.Serve(ctx, listener, transport.RefusePages(p.Hosts, telemetry.Private(p.tel.Scrape)), p.Log)
	}, nil)
	return nil
}

// newServer returns the server of the port. Without the role api it serves no method of the API.
func (p *Process) newServer(ctx context.Context) (*transport.Server, error) {
	deps := transport.Deps{
		Sides: p.readiness(), Live: p.stuck, OpenAPI: api.OpenAPI,
		Wrap: p.wrap, Tracing: p.tel.Tracing, Metrics: p.tel.Metrics, Log: p.Log,
	}
	if p.cfg.has(roleAPI) {
		if err := p.addAPI(&deps); err != nil {
			return nil, err
		}
	}
	var err error
	deps.Listener, err = new(net.ListenConfig).Listen(ctx, "tcp", p.cfg.listenAddr())
	if err != nil {
		return nil, fmt.Errorf("PORT: %w", err)
	}
	srv, err := transport.New(p.Limits.Transport, deps)
	if err != nil {
		return nil, errors.Join(err, deps.Listener.Close())
	}
	p.Log.InfoContext(ctx, "server: started", "version", p.cfg.program.Version, "roles", p.Roles, "auth", p.cfg.Auth, "addr", deps.Listener.Addr().String())
	return srv, nil
}

// addAPI adds the services of all aggregate types, and the gate that admits calls unless AUTH is
// off.
func (p *Process) addAPI(deps *transport.Deps) error {
	backend := Backend{
		CommandPool: p.commandSide.calls, QueryPool: p.querySide.calls, Log: p.Log, Wake: p.wake, Transport: p.Limits.Transport,
	}
	for _, r := range p.Registered {
		if r.Services == nil {
			continue
		}
		services, err := r.Services(backend)
		if err != nil {
			return err
		}
		deps.Services = append(deps.Services, services...)
	}
	deps.Proxies = int(p.cfg.TrustedProxies)
	if p.cfg.Auth == authOff {
		return nil
	}
	gate := &auth.Gate{CallerRate: int(p.cfg.CallerRate), Proxies: deps.Proxies, Log: p.Log}
	// only oidc: begin
	if err := p.addChecker(gate, transport.Methods(deps.Services)); err != nil {
		return err
	}
	// only oidc: end
	deps.Admit = gate.Admit
	return nil
}

// closeTelemetry sends the remaining spans and metrics. If that fails, it logs a warning
// only.
func (p *Process) closeTelemetry(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	if err := p.tel.Close(ctx); err != nil {
		p.Log.WarnContext(ctx, "telemetry: lost", "err", err)
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
