package main

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"golang.org/x/sync/errgroup"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/server"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/telemetry"
	"example.com/videocatalog/internal/telemetry/heartbeat"
)

// serve runs the roles of this process until ctx ends.
//
// The order of the stop matters. First the server drains: requests it has
// accepted are answered, and while they are, the loops still run, so that a
// caller who waits for its own write sees it, and the last writes are
// published. Then the loops finish what they have in hand. A test keeps the
// sum of their budgets below what Cloud Run allows. A crash at any point loses
// nothing: what is not settled is in PostgreSQL or with the broker.
func serve(ctx context.Context, cfg config, level *slog.LevelVar, log *slog.Logger) error {
	tel, err := telemetry.Start(ctx, cfg.telemetry(), log)
	if err != nil {
		return err
	}
	i := &instance{cfg: cfg, level: level, log: log, tel: tel}
	defer i.close(ctx)
	if i.database, err = openDatabase(ctx, cfg, cfg.sides(), cfg.callConnections(), tel.QueryTracer()); err != nil {
		return err
	}
	for _, start := range []func(context.Context) error{i.startStores, i.startPublisher, i.startProjector, i.startPrivatePort} {
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

// instance has what the roles of a process share.
type instance struct {
	cfg      config
	level    *slog.LevelVar
	log      *slog.Logger
	tel      *telemetry.Telemetry
	database database

	videos  *store.Videos  // nil: no role uses it
	events  *store.Outbox  // the same
	catalog *store.Catalog // the same

	client    *pubsub.Client      // nil: no role uses it
	publisher *outbox.Publisher   // nil: not a role of this process
	projector *consumer.Projector // the same

	tasks       []func(context.Context) error // run until the stop begins
	loops       []func(context.Context) error // run until the last request is answered
	maintenance []*heartbeat.Loop
	closers     []func() // run in reverse
}

// run runs everything until ctx ends, or the first error.
func (i *instance) run(ctx context.Context, srv *server.Server) error {
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

// close releases what the process holds. The last export of metrics measures the
// database, so the database is closed last.
func (i *instance) close(ctx context.Context) {
	for _, end := range slices.Backward(i.closers) {
		end()
	}
	closeTelemetry(ctx, i.tel, i.log)
	i.database.close()
}

// closeInTime closes something, and waits no longer than closeTimeout for it.
func closeInTime(end func()) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		end()
	}()
	select {
	case <-closed:
	case <-time.After(closeTimeout): // the process ends, and what is left with it
	}
}

// sleep waits and returns true, or false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
