package outbox_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"weak"

	"cloud.google.com/go/pubsub/v2"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	"example.com/servicekit/localbroker"
	"example.com/servicekit/pubsublocal"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/localtopics"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/reconnect"
)

// newTopic makes a topic on a server of its own. The client tries a request
// for at most timeout.
func newTopic(t testing.TB, timeout time.Duration, inFlight int) (*outbox.Topic, *localbroker.Server) {
	t.Helper()
	client, server := newClient(t)
	topic := outbox.NewTopic(client.Publisher(localtopics.Topic), timeout, inFlight)
	t.Cleanup(topic.Stop)
	return topic, server
}

// newClient makes a client of a server of its own.
func newClient(t testing.TB) (*pubsub.Client, *localbroker.Server) {
	t.Helper()
	server, client := localtopics.Start(t, "test-project", localbroker.Resources{Schemaless: true})
	reconnect.RetrySoon(client)
	return client, server
}

// message returns the message with a name, in the form that claimed uses.
func message(name string) envelope.Message {
	m := claimed(name)[0].Message
	m.ID, m.Type, m.SchemaVersion, m.Payload = uuid.Must(uuid.NewV7()), "LetterChanged", 1, []byte(name)
	return m
}

// hand hands messages over, as a pass does.
func hand(topic *outbox.Topic, names string) (receipts []outbox.Receipt) {
	for name := range strings.FieldsSeq(names) {
		receipts = append(receipts, topic.Publish(message(name)))
	}
	return receipts
}

// collect waits for answers, as a pass does, and returns how many are nil.
func collect(ctx context.Context, receipts []outbox.Receipt) (acknowledged int, errs []error) {
	for _, receipt := range receipts {
		err := receipt.Wait(ctx)
		if err == nil {
			acknowledged++
		}
		errs = append(errs, err)
	}
	return acknowledged, errs
}

// pass hands messages over and waits for the answers.
func pass(t testing.TB, topic *outbox.Topic, names string) (acknowledged int, errs []error) {
	t.Helper()
	return collect(t.Context(), hand(topic, names))
}

// stored returns the messages that the server has, in its order.
func stored(server *localbroker.Server, keys ...string) (names []string) {
	for _, m := range server.Published() {
		if len(keys) == 0 || slices.Contains(keys, m.OrderingKey) {
			names = append(names, string(m.Data))
		}
	}
	return names
}

// Messages that a pass hands over are sent when the first answer is read, even if
// the client is configured to wait longer for more messages.
func TestTopicWaitsForNoMoreThanThePass(t *testing.T) {
	t.Parallel()
	client, _ := newClient(t)
	publisher := client.Publisher(localtopics.Topic)
	publisher.PublishSettings.DelayThreshold = 30 * time.Second
	topic := outbox.NewTopic(publisher, 5*time.Second, 10)
	t.Cleanup(topic.Stop)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for range 3 {
		if n, errs := collect(ctx, hand(topic, "a1 b1 a2")); n != 3 {
			t.Fatalf("%d were acknowledged, want 3: %v", n, errs)
		}
	}
}

// A few thousand messages of a key in one pass need few requests.
func TestTopicPublishesALongPassInFewRequests(t *testing.T) {
	t.Parallel()
	topic, server := newTopic(t, 5*time.Second, 10)
	server.Inject(pubsublocal.Fault{Method: "Publish", Delay: 200 * time.Millisecond})
	if n, _ := pass(t, topic, strings.Repeat("a1 ", 2500)); n != 2500 {
		t.Errorf("%d were acknowledged, want all 2500", n)
	}
	requests := map[time.Time]bool{} // by the time that their messages have in common
	for _, m := range server.Published() {
		requests[m.PublishTime] = true
	}
	if n := len(requests); n > 10 { // three, and some more if the machine is slow to hand them over
		t.Errorf("2500 messages came in %d requests, want a few", n)
	}
}

// A message whose answer did not come in time may still be sent: its key stays
// closed until the answer is there, and then opens, whatever the answer is.
func TestTopicKeepsAKeyClosedWhileMessagesAreAbandoned(t *testing.T) {
	t.Parallel()
	for _, code := range []codes.Code{codes.OK, codes.PermissionDenied} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			topic, server := newTopic(t, 5*time.Second, 10)
			server.Inject(pubsublocal.Fault{Method: "Publish", OrderingKey: "a", Delay: 4 * time.Second, Code: code, Times: 1})
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			if n, errs := collect(ctx, hand(topic, "a1 a2 b1")); n != 1 || !errors.Is(errs[0], context.DeadlineExceeded) || !errors.Is(errs[1], context.DeadlineExceeded) {
				t.Errorf("the pass that gives up: %v, want the deadline's error for a1 and a2", errs)
			}
			n, errs := pass(t, topic, "a1 a2 b2")
			var refusal *outbox.RefusedError
			if n != 1 || errs[2] != nil || errors.As(errs[0], &refusal) {
				t.Errorf("the pass after it: %v, want errors that say nothing for a1 and a2", errs)
			}
			if got := stored(server, "a"); len(got) > 0 {
				t.Fatalf("stored %q: the broker was faster than the test", got)
			}
			pgtest.Eventually(t, 20*time.Second, "the key opens", func() bool {
				n, _ := pass(t, topic, "a1 a2 a3")
				return n == 3
			})
			want := []string{"a1", "a2", "a3"}
			if code == codes.OK {
				want = append([]string{"a1", "a2"}, want...)
			}
			same(t, "stored", want, stored(server, "a"))
		})
	}
}

// InvalidArgument refuses the message. With any other error, the broker is
// unavailable or refuses everything.
func TestTopicTellsRefusalsFromOutages(t *testing.T) {
	t.Parallel()
	tests := []struct {
		code    codes.Code
		refused bool
	}{
		{codes.InvalidArgument, true},
		{codes.NotFound, false},
		{codes.PermissionDenied, false},
		{codes.Unauthenticated, false},
		{codes.FailedPrecondition, false},
		{codes.Unimplemented, false},
		{codes.ResourceExhausted, false},
		{codes.Unavailable, false},
		{codes.Internal, false},
		{codes.Unknown, false},
		{codes.DeadlineExceeded, false},
		{codes.Canceled, false},
		{codes.Aborted, false},
	}
	topic, server := newTopic(t, 3*time.Second, 20) // 3 s is how long the client retries
	for _, test := range tests {
		t.Run(test.code.String(), func(t *testing.T) {
			t.Parallel()
			key := test.code.String()
			defer server.Inject(pubsublocal.Fault{Method: "Publish", OrderingKey: key, Code: test.code})()
			m := message("x1")
			m.AggregateID = key
			err := topic.Publish(m).Wait(t.Context())
			var refusal *outbox.RefusedError
			if err == nil || errors.As(err, &refusal) != test.refused {
				t.Errorf("Wait() = %v, want an error that refuses the message: %t", err, test.refused)
			}
		})
	}
}

// Stop waits for all publishes under way, even of an abandoned pass, and leaves no
// goroutine.
func TestTopicStopLeavesNothing(t *testing.T) {
	t.Parallel()
	client, server := newClient(t)
	publisher := client.Publisher(localtopics.Topic)
	topic := outbox.NewTopic(publisher, 5*time.Second, 10)
	server.Inject(pubsublocal.Fault{Method: "Publish", Delay: 3 * time.Second})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if n, _ := collect(ctx, hand(topic, "a1 b1")); n != 0 {
		t.Errorf("%d acknowledged, want none yet", n)
	}
	last := hand(topic, "c1")
	topic.Stop()
	if got := stored(server); len(got) != 3 {
		t.Errorf("stored after Stop: %q, want a1, b1 and c1", got)
	}
	if n, errs := collect(t.Context(), last); n != 1 {
		t.Errorf("c1: %v, want nil", errs)
	}
	// A goroutine of theirs would hold on to them.
	oldTopic, oldPublisher := weak.Make(topic), weak.Make(publisher)
	topic, publisher, last = nil, nil, nil //nolint:ineffassign // this test holds on to them too
	pgtest.Eventually(t, 20*time.Second, "nobody uses the topic and the client's publisher", func() bool {
		runtime.GC()
		return oldTopic.Value() == nil && oldPublisher.Value() == nil
	})
}
