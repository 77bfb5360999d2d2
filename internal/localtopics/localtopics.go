// Package localtopics starts a Pub/Sub with the topics and subscriptions of the service for a
// test, and creates them in any other. It is not for production: there, deploy/ creates them.
package localtopics

import (
	"context"
	"errors"
	"slices"
	"testing"

	"cloud.google.com/go/pubsub/v2"

	"example.com/servicekit/localbroker"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/topics"
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

// Create creates the topics.
func Create(ctx context.Context, client *pubsub.Client, settings localbroker.Resources) error {
	all, err := topics.All()
	if err != nil {
		return err
	}
	return settings.Create(ctx, client, all...)
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
