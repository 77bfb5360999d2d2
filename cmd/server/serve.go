package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"golang.org/x/sync/errgroup"
	"google.golang.org/api/option"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/reconnect"
	"example.com/videocatalog/internal/server"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/telemetry"
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
	database, err := openDatabase(ctx, cfg, cfg.sides(), cfg.callConnections(), tel.QueryTracer())
	defer func() {
		closeTelemetry(ctx, tel, log) // the last look at the metrics is one at the database
		database.close()
	}()
	if err != nil {
		return err
	}

	var publisher *outbox.Publisher
	var videos *store.Videos   // nil: no role uses them
	var events *store.Outbox   // the same
	var catalog *store.Catalog // the same
	if database.video != nil {
		videos = store.NewVideos(database.video.own, nil)
		events = store.NewOutbox(database.video.own)
	}
	if database.catalog != nil {
		catalog = store.NewCatalog(database.catalog.own)
	}
	if err := observeStores(cfg, tel, database, events, catalog); err != nil {
		return err
	}
	watched := sidesOf(videos, catalog)
	if err := observeReplaced(tel.Meter(scope), watched); err != nil {
		return err
	}
	if events != nil {
		if err := prepareOutbox(ctx, events, cfg); err != nil {
			return err
		}
	}

	var client *pubsub.Client
	if cfg.has(rolePublisher) || cfg.has(roleProjector) {
		if client, err = openPubSub(ctx, cfg); err != nil {
			return err
		}
		defer client.Close()
	}
	var projector *consumer.Projector
	deps := server.Deps{Ready: database.ready(), Tracing: tel.Tracing, Metrics: tel.Metrics, Log: log}
	if cfg.has(rolePublisher) {
		topics := openTopics(client, cfg)
		defer closeTopics(topics)
		outboxConfig := cfg.outbox
		outboxConfig.Tracing = tel.Tracing
		if publisher, err = outbox.New(events, topics, outboxConfig, log, tel.Meter(scope)); err != nil {
			return err
		}
	}
	var inbox *store.Inbox // nil: no role uses it
	var subscribed []subscription
	if cfg.has(roleProjector) {
		inbox, subscribed = store.NewInbox(database.catalog.own), cfg.subscriptions(catalog)
		consumerConfig := cfg.consumer
		consumerConfig.Tracing = tel.Tracing
		if projector, err = consumer.New(consumerConfig, sources(client, subscribed), inbox, log, tel.Meter(scope)); err != nil {
			return err
		}
	}
	if cfg.has(roleAPI) {
		deps.Videos = store.NewVideos(database.video.calls, func(aggregate envelope.Aggregate) {
			if publisher != nil {
				publisher.Wake(aggregate)
			}
		})
		deps.Catalog = catalog.Over(database.catalog.calls)
		deps.Changes = catalog
		if deps.TokenKey, err = tokenKey(ctx, videos, cfg); err != nil {
			return err
		}
	}
	outboxMaintenance, inboxMaintenance := maintenanceLoop("outbox"), maintenanceLoop("inbox")
	deps.Live = live(publisher, projector, outboxMaintenance, inboxMaintenance)
	private, err := listenPrivate(ctx, cfg)
	if err != nil {
		return err
	}
	if private != nil {
		defer private.Close()
	}
	gate, verifier, err := cfg.callers(log)
	if err != nil {
		return err
	}
	if gate != nil {
		deps.Admit, deps.Address = gate.Admit, gate.Address
	}
	deps.Listener, err = new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf(":%d", cfg.Port))
	if err != nil {
		return fmt.Errorf("PORT: %w", err)
	}
	srv, err := server.New(cfg.server, deps)
	if err != nil {
		return errors.Join(err, deps.Listener.Close())
	}

	log.InfoContext(ctx, "server: started", "version", version, "roles", cfg.Roles, "auth", cfg.Auth, "addr", deps.Listener.Addr().String())
	loops, stopLoops := context.WithCancel(context.WithoutCancel(ctx))
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer stopLoops() // not before the last request is answered
		return srv.Run(ctx)
	})
	if private != nil {
		g.Go(func() error { return servePrivate(loops, private, tel, events, level, log) })
	}
	if verifier != nil {
		g.Go(func() error { return verifier.Run(loops) })
	}
	g.Go(func() error { return watchDatabases(ctx, watched, log) })
	if publisher != nil {
		g.Go(func() error { return publisher.Run(loops) })
	}
	if events != nil {
		g.Go(func() error { return maintainOutbox(ctx, events, cfg.OutboxRetention, log, outboxMaintenance) })
	}
	if projector != nil {
		g.Go(func() error { return projector.Run(loops) })
		g.Go(func() error {
			return maintainInbox(ctx, inbox, subscribed, cfg.InboxRetention, log, inboxMaintenance)
		})
	}
	return g.Wait()
}

// openPubSub makes a client of Pub/Sub, or of an emulator when
// PUBSUB_EMULATOR_HOST is set, which the library reads itself.
func openPubSub(ctx context.Context, cfg config) (*pubsub.Client, error) {
	var options []option.ClientOption
	for _, dial := range reconnect.DialOptions() {
		options = append(options, option.WithGRPCDialOption(dial))
	}
	if cfg.PubSubEndpoint != "" {
		options = append(options, option.WithEndpoint(cfg.PubSubEndpoint))
	}
	client, err := pubsub.NewClient(context.WithoutCancel(ctx), cfg.PubSubProject, options...)
	if err != nil {
		return nil, fmt.Errorf("open Pub/Sub: %w", err)
	}
	outbox.RetrySoon(client)
	consumer.RetrySoon(client)
	return client, nil
}

// openTopics returns the topics of internal/names, by aggregate type.
func openTopics(client *pubsub.Client, cfg config) outbox.Topics {
	topics := make(outbox.Topics)
	for _, t := range names.Topics() {
		topic := outbox.NewTopic(client.Publisher(t.Name), cfg.outbox.RequestTimeout, cfg.inFlight())
		for _, aggregateType := range t.AggregateTypes {
			topics[aggregateType] = topic
		}
	}
	return topics
}

// closeTopics ends topics whose passes are all settled. Messages without an
// answer are still pending, and published again: nobody needs to wait.
func closeTopics(topics outbox.Topics) { closeInTime(topics.Stop) }

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
