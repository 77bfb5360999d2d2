package localpubsub_test

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

	"example.com/videocatalog/internal/localpubsub"
)

const project = "test-project"

func start(t *testing.T) (*localpubsub.Server, *pubsub.Client) {
	t.Helper()
	server, err := localpubsub.Start(localpubsub.Config{})
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
	if err := (localpubsub.Resources{}).Create(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	return server, client
}

// publish makes one call without the retries of the client's publisher.
func publish(ctx context.Context, client *pubsub.Client, key, data string) error {
	_, err := client.TopicAdminClient.Publish(ctx, &pubsubpb.PublishRequest{
		Topic:    "projects/" + project + "/topics/" + localpubsub.Topic,
		Messages: []*pubsubpb.PubsubMessage{{Data: []byte(data), OrderingKey: key}},
	})
	return err
}

func published(server *localpubsub.Server) []string {
	var data []string
	for _, m := range server.Published() {
		data = append(data, string(m.Data))
	}
	return data
}

// Create makes what the service wants, and once more changes nothing.
func TestResourcesCreate(t *testing.T) {
	t.Parallel()
	_, client := start(t)
	if err := (localpubsub.Resources{AckDeadline: 10 * time.Second}).Create(t.Context(), client); err != nil {
		t.Errorf("second Create() = %v, want nil", err)
	}
	got, err := client.SubscriptionAdminClient.GetSubscription(t.Context(), &pubsubpb.GetSubscriptionRequest{
		Subscription: "projects/" + project + "/subscriptions/video.events.catalog",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := &pubsubpb.Subscription{
		Name:                  "projects/" + project + "/subscriptions/video.events.catalog",
		Topic:                 "projects/" + project + "/topics/video.events",
		AckDeadlineSeconds:    60,
		EnableMessageOrdering: true,
		ExpirationPolicy:      &pubsubpb.ExpirationPolicy{},
		RetryPolicy:           &pubsubpb.RetryPolicy{MinimumBackoff: durationpb.New(10 * time.Second), MaximumBackoff: durationpb.New(600 * time.Second)},
		DeadLetterPolicy:      &pubsubpb.DeadLetterPolicy{DeadLetterTopic: "projects/" + project + "/topics/video.events.catalog.dead", MaxDeliveryAttempts: 20},
	}
	ignored := protocmp.IgnoreFields(&pubsubpb.Subscription{}, "message_retention_duration", "push_config", "state")
	if diff := cmp.Diff(want, got, protocmp.Transform(), ignored); diff != "" {
		t.Errorf("subscription (-want +got):\n%s", diff)
	}
	dead, err := client.SubscriptionAdminClient.GetSubscription(t.Context(), &pubsubpb.GetSubscriptionRequest{
		Subscription: "projects/" + project + "/subscriptions/video.events.catalog.dead",
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := "projects/" + project + "/topics/video.events.catalog.dead"; dead.GetTopic() != want {
		t.Errorf("topic of the dead letters' subscription = %q, want %q", dead.GetTopic(), want)
	}
}

// A fault concerns the calls that it names, as often as it says.
func TestInject(t *testing.T) {
	t.Parallel()
	type call struct {
		key  string
		want codes.Code
	}
	tests := []struct {
		name      string
		fault     localpubsub.Fault
		calls     []call
		published []string
	}{
		{
			"all calls", localpubsub.Fault{Method: "Publish", Code: codes.PermissionDenied},
			[]call{{"a", codes.PermissionDenied}, {"b", codes.PermissionDenied}}, nil,
		},
		{
			"twice", localpubsub.Fault{Method: "Publish", Code: codes.InvalidArgument, Times: 2},
			[]call{{"a", codes.InvalidArgument}, {"a", codes.InvalidArgument}, {"a", codes.OK}}, []string{"2"},
		},
		{
			"one key", localpubsub.Fault{Method: "Publish", OrderingKey: "a", Code: codes.InvalidArgument},
			[]call{{"a", codes.InvalidArgument}, {"b", codes.OK}, {"a", codes.InvalidArgument}}, []string{"1"},
		},
		{
			"another method", localpubsub.Fault{Method: "Acknowledge", Code: codes.InvalidArgument},
			[]call{{"a", codes.OK}}, []string{"0"},
		},
		{
			"every method, answer lost", localpubsub.Fault{Code: codes.DataLoss, AnswerLost: true},
			[]call{{"a", codes.DataLoss}}, []string{"0"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server, client := start(t)
			remove := server.Inject(test.fault)
			for i, call := range test.calls {
				if got := status.Code(publish(t.Context(), client, call.key, fmt.Sprint(i))); got != call.want {
					t.Errorf("Publish call %d = %v, want %v", i, got, call.want)
				}
			}
			if diff := cmp.Diff(test.published, published(server)); diff != "" {
				t.Errorf("published (-want +got):\n%s", diff)
			}
			remove()
			if err := publish(t.Context(), client, "a", "last"); err != nil {
				t.Errorf("Publish after the fault = %v, want nil", err)
			}
		})
	}
}

// A delay comes before the call, and ends with it.
func TestInjectDelay(t *testing.T) {
	t.Parallel()
	server, client := start(t)
	server.Inject(localpubsub.Fault{Method: "Publish", Delay: 50 * time.Millisecond, Times: 1})
	began := time.Now()
	if err := publish(t.Context(), client, "", "slow"); err != nil {
		t.Errorf("Publish = %v, want nil", err)
	}
	if took := time.Since(began); took < 50*time.Millisecond {
		t.Errorf("Publish took %s, want at least 50ms", took)
	}
	server.Inject(localpubsub.Fault{Method: "Publish", Delay: time.Hour})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := publish(ctx, client, "", "never"); err == nil {
		t.Error("Publish whose deadline is over = nil, want an error")
	}
	if diff := cmp.Diff([]string{"slow"}, published(server)); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
}

// During an outage nothing gets through, a stream breaks with the connections,
// and both work again without a new client.
func TestOutage(t *testing.T) {
	t.Parallel()
	server, client := start(t)
	received := make(chan string, 10)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- client.Subscriber(localpubsub.Subscription).Receive(ctx, func(_ context.Context, m *pubsub.Message) {
			m.Ack()
			received <- string(m.Data)
		})
	}()
	send := func(data string) {
		t.Helper()
		if err := publish(t.Context(), client, data, data); err != nil {
			t.Fatal(err)
		}
		if got := <-received; got != data {
			t.Errorf("received %q, want %q", got, data)
		}
		waitFor(t, "the ack", func() bool {
			all := server.Published()
			return all[len(all)-1].Acks == 1
		})
	}
	send("before")
	server.CutConnections()
	send("after a cut")

	server.SetDown(true)
	short, cancelShort := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancelShort()
	if err := publish(short, client, "", "lost"); err == nil {
		t.Error("Publish during an outage = nil, want an error")
	}
	server.SetDown(false)
	send("after the outage")
	if diff := cmp.Diff([]string{"before", "after a cut", "after the outage"}, published(server)); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}

	cancel()
	if err := <-done; err != nil {
		t.Errorf("Receive() = %v, want nil", err)
	}
}

// What was outstanding on a stream that breaks is delivered again at once, and
// that is no nack; what was acknowledged does not come again.
func TestStreamEndReturnsMessages(t *testing.T) {
	t.Parallel()
	server, client := start(t)
	received := make(chan *pubsub.Message, 10)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- client.Subscriber(localpubsub.Subscription).Receive(ctx, func(_ context.Context, m *pubsub.Message) { received <- m })
	}()
	receive := func(key string) *pubsub.Message {
		t.Helper()
		if err := publish(t.Context(), client, key, key); err != nil {
			t.Fatal(err)
		}
		return <-received
	}
	receive("acknowledged").Ack()
	waitFor(t, "the ack", func() bool { return server.Published()[0].Acks == 1 })
	held := receive("held")
	server.CutConnections()
	again := <-received
	if again.ID != held.ID {
		t.Errorf("received message %s after the cut, want %s", again.ID, held.ID)
	}
	held.Ack() // without effect, but the client waits for it
	again.Ack()
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Receive() = %v, want nil", err)
	}
	for i, want := range []localpubsub.Message{{Deliveries: 1, Acks: 1}, {Deliveries: 2, Acks: 1}} {
		if got := server.Published()[i]; got.Deliveries != want.Deliveries || got.Acks != want.Acks || got.Nacks != 0 {
			t.Errorf("message %q has %d deliveries, %d acks and %d nacks, want %d, %d and 0",
				got.Data, got.Deliveries, got.Acks, got.Nacks, want.Deliveries, want.Acks)
		}
	}
}

// Published tells what became of a message.
func TestPublished(t *testing.T) {
	t.Parallel()
	server, client := start(t)
	if err := publish(t.Context(), client, "key", "data"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	nacked := false
	err := client.Subscriber(localpubsub.Subscription).Receive(ctx, func(_ context.Context, m *pubsub.Message) {
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
	want := []localpubsub.Message{{
		Topic: "projects/" + project + "/topics/video.events", OrderingKey: "key", Data: []byte("data"),
		Deliveries: 2, Acks: 1, Nacks: 1,
	}}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(localpubsub.Message{}, "ID", "PublishTime")); diff != "" {
		t.Errorf("Published() (-want +got):\n%s", diff)
	}
}

func waitFor(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// An address that is taken is an error.
func TestStartOnTakenAddress(t *testing.T) {
	t.Parallel()
	server, _ := start(t)
	second, err := localpubsub.Start(localpubsub.Config{Addr: server.Addr()})
	if err == nil {
		t.Errorf("Start() on a taken address = nil, want an error (Close() = %v)", second.Close())
	}
}
