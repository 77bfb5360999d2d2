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

// PubSub returns the client of Pub/Sub, or of the emulator in PUBSUB_EMULATOR_HOST. All parts of
// the process share it, and the process closes it.
func (p *Process) PubSub(ctx context.Context) (*pubsub.Client, error) {
	if p.client != nil {
		return p.client, nil
	}
	if p.cfg.PubSubProject == "" {
		return nil, UsageError(fmt.Errorf("PUBSUB_PROJECT is required by %s", p.Subcommand))
	}
	var options []option.ClientOption
	for _, dial := range reconnect.DialOptions() {
		options = append(options, option.WithGRPCDialOption(dial))
	}
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

// newPublisher makes a publisher for the topics that this service owns. When all its passes are
// settled, the process waits for the last responses of the broker, at most closeTimeout. An event
// without a response is still pending and is published again.
func (p *Process) newPublisher(ctx context.Context, events *pg.Outbox) (*outbox.Publisher, error) {
	client, err := p.PubSub(ctx)
	if err != nil {
		return nil, err
	}
	limits := p.cfg.limits.Outbox
	limits.Tracing = p.tel.Tracing
	inFlight := 2 * limits.Workers * limits.Batch // ordering keys: a pass has a batch of events, and half as many deferred events
	topics := make(outbox.Topics)
	for _, t := range names.Topics() {
		if t.Foreign {
			continue
		}
		topic := outbox.NewTopic(client.Publisher(t.Name), limits.RequestTimeout(), inFlight)
		for _, aggregateType := range t.AggregateTypes {
			topics[aggregateType] = topic
		}
	}
	p.closers = append(p.closers, func() { closeInTime(topics.Stop) })
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
	client, err := p.PubSub(ctx)
	if err != nil {
		return err
	}
	limits := p.cfg.limits.Consumer
	limits.Tracing, limits.Permits, limits.Workers = p.tel.Tracing, written.permits, max(1, p.cfg.permits()/all)
	for _, subscription := range subscribed {
		source := consumer.PubSub(client.Subscriber(subscription.ID), all)
		from := consumer.Input{Source: source, Consumer: subscription.Consumer, Handlers: subscription.Handlers(p.Backend())}
		c, err := consumer.New(limits, from, pg.NewInbox(p.querySide.own), p.Log, p.Meter)
		if err != nil {
			return err
		}
		p.Go("consumer "+subscription.Consumer, c.Run, c.Stuck)
	}
	return nil
}
