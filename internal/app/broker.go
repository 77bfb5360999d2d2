package app

import (
	"context"
	"fmt"

	"cloud.google.com/go/pubsub/v2"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/reconnect"
)

// Broker is where a process publishes and consumes events.
type Broker struct {
	Topic func(name string) outbox.Broker // called once per topic
	// Source returns the subscription with an ID. It may hold a share of the messages in hand of the
	// process, which has that many subscriptions. Nil: the broker only publishes.
	Source func(id string, subscriptions int) consumer.Source
	Stop   func() // waits for the messages that were handed over, and closes what was opened
	System string // messaging.system in spans: see the semantic conventions of OpenTelemetry
}

// openBroker returns the broker that BROKER selects, which all parts of the process share. When it is
// stopped, everything is settled, and the process waits at most closeTimeout for the last responses. An
// event without a response is still pending and is published again.
func (p *Process) openBroker(ctx context.Context) (_ Broker, err error) {
	if p.broker.Topic != nil {
		return p.broker, nil
	}
	open := newPubSub
	for _, option := range p.cfg.program.Options {
		if option.NewBroker != nil && option.selector() == p.Broker {
			open = option.NewBroker
		}
	}
	if p.broker, err = open(ctx, p); err != nil {
		return Broker{}, err
	}
	p.closers = append(p.closers, func() { closeInTime(p.broker.Stop) })
	if p.broker.Source == nil && p.Subcommand == "serve" && p.cfg.hasAny(roleProjector) {
		return Broker{}, UsageError(fmt.Errorf("BROKER=%s only publishes: ROLES may be api and publisher, and other roles need a process with another broker", p.Broker))
	}
	return p.broker, nil
}

// PubSub returns the client of Pub/Sub, or of the emulator in PUBSUB_EMULATOR_HOST. All parts of
// the process share it, and the process closes it.
func (p *Process) PubSub(ctx context.Context) (*pubsub.Client, error) {
	if p.client != nil {
		return p.client, nil
	}
	if p.cfg.PubSubProject == "" {
		return nil, UsageError(fmt.Errorf("PUBSUB_PROJECT is required by %s", p.Subcommand))
	}
	options := pg.MapSlice(reconnect.DialOptions(), option.WithGRPCDialOption)
	switch {
	case p.cfg.emulator != "":
		plain := grpc.WithTransportCredentials(insecure.NewCredentials())
		options = append(options, option.WithEndpoint(p.cfg.emulator), option.WithoutAuthentication(), option.WithGRPCDialOption(plain))
	case p.cfg.PubSubEndpoint != "":
		options = append(options, option.WithEndpoint(p.cfg.PubSubEndpoint))
	}
	client, err := pubsub.NewClient(context.WithoutCancel(ctx), p.cfg.PubSubProject, options...)
	if err != nil {
		return nil, fmt.Errorf("open Pub/Sub: %w", err)
	}
	reconnect.RetrySoon(client)
	p.client = client
	p.closers = append(p.closers, func() { _ = client.Close() }) // everything is settled by then
	return client, nil
}

// newPubSub makes the broker that BROKER selects by default.
func newPubSub(ctx context.Context, p *Process) (Broker, error) {
	client, err := p.PubSub(ctx)
	if err != nil {
		return Broker{}, err
	}
	limits := p.Limits.Outbox
	inFlight := 2 * limits.Workers * limits.Batch // ordering keys: a pass has a batch of events, and half as many deferred events
	var topics []*outbox.Topic
	return Broker{
		System: "gcp_pubsub",
		Topic: func(name string) outbox.Broker {
			topic := outbox.NewTopic(client.Publisher(name), limits.RequestTimeout(), inFlight)
			topics = append(topics, topic)
			return topic
		},
		Source: func(id string, all int) consumer.Source { return consumer.PubSub(client.Subscriber(id), all) },
		Stop: func() {
			for _, topic := range topics {
				topic.Stop()
			}
		},
	}, nil
}

// newPublisher makes a publisher for the topics that this service owns.
func (p *Process) newPublisher(ctx context.Context, events outbox.Store) (*outbox.Publisher, error) {
	broker, err := p.openBroker(ctx)
	if err != nil {
		return nil, err
	}
	limits := p.Limits.Outbox
	limits.Tracing, limits.System = p.tel.Tracing, broker.System
	topics := make(outbox.Topics)
	for _, t := range names.Topics() {
		if t.Foreign {
			continue
		}
		topic := broker.Topic(t.Name)
		for _, aggregateType := range t.AggregateTypes {
			topics[aggregateType] = topic
		}
	}
	// only wal: begin
	if events, err = p.newStore(ctx, events); err != nil {
		return nil, err
	}
	// only wal: end
	return outbox.New(events, topics, limits, p.Log, p.Meter)
}

// consume starts a consumer per subscription of a role, if this process has it. Those that write to one side share its
// permits. Each has a share of the messages in hand and of the workers, so that one that is stuck leaves
// permits to the others. A message that cannot be handled goes to the quarantine, on the query side.
func (p *Process) consume(ctx context.Context, role string, written side) error {
	subscribed, all := p.cfg.program.subscriptions(role), len(p.cfg.program.subscriptions(p.Roles...))
	if !p.cfg.has(role) || len(subscribed) == 0 {
		return nil
	}
	broker, err := p.openBroker(ctx)
	if err != nil {
		return err
	}
	limits := p.Limits.Consumer
	limits.Tracing, limits.Permits, limits.Workers = p.tel.Tracing, written.permits, max(1, p.cfg.permits()/all)
	for _, subscription := range subscribed {
		from := consumer.Input{Source: broker.Source(subscription.ID, all), Consumer: subscription.Consumer, Handlers: subscription.Handlers(p.Backend())}
		c, err := consumer.New(limits, from, pg.NewInbox(p.querySide.own), p.Log, p.Meter)
		if err != nil {
			return err
		}
		p.Go("consumer "+subscription.Consumer, c.Run, c.Stuck)
	}
	return nil
}
