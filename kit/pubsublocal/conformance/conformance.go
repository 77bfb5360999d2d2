// Package conformance defines what a Pub/Sub server does, as test cases that run against any endpoint: a local server,
// or the service itself.
//
// Each case has the number of the sentence that it tests. README.md explains the numbers. A case uses the official Go
// client, and creates its own topics and subscriptions. It checks only what the client receives.
package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	vkit "cloud.google.com/go/pubsub/v2/apiv1"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
)

// Target is the server that the cases run against.
type Target struct {
	// Project is the id of the project in which the cases create resources.
	Project string
	// Options are the options of a client of the server.
	Options []option.ClientOption
	// Prompt says that all effects of a call have happened when it returns, so that cases need not wait for them.
	Prompt bool
	// Advance moves the clock of the server. Nil: cases that would wait for more than a minute are skipped.
	Advance func(time.Duration)
}

// Case is one sentence about a server, and the test of it.
type Case struct {
	// ID is the number of the sentence, such as B11.
	ID string
	// Sentence is what the server does.
	Sentence string
	// Clock says that the case needs Target.Advance.
	Clock bool
	Run   func(t *testing.T, e *Env)
}

// Cases returns all cases, section by section.
func Cases() []Case {
	return slices.Concat(names, publish, topicRetention, subscriptions,
		pull, streamingPull, streamingPullEnds, leases, ordering, orderingFailures,
		deadLetters, seek, schemas, schemaMessages)
}

// Run runs the cases. It calls open for a target per case.
func Run(t *testing.T, open func(t *testing.T) Target) {
	for _, c := range Cases() {
		t.Run(c.ID, func(t *testing.T) {
			t.Parallel()
			target := open(t)
			if c.Clock && target.Advance == nil {
				t.Skip("needs a clock that can be moved")
			}
			t.Log(c.Sentence)
			c.Run(t, newEnv(t, target))
		})
	}
}

// Env is the environment of a case: its target, and clients of it.
type Env struct {
	Target

	// Client is the official client. Its TopicAdminClient and SubscriptionAdminClient send single requests.
	Client *pubsub.Client
	Topics *vkit.TopicAdminClient
	Subs   *vkit.SubscriptionAdminClient
	Schema *vkit.SchemaClient
}

func newEnv(t *testing.T, target Target) *Env {
	t.Helper()
	// Not with t.Context, which is done before the clients are closed.
	client, err := pubsub.NewClient(context.WithoutCancel(t.Context()), target.Project, target.Options...)
	must(t, err)
	schema, err := vkit.NewSchemaClient(context.WithoutCancel(t.Context()), target.Options...)
	must(t, err)
	t.Cleanup(func() {
		_ = client.Close() // with option.WithGRPCConn the clients share a connection, so the second close fails
		_ = schema.Close()
	})
	return &Env{Target: target, Client: client, Topics: client.TopicAdminClient, Subs: client.SubscriptionAdminClient, Schema: schema}
}

var counter atomic.Int64

// Name returns an unused name in a collection such as topics.
func (e *Env) Name(collection string) string {
	return fmt.Sprintf("projects/%s/%s/case-%d-%d", e.Project, collection, time.Now().UnixNano(), counter.Add(1))
}

// Topic creates a topic and returns its name.
func (e *Env) Topic(t *testing.T, change ...func(*pubsubpb.Topic)) string {
	t.Helper()
	topic := &pubsubpb.Topic{Name: e.Name("topics")}
	for _, f := range change {
		f(topic)
	}
	must(t, errOf(e.Topics.CreateTopic(t.Context(), topic)))
	return topic.GetName()
}

// Subscription creates a subscription and returns its name.
func (e *Env) Subscription(t *testing.T, topic string, change ...func(*pubsubpb.Subscription)) string {
	t.Helper()
	sub := &pubsubpb.Subscription{Name: e.Name("subscriptions"), Topic: topic}
	for _, f := range change {
		f(sub)
	}
	must(t, errOf(e.Subs.CreateSubscription(t.Context(), sub)))
	return sub.GetName()
}

// Subscribed creates a topic with a subscription, and returns both names.
func (e *Env) Subscribed(t *testing.T, change ...func(*pubsubpb.Subscription)) (topic, sub string) {
	t.Helper()
	topic = e.Topic(t)
	return topic, e.Subscription(t, topic, change...)
}

// Ordered turns on message ordering.
func Ordered(s *pubsubpb.Subscription) { s.EnableMessageOrdering = true }

// Publish publishes a message for each text, in one request, and returns their ids.
func (e *Env) Publish(t *testing.T, topic, key string, texts ...string) []string {
	t.Helper()
	var messages []*pubsubpb.PubsubMessage
	for _, text := range texts {
		messages = append(messages, &pubsubpb.PubsubMessage{Data: []byte(text), OrderingKey: key})
	}
	return e.PublishMessages(t, topic, messages...)
}

// PublishMessages publishes messages in one request, and returns their ids.
func (e *Env) PublishMessages(t *testing.T, topic string, messages ...*pubsubpb.PubsubMessage) []string {
	t.Helper()
	response, err := e.Topics.Publish(t.Context(), &pubsubpb.PublishRequest{Topic: topic, Messages: messages})
	must(t, err)
	return response.GetMessageIds()
}

// Pull sends one Pull for up to limit messages. It waits for two seconds for them, unless the target is prompt.
func (e *Env) Pull(t *testing.T, sub string, limit int) []*pubsubpb.ReceivedMessage {
	t.Helper()
	wait := 2 * time.Second
	if e.Prompt {
		wait = patience // it returns at once
	}
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	response, err := e.Subs.Pull(ctx, &pubsubpb.PullRequest{
		Subscription: sub, MaxMessages: int32(limit), //nolint:gosec // few
		ReturnImmediately: e.Prompt, //nolint:staticcheck // deprecated, because the service may miss messages
	})
	if status.Code(err) == codes.DeadlineExceeded {
		return nil
	}
	must(t, err)
	return response.GetReceivedMessages()
}

// Texts returns the data of messages.
func Texts(messages []*pubsubpb.ReceivedMessage) (texts []string) {
	for _, m := range messages {
		texts = append(texts, string(m.GetMessage().GetData()))
	}
	return texts
}

// AckIDs returns the ack ids of messages.
func AckIDs(messages []*pubsubpb.ReceivedMessage) (ids []string) {
	for _, m := range messages {
		ids = append(ids, m.GetAckId())
	}
	return ids
}

// Ack acknowledges messages.
func (e *Env) Ack(t *testing.T, sub string, messages ...*pubsubpb.ReceivedMessage) {
	t.Helper()
	must(t, e.Subs.Acknowledge(t.Context(), &pubsubpb.AcknowledgeRequest{Subscription: sub, AckIds: AckIDs(messages)}))
}

// Nack sends a nack for each message.
func (e *Env) Nack(t *testing.T, sub string, messages ...*pubsubpb.ReceivedMessage) {
	t.Helper()
	e.Extend(t, sub, 0, messages...)
}

// Extend sets the ack deadline of messages to this many seconds from now.
func (e *Env) Extend(t *testing.T, sub string, seconds int32, messages ...*pubsubpb.ReceivedMessage) {
	t.Helper()
	must(t, e.Subs.ModifyAckDeadline(t.Context(), &pubsubpb.ModifyAckDeadlineRequest{
		Subscription: sub, AckIds: AckIDs(messages), AckDeadlineSeconds: seconds,
	}))
}

// WantCode fails the test unless err has this code and its text contains all parts.
func WantCode(t *testing.T, err error, want codes.Code, parts ...string) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("got %v (%v), want %v", got, err, want)
		return
	}
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, want it to contain %q", err, part)
		}
	}
}

// errOf returns the error of a call.
func errOf[T any](_ T, err error) error { return err }

// wantEqual fails the test unless both values are equal. what names them in the error.
func wantEqual(t *testing.T, want, got any, what string, args ...any) {
	t.Helper()
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", fmt.Sprintf(what, args...), diff)
	}
}

// must ends the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
