package localbroker_test

import (
	"context"
	"errors"
	"fmt"
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

	"example.com/servicekit/localbroker"
)

const (
	project      = "test-project"
	topic        = "letters"
	subscription = "letters.reader"
	deadLetters  = subscription + ".dead"
)

var letters = localbroker.Topic{Name: topic, Subscriptions: []string{subscription}, Schema: `syntax = "proto3";

message Letter {
  string text = 1;
}
`}

func start(t *testing.T, resources localbroker.Resources) (*localbroker.Server, *pubsub.Client) {
	t.Helper()
	server, err := localbroker.Start()
	must(t, err)
	client, err := server.Client(t.Context(), project)
	must(t, err)
	t.Cleanup(func() {
		if err := errors.Join(client.Close(), server.Close()); err != nil {
			t.Error(err)
		}
	})
	must(t, resources.Create(t.Context(), client, letters))
	return server, client
}

// Create creates the resources of the service. A second call changes nothing.
func TestResourcesCreate(t *testing.T) {
	t.Parallel()
	_, client := start(t, localbroker.Resources{})
	if err := (localbroker.Resources{AckDeadline: 10 * time.Second}).Create(t.Context(), client, letters); err != nil {
		t.Errorf("second Create() = %v, want nil", err)
	}
	got, err := client.SubscriptionAdminClient.GetSubscription(t.Context(), &pubsubpb.GetSubscriptionRequest{
		Subscription: "projects/" + project + "/subscriptions/" + subscription,
	})
	must(t, err)
	want := &pubsubpb.Subscription{
		Name:                  "projects/" + project + "/subscriptions/" + subscription,
		Topic:                 "projects/" + project + "/topics/" + topic,
		AckDeadlineSeconds:    60,
		EnableMessageOrdering: true,
		RetainAckedMessages:   true,
		ExpirationPolicy:      &pubsubpb.ExpirationPolicy{},
		RetryPolicy:           &pubsubpb.RetryPolicy{MinimumBackoff: durationpb.New(10 * time.Second), MaximumBackoff: durationpb.New(600 * time.Second)},
		DeadLetterPolicy:      &pubsubpb.DeadLetterPolicy{DeadLetterTopic: "projects/" + project + "/topics/" + deadLetters, MaxDeliveryAttempts: 20},
	}
	ignored := protocmp.IgnoreFields(&pubsubpb.Subscription{}, "message_retention_duration", "push_config", "state")
	if diff := cmp.Diff(want, got, protocmp.Transform(), ignored); diff != "" {
		t.Errorf("subscription (-want +got):\n%s", diff)
	}
	dead, err := client.SubscriptionAdminClient.GetSubscription(t.Context(), &pubsubpb.GetSubscriptionRequest{
		Subscription: "projects/" + project + "/subscriptions/" + deadLetters,
	})
	must(t, err)
	if want := "projects/" + project + "/topics/" + deadLetters; dead.GetTopic() != want {
		t.Errorf("topic of the dead letters' subscription = %q, want %q", dead.GetTopic(), want)
	}
}

// Published returns the counts of the events of a message.
func TestPublished(t *testing.T) {
	t.Parallel()
	server, client := start(t, localbroker.Resources{Schemaless: true, RetryMin: time.Millisecond})
	if _, err := client.TopicAdminClient.Publish(t.Context(), &pubsubpb.PublishRequest{
		Topic:    "projects/" + project + "/topics/" + topic,
		Messages: []*pubsubpb.PubsubMessage{{Data: []byte("data"), OrderingKey: "key"}},
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	nacked := false
	err := client.Subscriber(subscription).Receive(ctx, func(_ context.Context, m *pubsub.Message) {
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
		Topic: "projects/" + project + "/topics/" + topic, OrderingKey: "key", Data: []byte("data"),
		Deliveries: 2, Acks: 1, Nacks: 1,
	}}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(localbroker.Message{}, "ID", "PublishTime")); diff != "" {
		t.Errorf("Published() (-want +got):\n%s", diff)
	}
}

// A schema that an earlier build made gets the definition of this build as a revision, once,
// even if it has the maximum number of revisions.
func TestSchemaGetsARevision(t *testing.T) {
	t.Parallel()
	_, client := start(t, localbroker.Resources{})
	name := "projects/" + project + "/schemas/" + topic
	schemas := pubsubpb.NewSchemaServiceClient(client.TopicAdminClient.Connection()) //nolint:staticcheck // as in Create
	revisions := func() []*pubsubpb.Schema {
		list, err := schemas.ListSchemaRevisions(t.Context(), &pubsubpb.ListSchemaRevisionsRequest{Name: name, View: pubsubpb.SchemaView_FULL})
		must(t, err)
		return list.GetSchemas()
	}
	ours := revisions()[0]
	for i := range 20 {
		if len(revisions()) == 20 {
			oldest := revisions()[19]
			_, err := schemas.DeleteSchemaRevision(t.Context(), &pubsubpb.DeleteSchemaRevisionRequest{Name: name + "@" + oldest.GetRevisionId()})
			must(t, err)
		}
		if _, err := schemas.CommitSchema(t.Context(), &pubsubpb.CommitSchemaRequest{Name: name, Schema: &pubsubpb.Schema{
			Name: name, Type: ours.GetType(), Definition: fmt.Sprintf("%s// of build %d\n", ours.GetDefinition(), i),
		}}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := (localbroker.Resources{}).Create(t.Context(), client, letters); err != nil {
			t.Fatalf("Create() = %v", err)
		}
		got := revisions()
		if len(got) != 20 || got[0].GetDefinition() != ours.GetDefinition() {
			t.Errorf("%d revisions, the newest %q, want 20 and ours first", len(got), got[0].GetDefinition())
		}
	}
}

// The topic accepts only messages that fit its schema, as in production.
func TestTopicHasSchema(t *testing.T) {
	t.Parallel()
	_, client := start(t, localbroker.Resources{})
	for _, test := range []struct {
		data []byte
		want codes.Code
	}{{nil, codes.OK}, {[]byte("no event"), codes.InvalidArgument}} {
		_, err := client.TopicAdminClient.Publish(t.Context(), &pubsubpb.PublishRequest{
			Topic:    "projects/" + project + "/topics/" + topic,
			Messages: []*pubsubpb.PubsubMessage{{Data: test.data, Attributes: map[string]string{"name": "value"}}},
		})
		if status.Code(err) != test.want {
			t.Errorf("Publish(%q) = %v, want %v", test.data, err, test.want)
		}
	}
}

// must ends the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
