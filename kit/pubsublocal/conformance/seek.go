package conformance

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"github.com/googleapis/gax-go/v2/apierror"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// seek are the cases of section L about Seek.
var seek = []Case{
	{
		ID:       "L1",
		Sentence: "Seek without target is INVALID_ARGUMENT.",
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			sub := e.Subscription(t, topic)
			e.Publish(t, topic, "", "outstanding")
			oneDelivery(t, e, sub)
			for _, test := range []struct {
				name    string
				request *pubsubpb.SeekRequest
				want    codes.Code
			}{
				{"no target", &pubsubpb.SeekRequest{Subscription: sub}, codes.InvalidArgument},
				{
					"missing subscription",
					&pubsubpb.SeekRequest{
						Subscription: e.Name("subscriptions"),
						Target:       &pubsubpb.SeekRequest_Time{Time: timestamppb.Now()},
					},
					codes.NotFound,
				},
			} {
				t.Run(test.name, func(t *testing.T) {
					_, err := e.Subs.Seek(t.Context(), test.request)
					WantCode(t, err, test.want)
				})
			}
			expectSilence(t, e, sub) // nothing has changed: the message is still outstanding
		},
	},
	{
		ID:       "L2",
		Sentence: "Seek to a time makes retained messages published before it acknowledged, those at it and after it unacknowledged.",
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			sub := e.Subscription(t, topic, retainingAcked)
			fresh := e.Subscription(t, topic)
			for _, text := range []string{"a", "b", "c"} {
				e.Publish(t, topic, "", text)
				time.Sleep(20 * time.Millisecond) // so that publish times differ
			}
			at := map[string]time.Time{}
			for _, m := range expectDelivery(t, e, sub, "a", "b", "c") {
				at[string(m.GetMessage().GetData())] = m.GetMessage().GetPublishTime().AsTime()
				if string(m.GetMessage().GetData()) != "c" {
					e.Ack(t, sub, m)
				}
			}
			for _, test := range []struct {
				name string
				to   time.Time
				want []string
			}{
				{"the time of b", at["b"], []string{"b", "c"}},
				{"between b and c", at["b"].Add(time.Millisecond), []string{"c"}},
				{"the time of a", at["a"], []string{"a", "b", "c"}},
				{"after c", at["c"].Add(time.Millisecond), nil},
				{"the time of c", at["c"], []string{"c"}},
			} {
				t.Run(test.name, func(t *testing.T) {
					seekToTime(t, e, sub, test.to)
					if test.want == nil {
						expectSilence(t, e, sub)
						return
					}
					e.Ack(t, sub, expectDelivery(t, e, sub, test.want...)...)
					expectSilence(t, e, sub)
				})
			}
			t.Run("never delivered", func(t *testing.T) {
				seekToTime(t, e, fresh, at["b"])
				expectDelivery(t, e, fresh, "b", "c")
			})
		},
	},
	{
		ID:       "L3",
		Sentence: "Acknowledged messages come back only as far as something retains them; what was dropped stays dropped; a time before all is no error.",
		Clock:    true,
		Run: func(t *testing.T, e *Env) {
			ackAll := func(t *testing.T, sub string, texts ...string) {
				t.Helper()
				e.Ack(t, sub, expectDelivery(t, e, sub, texts...)...)
			}
			t.Run("nothing retains", func(t *testing.T) {
				topic := e.Topic(t)
				sub := e.Subscription(t, topic)
				e.Publish(t, topic, "", "acked")
				ackAll(t, sub, "acked")
				e.Publish(t, topic, "", "unacked")
				seekToTime(t, e, sub, time.Now().Add(-time.Hour))
				expectDelivery(t, e, sub, "unacked")
				expectSilence(t, e, sub)
			})
			t.Run("before all", func(t *testing.T) {
				topic := e.Topic(t)
				sub := e.Subscription(t, topic)
				e.Publish(t, topic, "", "unacked")
				seekToTime(t, e, sub, time.Unix(0, 0))
				expectDelivery(t, e, sub, "unacked")
			})
			t.Run("the subscription retains", func(t *testing.T) {
				topic := e.Topic(t)
				sub := e.Subscription(t, topic, retainingAcked, retaining(10*time.Minute))
				e.Publish(t, topic, "", "old")
				ackAll(t, sub, "old")
				e.Advance(11 * time.Minute)
				e.Publish(t, topic, "", "young")
				ackAll(t, sub, "young")
				seekToTime(t, e, sub, time.Unix(0, 0))
				expectDelivery(t, e, sub, "young")
				expectSilence(t, e, sub)
			})
			t.Run("it begins to retain", func(t *testing.T) {
				topic := e.Topic(t)
				sub := e.Subscription(t, topic)
				e.Publish(t, topic, "", "dropped")
				ackAll(t, sub, "dropped")
				if _, err := e.Subs.UpdateSubscription(t.Context(), &pubsubpb.UpdateSubscriptionRequest{
					Subscription: &pubsubpb.Subscription{Name: sub, RetainAckedMessages: true},
					UpdateMask:   &fieldmaskpb.FieldMask{Paths: []string{"retain_acked_messages"}},
				}); err != nil {
					t.Fatalf("UpdateSubscription: %v", err)
				}
				e.Publish(t, topic, "", "kept")
				ackAll(t, sub, "kept")
				seekToTime(t, e, sub, time.Unix(0, 0))
				expectDelivery(t, e, sub, "kept")
				expectSilence(t, e, sub)
			})
			t.Run("the topic retains", func(t *testing.T) {
				topic := e.Topic(t, func(topic *pubsubpb.Topic) { topic.MessageRetentionDuration = durationpb.New(10 * time.Minute) })
				sub := e.Subscription(t, topic)
				e.Publish(t, topic, "", "old")
				ackAll(t, sub, "old")
				e.Advance(11 * time.Minute)
				e.Publish(t, topic, "", "young")
				ackAll(t, sub, "young")
				seekToTime(t, e, sub, time.Unix(0, 0))
				expectDelivery(t, e, sub, "young")
				expectSilence(t, e, sub)
			})
		},
	},
	{
		ID:       "L4",
		Sentence: "A time in the future acknowledges all that was published so far and nothing later, even with a publish time before it.",
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			sub := e.Subscription(t, topic, retainingAcked)
			e.Publish(t, topic, "", "outstanding")
			first := oneDelivery(t, e, sub)
			e.Publish(t, topic, "", "waiting")
			seekToTime(t, e, sub, time.Now().Add(day))
			expectSilence(t, e, sub)
			e.Publish(t, topic, "", "new")
			expectDelivery(t, e, sub, "new")
			// They are acknowledged, not dropped: a seek brings retained ones
			// back.
			seekToTime(t, e, sub, first.GetMessage().GetPublishTime().AsTime())
			expectDelivery(t, e, sub, "outstanding", "waiting", "new")
		},
	},
	{
		ID:       "L5",
		Sentence: "Outstanding messages that the seek acknowledges are not redelivered; their later acks succeed without effect, with exactly-once they fail.",
		Clock:    true,
		Run: func(t *testing.T, e *Env) {
			t.Run("at least once", func(t *testing.T) {
				topic := e.Topic(t)
				sub := e.Subscription(t, topic)
				e.Publish(t, topic, "", "acked", "nacked", "expired")
				messages := expectDelivery(t, e, sub, "acked", "nacked", "expired")
				seekToTime(t, e, sub, time.Now().Add(day))
				e.Ack(t, sub, messages[0])
				e.Nack(t, sub, messages[1])
				expectSilence(t, e, sub)
				e.Advance(11 * time.Second)
				expectSilence(t, e, sub)
				e.Ack(t, sub, messages...)
			})
			t.Run("exactly once", func(t *testing.T) {
				topic := e.Topic(t)
				sub := e.Subscription(t, topic, ExactlyOnce)
				e.Publish(t, topic, "", "m")
				m := oneDelivery(t, e, sub)
				seekToTime(t, e, sub, time.Now().Add(day))
				err := e.Subs.Acknowledge(t.Context(), &pubsubpb.AcknowledgeRequest{Subscription: sub, AckIds: []string{m.GetAckId()}})
				WantCode(t, err, codes.InvalidArgument)
				if apiError, ok := errors.AsType[*apierror.APIError](err); ok {
					want := map[string]string{m.GetAckId(): "PERMANENT_FAILURE_INVALID_ACK_ID"}
					if diff := cmp.Diff(want, apiError.Metadata()); diff != "" {
						t.Errorf("metadata of the error (-want +got):\n%s", diff)
					}
				}
				e.Advance(61 * time.Second)
				expectSilence(t, e, sub)
			})
		},
	},
	{
		ID:       "L6",
		Sentence: "Outstanding messages that stay unacknowledged lose their lease and are delivered again.",
		Run: func(t *testing.T, e *Env) {
			long := func(s *pubsubpb.Subscription) { s.AckDeadlineSeconds = 600 }
			t.Run("time", func(t *testing.T) {
				topic := e.Topic(t)
				sub := e.Subscription(t, topic, long)
				e.Publish(t, topic, "", "m")
				first := oneDelivery(t, e, sub)
				seekToTime(t, e, sub, first.GetMessage().GetPublishTime().AsTime())
				again := oneDelivery(t, e, sub)
				if again.GetAckId() == first.GetAckId() {
					t.Errorf("got ack id %q again, want a new one", first.GetAckId())
				}
				if got, want := again.GetMessage().GetMessageId(), first.GetMessage().GetMessageId(); got != want {
					t.Errorf("got message %q, want %q", got, want)
				}
				e.Ack(t, sub, again)
				expectSilence(t, e, sub)
			})
			t.Run("stream", func(t *testing.T) { // its only credit is returned with the lost lease
				topic := e.Topic(t)
				sub := e.Subscription(t, topic)
				e.Publish(t, topic, "", "m")
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				stream, err := e.Subs.StreamingPull(ctx)
				if err != nil {
					t.Fatalf("StreamingPull: %v", err)
				}
				if err := stream.Send(&pubsubpb.StreamingPullRequest{
					Subscription: sub, StreamAckDeadlineSeconds: 600, MaxOutstandingMessages: 1,
				}); err != nil {
					t.Fatalf("Send: %v", err)
				}
				for range 2 {
					var got []*pubsubpb.ReceivedMessage
					for len(got) == 0 {
						response, err := stream.Recv()
						if err != nil {
							t.Fatalf("Recv: %v", err)
						}
						got = response.GetReceivedMessages()
					}
					seekToTime(t, e, sub, got[0].GetMessage().GetPublishTime().AsTime())
				}
			})
		},
	},
	{
		ID:       "L7",
		Sentence: "A seek is done when the call returns, except for messages already on the wire.",
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			sub := e.Subscription(t, topic, retainingAcked)
			texts := make([]string, 50)
			for i := range texts {
				texts[i] = string(rune('A' + i))
			}
			e.Publish(t, topic, "", texts...)
			begin := oneDelivery(t, e, sub).GetMessage().GetPublishTime().AsTime()
			for range 3 {
				seekToTime(t, e, sub, time.Now().Add(day))
				expectSilence(t, e, sub)
				seekToTime(t, e, sub, begin)
				expectDelivery(t, e, sub, texts...)
			}
		},
	},
	{
		ID:       "L15",
		Sentence: "Retry delays and runs of ordering keys are cleared by a seek.",
		Clock:    true,
		Run: func(t *testing.T, e *Env) {
			t.Run("delay", func(t *testing.T) {
				topic := e.Topic(t)
				sub := e.Subscription(t, topic, func(s *pubsubpb.Subscription) {
					s.RetryPolicy = &pubsubpb.RetryPolicy{MinimumBackoff: durationpb.New(100 * time.Second), MaximumBackoff: durationpb.New(10 * time.Minute)}
				})
				e.Publish(t, topic, "", "m")
				e.Nack(t, sub, oneDelivery(t, e, sub))
				e.Advance(101 * time.Second)
				m := oneDelivery(t, e, sub)
				e.Nack(t, sub, m) // is delivered again in 200 s
				expectSilence(t, e, sub)
				seekToTime(t, e, sub, m.GetMessage().GetPublishTime().AsTime())
				e.Nack(t, sub, oneDelivery(t, e, sub))
				// The backoff starts from the beginning as well: otherwise it
				// would be 400 s.
				expectSilence(t, e, sub)
				e.Advance(101 * time.Second)
				expectDelivery(t, e, sub, "m")
			})
			t.Run("run", func(t *testing.T) {
				topic := e.Topic(t)
				sub := e.Subscription(t, topic, Ordered, func(s *pubsubpb.Subscription) { s.AckDeadlineSeconds = 600 })
				e.Publish(t, topic, "key", "1", "2")
				run := expectDelivery(t, e, sub, "1", "2")
				e.Publish(t, topic, "key", "3")
				expectSilence(t, e, sub)
				seekToTime(t, e, sub, run[0].GetMessage().GetPublishTime().AsTime())
				wantRun := func(want ...string) {
					t.Helper()
					if diff := cmp.Diff(want, Texts(expectDelivery(t, e, sub, want...))); diff != "" {
						t.Errorf("order (-want +got):\n%s", diff)
					}
				}
				wantRun("1", "2", "3")
				seekToTime(t, e, sub, time.Now().Add(day))
				e.Publish(t, topic, "key", "4") // not held back by the messages that the seek has acknowledged
				wantRun("4")
			})
		},
	},
}

// oneDelivery waits for the next message of a subscription.
func oneDelivery(t *testing.T, e *Env, sub string) *pubsubpb.ReceivedMessage {
	t.Helper()
	for range 5 { // each pull waits for two seconds, unless the target is prompt
		if got := e.Pull(t, sub, 1); len(got) > 0 {
			return got[0]
		}
	}
	t.Fatal("got no message, want one")
	return nil
}

// expectDelivery fails the test unless exactly these texts come, in any order.
// It returns the messages in the order of arrival.
func expectDelivery(t *testing.T, e *Env, sub string, texts ...string) (messages []*pubsubpb.ReceivedMessage) {
	t.Helper()
	for empty := 0; len(messages) < len(texts) && empty < 5; {
		got := e.Pull(t, sub, 1000)
		if len(got) == 0 {
			empty++
		}
		messages = append(messages, got...)
	}
	want, got := slices.Sorted(slices.Values(texts)), slices.Sorted(slices.Values(Texts(messages)))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("messages (-want +got):\n%s", diff)
	}
	return messages
}

// expectSilence fails the test if a subscription delivers anything.
func expectSilence(t *testing.T, e *Env, sub string) {
	t.Helper()
	if got := e.Pull(t, sub, 1000); len(got) > 0 {
		t.Errorf("got %q, want no message", Texts(got))
	}
}
