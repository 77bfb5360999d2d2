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
	"example.com/videocatalog/internal/reconnect"
)

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
		topic := outbox.NewTopic(client.Publisher(t.Name), cfg.limits.Outbox.RequestTimeout, cfg.inFlight())
		for _, aggregateType := range t.AggregateTypes {
			topics[aggregateType] = topic
		}
	}
	return topics
}
