package conformance

import (
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// seek are the cases of section L about Seek.
var seek = []Case{
	{
		ID:       "L1",
		Sentence: "Seek without target is INVALID_ARGUMENT.",
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t)
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
					WantCode(t, errOf(e.Subs.Seek(t.Context(), test.request)), test.want)
				})
			}
			pullNothing(t, e, sub) // nothing has changed: the message is still outstanding
		},
	},
	{
		ID:       "L2",
		Sentence: "Seek to a time makes retained messages published before it acknowledged, those at it and after it unacknowledged.",
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t, retainingAcked)
			fresh := e.Subscription(t, topic)
			for _, text := range []string{"a", "b", "c"} {
				e.Publish(t, topic, "", text)
				time.Sleep(20 * time.Millisecond) // so that publish times differ
			}
			at := map[string]time.Time{}
			for _, m := range pullAny(t, e, sub, "a", "b", "c") {
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
						pullNothing(t, e, sub)
						return
					}
					e.Ack(t, sub, pullAny(t, e, sub, test.want...)...)
					pullNothing(t, e, sub)
				})
			}
			t.Run("never delivered", func(t *testing.T) {
				seekToTime(t, e, fresh, at["b"])
				pullAny(t, e, fresh, "b", "c")
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
				e.Ack(t, sub, pullAny(t, e, sub, texts...)...)
			}
			t.Run("nothing retains", func(t *testing.T) {
				topic, sub := e.Subscribed(t)
				e.Publish(t, topic, "", "acked")
				ackAll(t, sub, "acked")
				e.Publish(t, topic, "", "unacked")
				seekToTime(t, e, sub, time.Now().Add(-time.Hour))
				pullAny(t, e, sub, "unacked")
				pullNothing(t, e, sub)
			})
			t.Run("before all", func(t *testing.T) {
				topic, sub := e.Subscribed(t)
				e.Publish(t, topic, "", "unacked")
				seekToTime(t, e, sub, time.Unix(0, 0))
				pullAny(t, e, sub, "unacked")
			})
			t.Run("the subscription retains", func(t *testing.T) {
				topic, sub := e.Subscribed(t, retainingAcked, retaining(10*time.Minute))
				e.Publish(t, topic, "", "old")
				ackAll(t, sub, "old")
				e.Advance(11 * time.Minute)
				e.Publish(t, topic, "", "young")
				ackAll(t, sub, "young")
				seekToTime(t, e, sub, time.Unix(0, 0))
				pullAny(t, e, sub, "young")
				pullNothing(t, e, sub)
			})
			t.Run("it begins to retain", func(t *testing.T) {
				topic, sub := e.Subscribed(t)
				e.Publish(t, topic, "", "dropped")
				ackAll(t, sub, "dropped")
				must(t, errOf(subscriptionUpdate(t, e, &pubsubpb.Subscription{Name: sub, RetainAckedMessages: true}, "retain_acked_messages")))
				e.Publish(t, topic, "", "kept")
				ackAll(t, sub, "kept")
				seekToTime(t, e, sub, time.Unix(0, 0))
				pullAny(t, e, sub, "kept")
				pullNothing(t, e, sub)
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
				pullAny(t, e, sub, "young")
				pullNothing(t, e, sub)
			})
		},
	},
	{
		ID:       "L4",
		Sentence: "A time in the future acknowledges all that was published so far and nothing later, even with a publish time before it.",
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t, retainingAcked)
			e.Publish(t, topic, "", "outstanding")
			first := oneDelivery(t, e, sub)
			e.Publish(t, topic, "", "waiting")
			seekToTime(t, e, sub, time.Now().Add(day))
			pullNothing(t, e, sub)
			e.Publish(t, topic, "", "new")
			pullAny(t, e, sub, "new")
			// They are acknowledged, not dropped: a seek brings retained ones
			// back.
			seekToTime(t, e, sub, first.GetMessage().GetPublishTime().AsTime())
			pullAny(t, e, sub, "outstanding", "waiting", "new")
		},
	},
	{
		ID:       "L5",
		Sentence: "Outstanding messages that the seek acknowledges are not redelivered; their later acks succeed without effect.",
		Clock:    true,
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t)
			e.Publish(t, topic, "", "acked", "nacked", "expired")
			messages := pullAny(t, e, sub, "acked", "nacked", "expired")
			seekToTime(t, e, sub, time.Now().Add(day))
			e.Ack(t, sub, messages[0])
			e.Nack(t, sub, messages[1])
			pullNothing(t, e, sub)
			e.Advance(11 * time.Second)
			pullNothing(t, e, sub)
			e.Ack(t, sub, messages...)
		},
	},
	{
		ID:       "L6",
		Sentence: "Outstanding messages that stay unacknowledged lose their lease and are delivered again.",
		Run: func(t *testing.T, e *Env) {
			long := func(s *pubsubpb.Subscription) { s.AckDeadlineSeconds = 600 }
			t.Run("time", func(t *testing.T) {
				topic, sub := e.Subscribed(t, long)
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
				pullNothing(t, e, sub)
			})
			t.Run("stream", func(t *testing.T) { // its only credit is returned with the lost lease
				topic, sub := e.Subscribed(t)
				e.Publish(t, topic, "", "m")
				stream := openRaw(t, e, sub, streamLease(600), outstanding(1))
				for range 2 {
					got := stream.take(t, 1)
					seekToTime(t, e, sub, got[0].GetMessage().GetPublishTime().AsTime())
				}
			})
		},
	},
	{
		ID:       "L7",
		Sentence: "A seek is done when the call returns, except for messages already on the wire.",
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t, retainingAcked)
			texts := make([]string, 50)
			for i := range texts {
				texts[i] = string(rune('A' + i))
			}
			e.Publish(t, topic, "", texts...)
			begin := oneDelivery(t, e, sub).GetMessage().GetPublishTime().AsTime()
			for range 3 {
				seekToTime(t, e, sub, time.Now().Add(day))
				pullNothing(t, e, sub)
				seekToTime(t, e, sub, begin)
				pullAny(t, e, sub, texts...)
			}
		},
	},
	{
		ID:       "L15",
		Sentence: "Retry delays and runs of ordering keys are cleared by a seek.",
		Clock:    true,
		Run: func(t *testing.T, e *Env) {
			t.Run("delay", func(t *testing.T) {
				topic, sub := e.Subscribed(t, delayedBy(100*time.Second))
				e.Publish(t, topic, "", "m")
				e.Nack(t, sub, oneDelivery(t, e, sub))
				e.Advance(101 * time.Second)
				m := oneDelivery(t, e, sub)
				e.Nack(t, sub, m) // is delivered again in 200 s
				pullNothing(t, e, sub)
				seekToTime(t, e, sub, m.GetMessage().GetPublishTime().AsTime())
				e.Nack(t, sub, oneDelivery(t, e, sub))
				// The backoff starts from the beginning as well: otherwise it
				// would be 400 s.
				pullNothing(t, e, sub)
				e.Advance(101 * time.Second)
				pullAny(t, e, sub, "m")
			})
			t.Run("run", func(t *testing.T) {
				topic, sub := e.Subscribed(t, Ordered, func(s *pubsubpb.Subscription) { s.AckDeadlineSeconds = 600 })
				e.Publish(t, topic, "key", "1", "2")
				run := pullAny(t, e, sub, "1", "2")
				e.Publish(t, topic, "key", "3")
				pullNothing(t, e, sub)
				seekToTime(t, e, sub, run[0].GetMessage().GetPublishTime().AsTime())
				pullInOrder(t, e, sub, "1", "2", "3")
				seekToTime(t, e, sub, time.Now().Add(day))
				e.Publish(t, topic, "key", "4") // not held back by the messages that the seek has acknowledged
				pullInOrder(t, e, sub, "4")
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
