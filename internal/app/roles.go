package app

import (
	"context"
	"errors"
	"fmt"
	"net"

	"cloud.google.com/go/pubsub/v2"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"example.com/videocatalog/api"
	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/port"
	"example.com/videocatalog/internal/reconnect"
	"example.com/videocatalog/internal/store"
)

// startStores opens the stores of the databases that this process uses, and prepares the
// outbox for the first write.
func (i *instance) startStores(ctx context.Context) error {
	var queries *pgxpool.Pool
	if i.database.commands != nil {
		i.events = store.NewOutbox(i.database.commands.own)
	}
	if i.database.queries != nil {
		queries = i.database.queries.own
	}
	i.registered = append(i.registered, i.cfg.program.Registrations(queries)...)
	if err := observeStores(i.cfg, i.tel, i.database, i.events, i.registered); err != nil {
		return err
	}
	if i.events == nil {
		return nil
	}
	for _, r := range i.registered {
		if r.Maintain != nil {
			i.steps = append(i.steps, r.Maintain(i.events, tombstoneRetention(i.cfg))...)
		}
	}
	return prepareOutbox(ctx, i.events, i.cfg)
}

// startMaintenance starts the maintenance of the command side, with the steps of the aggregate
// types and of the parts.
func (i *instance) startMaintenance(context.Context) error {
	if i.events == nil {
		return nil
	}
	loop := maintenanceLoop("outbox")
	i.checks = append(i.checks, loop.Check)
	i.tasks = append(i.tasks, func(ctx context.Context) error {
		return maintainOutbox(ctx, i.events, i.cfg, i.purged, i.log, loop, i.steps...)
	})
	return nil
}

// startPublisher starts the publisher, if the process has that role.
func (i *instance) startPublisher(ctx context.Context) error {
	if !i.cfg.has(rolePublisher) {
		return nil
	}
	if err := i.startPubSub(ctx); err != nil {
		return err
	}
	topics := openTopics(i.client, i.cfg)
	i.closers = append(i.closers, func() { closeTopics(topics) })
	cfg := i.cfg.outbox
	cfg.Tracing = i.tel.Tracing
	var err error
	if i.publisher, err = outbox.New(i.events, topics, cfg, i.log, i.tel.Meter(scope)); err != nil {
		return err
	}
	i.loops, i.checks = append(i.loops, i.publisher.Run), append(i.checks, i.publisher.Stuck)
	return nil
}

// startProjector starts the projector, if the process has that role.
func (i *instance) startProjector(ctx context.Context) error {
	if !i.cfg.has(roleProjector) {
		return nil
	}
	inbox, subscribed := store.NewInbox(i.database.queries.own), subscriptions(i.registered)
	if err := i.consume(ctx, i.cfg.consumer, subscribed); err != nil {
		return err
	}
	loop := maintenanceLoop("inbox")
	i.checks = append(i.checks, loop.Check)
	i.tasks = append(i.tasks, func(ctx context.Context) error {
		return maintainInbox(ctx, inbox, subscribed, i.cfg, i.log, loop)
	})
	return nil
}

// consume starts a consumer per subscription. They share the workers. A message that cannot be handled goes to the
// quarantine, which is on the query side.
func (i *instance) consume(ctx context.Context, cfg consumer.Config, subscribed []Subscription) error {
	if len(subscribed) == 0 {
		return nil
	}
	if err := i.startPubSub(ctx); err != nil {
		return err
	}
	if err := checkConsumers(subscribed); err != nil {
		return err
	}
	cfg.Tracing, cfg.Workers = i.tel.Tracing, max(1, cfg.Workers/len(subscribed))
	for _, s := range subscribed {
		from := consumer.Subscription{Source: consumer.PubSub(i.client.Subscriber(s.ID)), Consumer: s.Consumer, Handlers: s.Handlers}
		c, err := consumer.New(cfg, from, store.NewInbox(i.database.queries.own), i.log, i.tel.Meter(scope))
		if err != nil {
			return err
		}
		i.loops, i.checks = append(i.loops, c.Run), append(i.checks, c.Stuck)
	}
	return nil
}

// startPrivatePort opens the private port for metrics, if one is configured.
func (i *instance) startPrivatePort(ctx context.Context) error {
	listener, err := listenPrivate(ctx, i.cfg)
	if err != nil || listener == nil {
		return err
	}
	i.closers = append(i.closers, func() { _ = listener.Close() }) // servePrivate closes it as well
	i.loops = append(i.loops, func(ctx context.Context) error {
		return i.servePrivate(ctx, listener)
	})
	return nil
}

// newServer returns the server of the port. Without the role api it serves health
// checks only.
func (i *instance) newServer(ctx context.Context) (*port.Server, error) {
	deps := port.Deps{
		Sides: i.database.sides(), Live: live(i.checks...), OpenAPI: api.OpenAPI,
		Wrap: i.wrapped, Tracing: i.tel.Tracing, Metrics: i.tel.Metrics, Log: i.log,
	}
	var err error
	if deps.Services, err = services(i.registered, i.backend()); err != nil {
		return nil, err
	}
	gate, err := i.gate()
	if err != nil {
		return nil, err
	}
	if gate != nil {
		deps.Admit, deps.Address, deps.WithCaller = gate.Admit, gate.Address, i.cfg.withCaller
	}
	deps.Listener, err = new(net.ListenConfig).Listen(ctx, "tcp", i.cfg.listenAddr())
	if err != nil {
		return nil, fmt.Errorf("PORT: %w", err)
	}
	srv, err := port.New(i.cfg.port, deps)
	if err != nil {
		return nil, errors.Join(err, deps.Listener.Close())
	}
	i.log.InfoContext(ctx, "server: started", "version", i.cfg.program.Version, "roles", i.cfg.Roles, "auth", i.cfg.Auth, "addr", deps.Listener.Addr().String())
	return srv, nil
}

// backend returns what handlers are made of, or nil if the process does not have the role
// api.
func (i *instance) backend() *Backend {
	if !i.cfg.has(roleAPI) {
		return nil
	}
	return &Backend{
		Commands: i.database.commands.calls, Queries: i.database.queries.calls, Wake: i.wake, Purged: i.wakeEraser,
		Port: i.cfg.port,
	}
}

// wake wakes the publisher of this process, if it has one.
func (i *instance) wake(aggregate envelope.Aggregate) {
	if i.publisher != nil {
		i.publisher.Wake(aggregate)
	}
}

// wakeEraser wakes the maintenance of the outbox in this process.
func (i *instance) wakeEraser() {
	select {
	case i.purged <- struct{}{}:
	default: // it is being woken already
	}
}

// startPubSub opens the client of Pub/Sub, which the roles share.
func (i *instance) startPubSub(ctx context.Context) (err error) {
	if i.client != nil {
		return nil
	}
	if i.client, err = openPubSub(ctx, i.cfg); err != nil {
		return err
	}
	i.closers = append(i.closers, func() { _ = i.client.Close() }) // everything is settled by then
	return nil
}

// openPubSub makes a client of Pub/Sub, or of the emulator in PUBSUB_EMULATOR_HOST.
func openPubSub(ctx context.Context, cfg config) (*pubsub.Client, error) {
	var options []option.ClientOption
	for _, dial := range reconnect.DialOptions() {
		options = append(options, option.WithGRPCDialOption(dial))
	}
	switch {
	case cfg.emulator != "":
		plain := grpc.WithTransportCredentials(insecure.NewCredentials())
		options = append(options, option.WithEndpoint(cfg.emulator), option.WithoutAuthentication(), option.WithGRPCDialOption(plain))
	case cfg.PubSubEndpoint != "":
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

// openTopics returns the topics of internal/names that this service publishes to, by
// aggregate type.
func openTopics(client *pubsub.Client, cfg config) outbox.Topics {
	topics := make(outbox.Topics)
	for _, t := range names.Topics() {
		if t.Foreign {
			continue
		}
		topic := outbox.NewTopic(client.Publisher(t.Name), cfg.outbox.RequestTimeout, cfg.inFlight())
		for _, aggregateType := range t.AggregateTypes {
			topics[aggregateType] = topic
		}
	}
	return topics
}

// closeTopics stops topics after all passes are settled. It waits at most closeTimeout: a
// message without an answer is still pending and is published again.
func closeTopics(topics outbox.Topics) { closeInTime(topics.Stop) }
