package localbroker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/videocatalog/internal/localbroker"
)

const project = "test-project"

func start(t *testing.T, resources localbroker.Resources) (*localbroker.Server, *pubsub.Client) {
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
	if err := resources.Create(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	return server, client
}

// Create makes what the service wants, and once more changes nothing.
func TestResourcesCreate(t *testing.T) {
	t.Parallel()
	_, client := start(t, localbroker.Resources{})
	if err := (localbroker.Resources{AckDeadline: 10 * time.Second}).Create(t.Context(), client); err != nil {
		t.Errorf("second Create() = %v, want nil", err)
	}
	got, err := client.SubscriptionAdminClient.GetSubscription(t.Context(), &pubsubpb.GetSubscriptionRequest{
		Subscription: "projects/" + project + "/subscriptions/" + localbroker.Subscription,
	})
	if err != nil {
		t.Fatal(err)
	}
	want := &pubsubpb.Subscription{
		Name:                  "projects/" + project + "/subscriptions/" + localbroker.Subscription,
		Topic:                 "projects/" + project + "/topics/" + localbroker.Topic,
		AckDeadlineSeconds:    60,
		EnableMessageOrdering: true,
		ExpirationPolicy:      &pubsubpb.ExpirationPolicy{},
		RetryPolicy:           &pubsubpb.RetryPolicy{MinimumBackoff: durationpb.New(10 * time.Second), MaximumBackoff: durationpb.New(600 * time.Second)},
		DeadLetterPolicy:      &pubsubpb.DeadLetterPolicy{DeadLetterTopic: "projects/" + project + "/topics/" + localbroker.DeadLetters, MaxDeliveryAttempts: 20},
	}
	ignored := protocmp.IgnoreFields(&pubsubpb.Subscription{}, "message_retention_duration", "push_config", "state")
	if diff := cmp.Diff(want, got, protocmp.Transform(), ignored); diff != "" {
		t.Errorf("subscription (-want +got):\n%s", diff)
	}
	dead, err := client.SubscriptionAdminClient.GetSubscription(t.Context(), &pubsubpb.GetSubscriptionRequest{
		Subscription: "projects/" + project + "/subscriptions/" + localbroker.DeadLetters,
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := "projects/" + project + "/topics/" + localbroker.DeadLetters; dead.GetTopic() != want {
		t.Errorf("topic of the dead letters' subscription = %q, want %q", dead.GetTopic(), want)
	}
}

// Published tells what became of a message.
func TestPublished(t *testing.T) {
	t.Parallel()
	server, client := start(t, localbroker.Resources{Schemaless: true, RetryMin: time.Millisecond})
	if _, err := client.TopicAdminClient.Publish(t.Context(), &pubsubpb.PublishRequest{
		Topic:    "projects/" + project + "/topics/" + localbroker.Topic,
		Messages: []*pubsubpb.PubsubMessage{{Data: []byte("data"), OrderingKey: "key"}},
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	nacked := false
	err := client.Subscriber(localbroker.Subscription).Receive(ctx, func(_ context.Context, m *pubsub.Message) {
		if !nacked {
			nacked = true
			m.Nack()
			return
		}
		m.Ack()
		cancel()
	})
	if err != nil {
		t.Errorf("Receive() = %v, want nil", err)
	}
	got := server.Published()
	want := []localbroker.Message{{
		Topic: "projects/" + project + "/topics/" + localbroker.Topic, OrderingKey: "key", Data: []byte("data"),
		Deliveries: 2, Acks: 1, Nacks: 1,
	}}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(localbroker.Message{}, "ID", "PublishTime")); diff != "" {
		t.Errorf("Published() (-want +got):\n%s", diff)
	}
}

// The topic takes what its schema describes and nothing else, as in production.
func TestTopicHasSchema(t *testing.T) {
	t.Parallel()
	_, client := start(t, localbroker.Resources{})
	for _, test := range []struct {
		data []byte
		want codes.Code
	}{{nil, codes.OK}, {[]byte("no event"), codes.InvalidArgument}} {
		_, err := client.TopicAdminClient.Publish(t.Context(), &pubsubpb.PublishRequest{
			Topic:    "projects/" + project + "/topics/" + localbroker.Topic,
			Messages: []*pubsubpb.PubsubMessage{{Data: test.data, Attributes: map[string]string{"name": "value"}}},
		})
		if status.Code(err) != test.want {
			t.Errorf("Publish(%q) = %v, want %v", test.data, err, test.want)
		}
	}
}
