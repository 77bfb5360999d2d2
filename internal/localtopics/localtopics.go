// Package localtopics creates the topics and subscriptions of the service in any Pub/Sub, for
// tests and cmd/dev, and starts a Pub/Sub for a test. It is not for production: there, deploy/ creates them.
package localtopics

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/pubsub/v2"

	"example.com/servicekit/localbroker"
	"example.com/videocatalog/api"
	"example.com/videocatalog/internal/names"
)

// The names of the first topic of internal/names that has consumers, and of its first
// consumer, for tests that work with any topic.
var (
	Topic        = first.Name
	Subscription = first.Subscription(first.Consumers[0])
)

var first = func() names.Topic {
	all := names.Topics()
	return all[slices.IndexFunc(all, func(t names.Topic) bool { return len(t.Consumers) > 0 })]
}()

// Topics returns the topics of internal/names with their schemas and subscriptions. It includes
// foreign topics, which in production their owner creates.
func Topics() ([]localbroker.Topic, error) {
	var topics []localbroker.Topic
	for _, t := range names.Topics() {
		schema, err := api.Schemas.ReadFile(strings.TrimPrefix(t.Schema, "api/"))
		if err != nil {
			return nil, fmt.Errorf("schema of topic %s: %w", t.Name, err)
		}
		topic := localbroker.Topic{Name: t.Name, Schema: string(schema)}
		for _, consumer := range t.Consumers {
			topic.Subscriptions = append(topic.Subscriptions, t.Subscription(consumer))
		}
		topics = append(topics, topic)
	}
	return topics, nil
}

// Create creates the topics.
func Create(ctx context.Context, client *pubsub.Client, settings localbroker.Resources) error {
	topics, err := Topics()
	if err != nil {
		return err
	}
	return settings.Create(ctx, client, topics...)
}

// Start starts a Pub/Sub with the topics for a test, and makes a client of a project. Both end with the test.
func Start(t testing.TB, project string, settings localbroker.Resources) (*localbroker.Server, *pubsub.Client) {
	t.Helper()
	server, err := localbroker.Start()
	if err != nil {
		t.Fatal(err)
	}
	client, err := server.Client(t.Context(), project)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(client.Close(), server.Close()); err != nil {
			t.Error(err)
		}
	})
	if err := Create(t.Context(), client, settings); err != nil {
		t.Fatal(err)
	}
	return server, client
}
