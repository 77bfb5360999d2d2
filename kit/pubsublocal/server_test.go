package pubsublocal_test

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"example.com/servicekit/pubsublocal"
)

const (
	testTopic = "projects/test/topics/topic"
	testSub   = "projects/test/subscriptions/subscription"
)

// start starts a server with a topic and an ordered subscription.
func start(t testing.TB, cfg pubsublocal.Config, change ...func(*pubsubpb.Subscription)) (*pubsublocal.Server, *pubsub.Client) {
	t.Helper()
	server, err := pubsublocal.Start(cfg)
	must(t, err)
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	client, err := server.Client(context.WithoutCancel(t.Context()), "test")
	must(t, err)
	t.Cleanup(func() {
		if err := client.Close(); err != nil && !strings.Contains(err.Error(), "closing") {
			t.Error(err)
		}
	})
	_, err = client.TopicAdminClient.CreateTopic(t.Context(), &pubsubpb.Topic{Name: testTopic})
	must(t, err)
	sub := &pubsubpb.Subscription{Name: testSub, Topic: testTopic, EnableMessageOrdering: true, AckDeadlineSeconds: 10}
	for _, f := range change {
		f(sub)
	}
	_, err = client.SubscriptionAdminClient.CreateSubscription(t.Context(), sub)
	must(t, err)
	return server, client
}

func publish(ctx context.Context, client *pubsub.Client, texts ...string) error {
	for _, text := range texts {
		if _, err := client.TopicAdminClient.Publish(ctx, &pubsubpb.PublishRequest{
			Topic: testTopic, Messages: []*pubsubpb.PubsubMessage{{Data: []byte(text), OrderingKey: "key"}},
		}); err != nil {
			return err
		}
	}
	return nil
}

// pull returns the messages that a Pull gets without waiting.
func pull(t testing.TB, client *pubsub.Client) []*pubsubpb.ReceivedMessage {
	t.Helper()
	response, err := client.SubscriptionAdminClient.Pull(t.Context(), &pubsubpb.PullRequest{
		Subscription: testSub, MaxMessages: 100, ReturnImmediately: true, //nolint:staticcheck // this server is prompt
	})
	must(t, err)
	return response.GetReceivedMessages()
}

func texts(messages []*pubsubpb.ReceivedMessage) (all []string) {
	for _, m := range messages {
		all = append(all, string(m.GetMessage().GetData()))
	}
	return all
}

func ack(t testing.TB, client *pubsub.Client, messages ...*pubsubpb.ReceivedMessage) {
	t.Helper()
	r := &pubsubpb.AcknowledgeRequest{Subscription: testSub}
	for _, m := range messages {
		r.AckIds = append(r.AckIds, m.GetAckId())
	}
	must(t, client.SubscriptionAdminClient.Acknowledge(t.Context(), r))
}

// receive receives and acknowledges until stop is called, and sends each
// message to a channel.
func receive(t *testing.T, client *pubsub.Client) (received <-chan string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	handed := make(chan string, 100)
	var running sync.WaitGroup
	running.Go(func() {
		if err := client.Subscriber(testSub).Receive(ctx, func(_ context.Context, m *pubsub.Message) {
			m.Ack()
			handed <- string(m.Data)
		}); err != nil {
			t.Errorf("Receive() = %v, want nil", err)
		}
	})
	return handed, func() {
		cancel()
		running.Wait()
	}
}

// During an outage every call fails. After an outage, and after connections or
// streams were cut, everything works again with the same client.
func TestOutage(t *testing.T) {
	t.Parallel()
	server, client := start(t, pubsublocal.Config{})
	received, stop := receive(t, client)
	send := func(text string) {
		t.Helper()
		must(t, publish(t.Context(), client, text))
		// A message that was not acknowledged in time is delivered again.
		for got := range received {
			if got == text {
				return
			}
		}
	}
	send("before")
	server.CutConnections()
	send("after a cut")
	server.CutStreams()
	send("after the streams were cut")
	server.SetDown(true)
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := publish(short, client, "lost"); err == nil {
		t.Error("Publish during an outage = nil, want an error")
	}
	server.SetDown(false)
	send("after the outage")
	stop()
	if left := texts(pull(t, client)); slices.Contains(left, "lost") {
		t.Errorf("%q was published during an outage", left)
	}
}

// Duplicate delivers an acknowledged message again, with all that follow it, as
// often as requested.
func TestDuplicate(t *testing.T) {
	t.Parallel()
	server, client := start(t, pubsublocal.Config{})
	must(t, publish(t.Context(), client, "a", "b"))
	must(t, server.Duplicate(testSub, 1))
	ack(t, client, pull(t, client)[0])
	again := pull(t, client)
	if diff := cmp.Diff([]string{"a", "b"}, texts(again)); diff != "" {
		t.Errorf("after the ack of a (-want +got):\n%s", diff)
	}
	ack(t, client, again...)
	if left := pull(t, client); len(left) > 0 {
		t.Errorf("got %q again, want nothing", texts(left))
	}
	if err := server.Duplicate("projects/test/subscriptions/missing", 1); status.Code(err) != codes.NotFound {
		t.Errorf("Duplicate of a missing subscription = %v, want NotFound", err)
	}
}

// A client that sends pings and does not read has one waiting response, not one
// per ping. If its stream is cut, others get its messages at once.
func TestStreamOfClientThatReadsNothing(t *testing.T) {
	t.Parallel()
	server, client := start(t, pubsublocal.Config{})
	stream, err := client.SubscriptionAdminClient.StreamingPull(t.Context())
	must(t, err)
	must(t, stream.Send(&pubsubpb.StreamingPullRequest{Subscription: testSub, StreamAckDeadlineSeconds: 600, ProtocolVersion: 1}))
	large := strings.Repeat("x", 1<<20)
	for range 30 { // more than the flow control windows hold
		must(t, publish(t.Context(), client, large))
	}
	for range 1000 {
		must(t, stream.Send(&pubsubpb.StreamingPullRequest{}))
	}
	server.CutStreams()
	var again int
	for deadline := time.Now().Add(5 * time.Second); again < 30 && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		again += len(pull(t, client))
	}
	if again != 30 {
		t.Errorf("%d messages went to others after the cut, want 30", again)
	}
}

// An address that is in use is an error.
func TestStartOnTakenAddress(t *testing.T) {
	t.Parallel()
	server, _ := start(t, pubsublocal.Config{})
	second, err := pubsublocal.Start(pubsublocal.Config{Addr: server.Addr()})
	if err == nil {
		t.Errorf("Start() on a taken address = nil, want an error (Close() = %v)", second.Close())
	}
}

// Close ends every goroutine, whatever is open. It is not parallel because it
// counts all goroutines.
func TestCloseLeavesNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	server, err := pubsublocal.Start(pubsublocal.Config{})
	must(t, err)
	client, err := server.Client(t.Context(), "test")
	must(t, err)
	_, err = client.TopicAdminClient.CreateTopic(t.Context(), &pubsubpb.Topic{Name: testTopic})
	must(t, err)
	_, err = client.SubscriptionAdminClient.CreateSubscription(t.Context(), &pubsubpb.Subscription{Name: testSub, Topic: testTopic})
	must(t, err)
	must(t, publish(t.Context(), client, "a"))
	streams := make([]pubsubpb.Subscriber_StreamingPullClient, 3)
	for i := range streams {
		stream, err := client.SubscriptionAdminClient.StreamingPull(t.Context())
		must(t, err)
		must(t, stream.Send(&pubsubpb.StreamingPullRequest{Subscription: testSub, StreamAckDeadlineSeconds: 10}))
		streams[i] = stream
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	if err := client.Close(); err != nil && !strings.Contains(err.Error(), "closing") {
		t.Error(err)
	}
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
		}
	}
}

// A clock runs like the real time, and Advance adds to it.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := &pubsublocal.Clock{}
		start := clock.Now()
		time.Sleep(time.Second)
		clock.Advance(time.Minute)
		if got := clock.Now().Sub(start); got != 61*time.Second {
			t.Errorf("a second and a minute are %s", got)
		}
	})
}

// must ends the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
