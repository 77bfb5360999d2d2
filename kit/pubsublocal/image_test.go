package pubsublocal

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	testTopic        = "projects/p/topics/topic"
	testSubscription = "projects/p/subscriptions/subscription"
)

// local is a server, and its services without a network.
type local struct {
	*Server
	*publisherService
	*subscriberService

	t      testing.TB
	cfg    Config
	closed bool
}

func startLocal(t testing.TB, cfg Config) *local {
	t.Helper()
	s, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	k := &local{
		Server: s, publisherService: &publisherService{server: s}, subscriberService: &subscriberService{server: s}, t: t, cfg: cfg,
	}
	t.Cleanup(func() {
		if !k.closed {
			_ = k.Close() // the test has ended
		}
	})
	return k
}

// again stops the server, and starts another one with its file.
func (k *local) again() *local {
	k.t.Helper()
	k.closed = true
	if err := k.Close(); err != nil {
		k.t.Fatal(err)
	}
	return startLocal(k.t, k.cfg)
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (k *local) makeTopic(cfg *pubsubpb.Topic) {
	k.t.Helper()
	must[*pubsubpb.Topic](k.t)(k.CreateTopic(k.t.Context(), cfg))
}

func (k *local) makeSubscription(cfg *pubsubpb.Subscription) {
	k.t.Helper()
	must[*pubsubpb.Subscription](k.t)(k.CreateSubscription(k.t.Context(), cfg))
}

func (k *local) publish(topic, key string, texts ...string) []string {
	k.t.Helper()
	r := &pubsubpb.PublishRequest{Topic: topic}
	for _, text := range texts {
		r.Messages = append(r.Messages, &pubsubpb.PubsubMessage{Data: []byte(text), OrderingKey: key})
	}
	return must[*pubsubpb.PublishResponse](k.t)(k.Publish(k.t.Context(), r)).GetMessageIds()
}

func (k *local) pull(subscription string) []*pubsubpb.ReceivedMessage {
	k.t.Helper()
	return must[*pubsubpb.PullResponse](k.t)(k.Pull(k.t.Context(), &pubsubpb.PullRequest{
		Subscription: subscription, MaxMessages: 1000, ReturnImmediately: true, //nolint:staticcheck // this test needs it
	})).GetReceivedMessages()
}

func (k *local) ack(subscription string, messages ...*pubsubpb.ReceivedMessage) {
	k.t.Helper()
	if _, err := k.Acknowledge(k.t.Context(), &pubsubpb.AcknowledgeRequest{Subscription: subscription, AckIds: ackIDsOf(messages)}); err != nil {
		k.t.Fatal(err)
	}
}

func dataOf(messages []*pubsubpb.ReceivedMessage) []string {
	texts := []string{}
	for _, m := range messages {
		texts = append(texts, string(m.GetMessage().GetData()))
	}
	return texts
}

// contentsOf returns everything that must survive a restart, by the name of the resource.
func contentsOf(s *Server) map[string]any {
	contents := map[string]any{}
	note := func(name string, cfg proto.Message, lists ...[]*message) {
		var texts []string
		for _, list := range lists {
			for _, m := range list {
				texts = append(texts, fmt.Sprint(m.id, m.time, m.key.Value(), m.encoded))
			}
			texts = append(texts, "")
		}
		contents[name] = []any{cfg, texts}
	}
	for _, t := range s.topics.all("") {
		t.mu.Lock()
		retained := t.retained()
		t.mu.Unlock()
		note(t.name, t.config(), retained)
	}
	for _, sub := range s.subscriptions.all("") {
		var unacked, acked []*message
		sub.mu.Lock()
		for i := range sub.backlog.Len() {
			if d := sub.backlog.At(i); d.state != done {
				unacked = append(unacked, d.message)
			}
		}
		for i := range sub.acked.Len() {
			acked = append(acked, sub.acked.At(i))
		}
		sub.mu.Unlock()
		note(sub.name, sub.config(), unacked, acked)
	}
	contents["schemas"] = s.schemas.dump()
	return contents
}

// All resources with their settings and messages survive a restart, and a
// second one.
func TestFileKeepsEverything(t *testing.T) {
	t.Parallel()
	k := startLocal(t, Config{File: filepath.Join(t.TempDir(), "new", "file")})
	fill(k)
	want := contentsOf(k.Server)
	for restart := range 2 {
		k = k.again()
		if diff := cmp.Diff(want, contentsOf(k.Server), protocmp.Transform()); diff != "" {
			t.Fatalf("after %d restarts (-want +got):\n%s", restart+1, diff)
		}
	}
	k.publish(testTopic, "", "after the restarts")
	for _, name := range []string{testSubscription, "projects/p/subscriptions/retaining"} {
		if got := dataOf(k.pull(name)); !slices.Contains(got, "after the restarts") {
			t.Errorf("%s got %q, without the new message", name, got)
		}
	}
}

// fill creates resources of all kinds, in many states.
func fill(k *local) {
	t, ctx := k.t, k.t.Context()
	k.makeTopic(&pubsubpb.Topic{Name: "projects/p/topics/dead"})
	k.makeTopic(&pubsubpb.Topic{
		Name: testTopic, Labels: map[string]string{"a": "b"}, MessageRetentionDuration: durationpb.New(time.Hour),
	})
	k.publish(testTopic, "", "before any subscription")
	k.makeSubscription(&pubsubpb.Subscription{
		Name: testSubscription, Topic: testTopic, EnableMessageOrdering: true, AckDeadlineSeconds: 33,
		DeadLetterPolicy: &pubsubpb.DeadLetterPolicy{DeadLetterTopic: "projects/p/topics/dead", MaxDeliveryAttempts: 7},
		RetryPolicy:      &pubsubpb.RetryPolicy{MinimumBackoff: durationpb.New(time.Second)},
	})
	k.makeSubscription(&pubsubpb.Subscription{
		Name: "projects/p/subscriptions/retaining", Topic: testTopic, RetainAckedMessages: true, Labels: map[string]string{"c": "d"},
	})
	k.makeSubscription(&pubsubpb.Subscription{Name: "projects/p/subscriptions/sought", Topic: testTopic})
	for i := range 10 {
		k.publish(testTopic, strconv.Itoa(i%3), fmt.Sprint("first ", i))
		must[*pubsubpb.PublishResponse](t)(k.Publish(ctx, &pubsubpb.PublishRequest{Topic: testTopic, Messages: []*pubsubpb.PubsubMessage{
			{Data: []byte("with attributes"), Attributes: map[string]string{"a": strconv.Itoa(i % 2)}},
		}}))
	}
	for _, name := range []string{testSubscription, "projects/p/subscriptions/retaining", "projects/p/subscriptions/sought"} {
		messages := k.pull(name)
		k.ack(name, messages[1:len(messages)/2]...) // not the first one, so that there is a gap
	}
	k.publish(testTopic, "1", "second a", "second b")
	must[*pubsubpb.SeekResponse](t)(k.Seek(ctx, &pubsubpb.SeekRequest{
		Subscription: "projects/p/subscriptions/sought", Target: &pubsubpb.SeekRequest_Time{Time: timestamppb.New(time.Unix(0, 0))},
	}))
	// A topic that was deleted and created again. The old and the new one have
	// a subscription each.
	for _, which := range []string{"old", "new"} {
		k.makeTopic(&pubsubpb.Topic{Name: "projects/p/topics/again"})
		k.makeSubscription(&pubsubpb.Subscription{Name: "projects/p/subscriptions/" + which, Topic: "projects/p/topics/again"})
		k.publish("projects/p/topics/again", "", which)
		if which == "old" {
			must[any](t)(k.DeleteTopic(ctx, &pubsubpb.DeleteTopicRequest{Topic: "projects/p/topics/again"}))
		}
	}
	k.makeSubscription(&pubsubpb.Subscription{Name: "projects/p/subscriptions/gone", Topic: testTopic})
	k.publish(testTopic, "", "third")
	must[any](t)(k.DeleteSubscription(ctx, &pubsubpb.DeleteSubscriptionRequest{Subscription: "projects/p/subscriptions/gone"}))
	// Schemas. One of them is deleted while a topic uses it.
	for _, id := range []string{"stays", "leaves"} {
		schema := &pubsubpb.Schema{Type: pubsubpb.Schema_PROTOCOL_BUFFER, Definition: `syntax = "proto3"; message M { int32 a = 1; }`}
		must[*pubsubpb.Schema](t)(k.schemas.CreateSchema(ctx, &pubsubpb.CreateSchemaRequest{Parent: "projects/p", SchemaId: id, Schema: schema}))
		schema.Definition = `syntax = "proto3"; message M { int32 a = 1; int32 b = 2; }`
		must[*pubsubpb.Schema](t)(k.schemas.CommitSchema(ctx, &pubsubpb.CommitSchemaRequest{Name: "projects/p/schemas/" + id, Schema: schema}))
		k.makeTopic(&pubsubpb.Topic{
			Name:           "projects/p/topics/" + id,
			SchemaSettings: &pubsubpb.SchemaSettings{Schema: "projects/p/schemas/" + id, Encoding: pubsubpb.Encoding_JSON},
		})
	}
	must[any](t)(k.schemas.DeleteSchema(ctx, &pubsubpb.DeleteSchemaRequest{Name: "projects/p/schemas/leaves"}))
}

// After a restart, leased messages and those acknowledged out of order are
// delivered again, in the order of publishing. Other acknowledged messages are
// not. Ids increase, also if the clock goes back.
func TestFileRedeliversInOrder(t *testing.T) {
	t.Parallel()
	ahead := &Clock{}
	ahead.Advance(time.Hour)
	k := startLocal(t, Config{File: filepath.Join(t.TempDir(), "file"), Clock: ahead})
	k.makeTopic(&pubsubpb.Topic{Name: testTopic})
	k.makeSubscription(&pubsubpb.Subscription{Name: testSubscription, Topic: testTopic, EnableMessageOrdering: true})
	k.publish(testTopic, "k", "a", "b", "c", "d")
	leased := k.pull(testSubscription)
	k.ack(testSubscription, leased[0], leased[2]) // the ack of c waits for b
	k = k.again()
	again := k.pull(testSubscription)
	same(t, "after the restart", []string{"b", "c", "d"}, dataOf(again))
	k.ack(testSubscription, leased[1:]...) // out of date: no error and no effect
	k.ack(testSubscription, again[0])
	before := k.publish(testTopic, "k", "e")
	k.cfg.Clock = nil // it goes back by an hour
	k = k.again()
	same(t, "after the second restart", []string{"c", "d", "e"}, dataOf(k.pull(testSubscription)))
	if after := k.publish(testTopic, "k", "f"); after[0] <= before[0] {
		t.Errorf("message id %s after %s", after[0], before[0])
	}
}

// A program that ends without Close loses what happened since Start. The ids of
// its messages are not used again.
func TestFileWithoutClose(t *testing.T) {
	t.Parallel()
	k := startLocal(t, Config{File: filepath.Join(t.TempDir(), "file")})
	k.makeTopic(&pubsubpb.Topic{Name: testTopic})
	k.makeSubscription(&pubsubpb.Subscription{Name: testSubscription, Topic: testTopic})
	k.publish(testTopic, "", "kept")
	k = k.again()
	lost := k.publish(testTopic, "", "lost")
	next := startLocal(t, k.cfg)
	k.Server.file = "" // it writes nothing more
	id := next.publish(testTopic, "", "new")
	same(t, "without Close", []string{"kept", "new"}, dataOf(next.pull(testSubscription)))
	if id[0] == lost[0] {
		t.Errorf("message id %s was used twice", id[0])
	}
}

// A file that is not ours is an error that names it.
func TestFileRefused(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("not ours"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := Start(Config{File: file}); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("Start() = %v, %v, want an error with the name of the file", s, err)
	}
}
