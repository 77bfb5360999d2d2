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
func (s *Service) PubSub(ctx context.Context) (*pubsub.Client, error) {
	if s.client != nil {
		return s.client, nil
	}
	if s.cfg.PubSubProject == "" {
		return nil, UsageError(fmt.Errorf("PUBSUB_PROJECT is required by %s", s.Command))
	}
	var options []option.ClientOption
	for _, dial := range reconnect.DialOptions() {
		options = append(options, option.WithGRPCDialOption(dial))
	}
	switch {
	case s.cfg.emulator != "":
		plain := grpc.WithTransportCredentials(insecure.NewCredentials())
		options = append(options, option.WithEndpoint(s.cfg.emulator), option.WithoutAuthentication(), option.WithGRPCDialOption(plain))
	case s.cfg.PubSubEndpoint != "":
		options = append(options, option.WithEndpoint(s.cfg.PubSubEndpoint))
	}
	client, err := pubsub.NewClient(context.WithoutCancel(ctx), s.cfg.PubSubProject, options...)
	if err != nil {
		return nil, fmt.Errorf("open Pub/Sub: %w", err)
	}
	reconnect.RetrySoon(client)
	s.client = client
	s.closers = append(s.closers, func() { _ = client.Close() }) // everything is settled by then
	return client, nil
}

// newPublisher makes a publisher for the topics that this service owns. When all its passes are
// settled, the process waits for the last responses of the broker, at most closeTimeout. An event
// without a response is still pending and is published again.
func (s *Service) newPublisher(ctx context.Context, events *pg.Outbox) (*outbox.Publisher, error) {
	client, err := s.PubSub(ctx)
	if err != nil {
		return nil, err
	}
	limits := s.cfg.limits.Outbox
	limits.Tracing = s.tel.Tracing
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
	s.closers = append(s.closers, func() { closeInTime(topics.Stop) })
	return outbox.New(events, topics, limits, s.Log, s.Meter)
}

// consume starts a consumer per subscription. They share the workers. A message that cannot be
// handled goes to the quarantine, which is on the query side.
func (s *Service) consume(ctx context.Context, limits consumer.Config, subscribed []Subscription) error {
	if len(subscribed) == 0 {
		return nil
	}
	client, err := s.PubSub(ctx)
	if err != nil {
		return err
	}
	limits.Tracing, limits.Workers = s.tel.Tracing, max(1, limits.Workers/len(subscribed))
	for _, of := range subscribed {
		from := consumer.Subscription{Source: consumer.PubSub(client.Subscriber(of.ID)), Consumer: of.Consumer, Handlers: of.Handlers(s.Backend())}
		c, err := consumer.New(limits, from, pg.NewInbox(s.queries.own), s.Log, s.Meter)
		if err != nil {
			return err
		}
		s.Go("consumer "+of.Consumer, c.Run, c.Stuck)
	}
	return nil
}
