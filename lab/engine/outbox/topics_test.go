package outbox_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
)

// A message goes to the topic of its aggregate type, and one of a type without a
// topic is refused, which holds up no other aggregate.
func TestTopicsRouteByAggregateType(t *testing.T) {
	t.Parallel()
	client, _ := newClient(t)
	topics := outbox.Topics{}
	for aggregateType, name := range map[string]string{"order": "orders", "cart": "carts"} {
		path := "projects/" + client.Project() + "/topics/" + name
		if _, err := client.TopicAdminClient.CreateTopic(t.Context(), &pubsubpb.Topic{Name: path}); err != nil {
			t.Fatal(err)
		}
		if _, err := client.SubscriptionAdminClient.CreateSubscription(t.Context(), &pubsubpb.Subscription{
			Name: "projects/" + client.Project() + "/subscriptions/" + name, Topic: path, AckDeadlineSeconds: 60,
		}); err != nil {
			t.Fatal(err)
		}
		topic := outbox.NewTopic(client.Publisher(name), 30*time.Second, 10)
		t.Cleanup(topic.Stop)
		topics[aggregateType] = topic
	}
	topics["voucher"] = topics["order"] // two types of one topic

	var receipts []outbox.Receipt
	for _, aggregateType := range []string{"order", "cart", "voucher"} {
		receipts = append(receipts, topics.Publish(of(aggregateType)))
	}
	refused, ok := errors.AsType[*outbox.RefusedError](topics.Publish(of("invoice")).Wait(t.Context()))
	if !ok {
		t.Errorf("a type without a topic: %v, want a RefusedError", refused)
	}
	for _, r := range receipts {
		if err := r.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string][]string{"orders": {"order", "voucher"}, "carts": {"cart"}} {
		var mu sync.Mutex
		got := map[string]bool{}
		ctx, cancel := context.WithCancel(t.Context())
		err := client.Subscriber(name).Receive(ctx, func(_ context.Context, m *pubsub.Message) {
			m.Ack()
			mu.Lock()
			defer mu.Unlock()
			if got[m.Attributes["aggregate_type"]] = true; len(got) == len(want) {
				cancel()
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, aggregateType := range want {
			if !got[aggregateType] {
				t.Errorf("topic %s has %v, want %v", name, got, want)
			}
		}
	}
}

func of(aggregateType string) envelope.Message {
	return envelope.Message{AggregateType: aggregateType, AggregateID: "1", Type: "created", Version: 1, SchemaVersion: 1, Payload: []byte("x"), OccurredAt: time.Now()}
}
