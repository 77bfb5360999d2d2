package app

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"golang.org/x/sync/errgroup"

	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/port"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/telemetry"
)

// serve runs the roles of this process until ctx ends.
//
// The order of the stop matters. First the server drains: accepted requests are finished.
// The loops still run meanwhile, so that callers see their own writes, and the last writes
// are published. Then the loops finish the work in hand. A test keeps the
// sum of these times below the limit of Cloud Run. A crash at any point loses nothing:
// unsettled work is still in PostgreSQL or at the broker.
func serve(ctx context.Context, cfg config, log *slog.Logger) error {
	tel, err := telemetry.Start(ctx, cfg.telemetry(), log)
	if err != nil {
		return err
	}
	i := &instance{cfg: cfg, log: log, tel: tel, purged: make(chan struct{}, 1)}
	defer i.close(ctx)
	if i.database, err = openDatabase(ctx, cfg, cfg.sides(), cfg.callConnections(), tel.QueryTracer()); err != nil {
		return err
	}
	for _, start := range []func(context.Context) error{i.startStores, i.startPublisher, i.startProjector, i.startPrivatePort, i.startParts, i.startMaintenance} {
		if err := start(ctx); err != nil {
			return err
		}
	}
	srv, err := i.newServer(ctx)
	if err != nil {
		return err
	}
	return i.run(ctx, srv)
}

// instance holds what the roles of a process share.
type instance struct {
	cfg      config
	log      *slog.Logger
	tel      *telemetry.Telemetry
	database database

	events     *store.Outbox  // nil if no role uses it
	purged     chan struct{}  // has a value after a purge, until the maintenance sees it
	registered []Registration // startStores adds the registrations of the service

	client    *pubsub.Client    // nil if no role uses it
	publisher *outbox.Publisher // nil if the process does not have this role

	wrap    []func(http.Handler) http.Handler
	steps   []Step                        // of the maintenance of the command side
	tasks   []func(context.Context) error // run until the stop begins
	loops   []func(context.Context) error // run until the last request is answered
	checks  []func() error                // return an error for a loop that is stuck
	closers []func()                      // run in reverse order
}

// run runs everything until ctx ends or something fails.
func (i *instance) run(ctx context.Context, srv *port.Server) error {
	loops, stopLoops := context.WithCancel(context.WithoutCancel(ctx))
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer stopLoops() // not before the last request is answered
		return srv.Run(ctx)
	})
	for _, task := range i.tasks {
		g.Go(func() error { return task(ctx) })
	}
	for _, loop := range i.loops {
		g.Go(func() error { return loop(loops) })
	}
	return g.Wait()
}

// close releases the resources of the process. The last export of metrics measures the
// database, so the database is closed last.
func (i *instance) close(ctx context.Context) {
	for _, end := range slices.Backward(i.closers) {
		end()
	}
	closeTelemetry(ctx, i.tel, i.log)
	i.database.close()
}

// closeInTime calls end, and waits at most closeTimeout for it.
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

// sleep waits for d and returns true. It returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
