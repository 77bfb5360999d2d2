package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// orderingFailures are the cases of section I about failures and other events of a key.
var orderingFailures = []Case{
	{
		ID: "I13", Sentence: "A redelivery caused by an earlier message does not raise delivery_attempt, nor dead-letter.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			dead, letters := e.Subscribed(t)
			topic, sub := e.Subscribed(t, Ordered, deadTo(dead, 5))
			e.Publish(t, topic, "key", "1", "2")
			for attempt := range int32(5) {
				got := pullInOrder(t, e, sub, "1", "2")
				wantEqual(t, []int32{attempt + 1, 1}, attempts(got), "delivery_attempt of both")
				if attempt%2 == 0 {
					e.Nack(t, sub, got[0])
				} else {
					e.Extend(t, sub, 600, got[1])
					e.Advance(15 * time.Second)
				}
			}
			pullInOrder(t, e, letters, "1")
			got := pullInOrder(t, e, sub, "2")
			wantEqual(t, []int32{1}, attempts(got), "delivery_attempt of the second one")
			e.Nack(t, sub, got...)
			wantEqual(t, []int32{2}, attempts(pullInOrder(t, e, sub, "2")), "delivery_attempt after its own nack")
		},
	},
	{
		ID: "I14", Sentence: "A retry delay holds back the later messages of the key, of no other key.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t, Ordered, delayedBy(20*time.Second))
			e.Publish(t, topic, "key", "1", "2")
			stream := openRaw(t, e, sub, outstanding(2))
			e.Nack(t, sub, stream.wants(t, "1", "2")[0])
			e.Publish(t, topic, "key", "3")
			stream.quiet(t)
			e.Publish(t, topic, "other key", "a")
			others := stream.wants(t, "a")
			e.Publish(t, topic, "", "b") // there is credit: messages 1 and 2, which wait for the delay, are not outstanding
			others = append(others, stream.wants(t, "b")...)
			e.Ack(t, sub, others...)
			e.Advance(15 * time.Second)
			stream.quiet(t)
			e.Advance(10 * time.Second)
			// Message 3 is in this run or in the next one.
			e.Ack(t, sub, stream.wants(t, "1", "2")...)
			stream.wants(t, "3")
		},
	},
	{
		ID: "I15", Sentence: "When a message is dead-lettered, its key goes on with the next.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			for _, fail := range []struct {
				name string
				do   func(t *testing.T, sub string, m *pubsubpb.ReceivedMessage)
			}{
				{"nack", func(t *testing.T, sub string, m *pubsubpb.ReceivedMessage) { e.Nack(t, sub, m) }},
				{"expiry", func(*testing.T, string, *pubsubpb.ReceivedMessage) { e.Advance(65 * time.Second) }},
			} {
				t.Run(fail.name, func(t *testing.T) {
					dead, letters := e.Subscribed(t, leasedFor(600))
					topic, sub := e.Subscribed(t, Ordered, deadTo(dead, 5))
					e.Publish(t, topic, "key", "1", "2", "3")
					stream := openRaw(t, e, sub, outstanding(1))
					for range 5 {
						fail.do(t, sub, stream.wants(t, "1")[0])
					}
					e.Ack(t, sub, stream.wants(t, "2")...)
					e.Ack(t, sub, stream.wants(t, "3")...)
					e.Publish(t, topic, "key", "4")
					stream.wants(t, "4")
					pullInOrder(t, e, letters, "1")
				})
			}
		},
	},
	{
		ID: "I16", Sentence: "When a stream ends, its keys go on from their first unacknowledged messages, in order, on another stream.",
		Run: func(t *testing.T, e *Env) {
			for _, end := range endings {
				t.Run(end.name, func(t *testing.T) {
					topic, sub := e.Subscribed(t, Ordered)
					stream := openRaw(t, e, sub)
					stream.settle(t)
					want := map[string][]string{}
					keys := []string{"a", "b", "c"}
					for i, key := range keys {
						e.Publish(t, topic, key, serial(1, 5)...)
						e.Ack(t, sub, stream.wants(t, serial(1, 5)...)[:i+1]...)
						e.Publish(t, topic, key, "0006")
						want[key] = serial(i+2, 6)
					}
					other := openRaw(t, e, sub)
					other.quiet(t)
					end.do(t, stream)
					got := map[string][]string{}
					for range 5 + 4 + 3 {
						m := other.take(t, 1)[0]
						key := m.GetMessage().GetOrderingKey()
						got[key] = append(got[key], string(m.GetMessage().GetData()))
						e.Ack(t, sub, m)
					}
					wantEqual(t, want, got, "other stream")
					other.quiet(t)
				})
			}
		},
	},
	{
		ID: "I17", Sentence: "A message dropped by retention does not block its key.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			short := func(s *pubsubpb.Subscription) { s.MessageRetentionDuration = durationpb.New(10 * time.Minute) }
			t.Run("waiting", func(t *testing.T) {
				topic, sub := e.Subscribed(t, Ordered, short)
				e.Publish(t, topic, "key", "1")
				e.Advance(11 * time.Minute)
				e.Publish(t, topic, "key", "2")
				pullInOrder(t, e, sub, "2")
			})
			t.Run("outstanding", func(t *testing.T) {
				topic, sub := e.Subscribed(t, Ordered, short, leasedFor(600))
				e.Publish(t, topic, "key", "1")
				got := pullInOrder(t, e, sub, "1")
				e.Advance(5 * time.Minute)
				e.Publish(t, topic, "key", "2")
				e.Extend(t, sub, 600, got...)
				pullNothing(t, e, sub)
				e.Advance(6 * time.Minute)
				pullInOrder(t, e, sub, "2")
			})
		},
	},
	{
		ID: "I18", Sentence: "After a seek a key comes from its earliest unacknowledged retained message, in publish order.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			retaining := func(s *pubsubpb.Subscription) { s.RetainAckedMessages = true }
			sub := e.Subscription(t, topic, Ordered, leasedFor(600), retaining)
			e.Publish(t, topic, "key", "1", "2")
			e.Advance(time.Second)
			e.Publish(t, topic, "key", "3", "4")
			got := pullInOrder(t, e, sub, "1", "2", "3", "4")
			e.Ack(t, sub, got[0])
			e.Ack(t, sub, got[1], got[2])
			to := func(m *pubsubpb.ReceivedMessage) *timestamppb.Timestamp { return m.GetMessage().GetPublishTime() }
			for _, seek := range []struct {
				request *pubsubpb.SeekRequest
				want    []string
			}{
				{&pubsubpb.SeekRequest{Target: &pubsubpb.SeekRequest_Time{Time: to(got[0])}}, []string{"1", "2", "3", "4"}},
				{&pubsubpb.SeekRequest{Target: &pubsubpb.SeekRequest_Time{Time: to(got[2])}}, []string{"3", "4"}},
			} {
				seek.request.Subscription = sub
				must(t, errOf(e.Subs.Seek(t.Context(), seek.request)))
				got := pullInOrder(t, e, sub, seek.want...)
				pullNothing(t, e, sub)
				e.Ack(t, sub, got[:len(got)-1]...) // one stays outstanding for the next seek
			}
		},
	},
	{
		ID: "I19", Sentence: "Order holds over all publishers.",
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t, Ordered)
			other, err := pubsub.NewClient(t.Context(), e.Project, e.Options...)
			must(t, err)
			defer other.Close()
			publishers := []*pubsub.Publisher{e.Client.Publisher(topic), other.Publisher(topic), other.Publisher(topic)}
			for _, p := range publishers {
				p.EnableMessageOrdering = true
				defer p.Stop()
			}
			want := serial(1, 15)
			for i, text := range want {
				message := &pubsub.Message{Data: []byte(text), OrderingKey: "key"}
				must(t, errOf(publishers[i%len(publishers)].Publish(t.Context(), message).Get(t.Context())))
			}
			openRaw(t, e, sub).wants(t, want...)
		},
	},
	{
		ID: "I20", Sentence: "A failed Publish leaves no mark on its key.",
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t, Ordered)
			stream := openRaw(t, e, sub)
			for i, text := range serial(1, 3) {
				_, err := e.Topics.Publish(t.Context(), &pubsubpb.PublishRequest{Topic: topic, Messages: []*pubsubpb.PubsubMessage{
					{Data: []byte("good"), OrderingKey: "key"},
					{Data: []byte("bad"), OrderingKey: "key", Attributes: map[string]string{fmt.Sprint("goog", i): "reserved"}},
				}})
				WantCode(t, err, codes.InvalidArgument)
				e.Publish(t, topic, "key", text)
				e.Ack(t, sub, stream.wants(t, text)...)
			}
			stream.quiet(t)
		},
	},
	{
		ID: "I21", Sentence: "A key may take more than 1 MB a second.",
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t, Ordered)
			stream := openRaw(t, e, sub)
			stream.settle(t)
			large := strings.Repeat("x", 9_000_000)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			for range 3 {
				must(t, errOf(e.Topics.Publish(ctx, &pubsubpb.PublishRequest{
					Topic: topic, Messages: []*pubsubpb.PubsubMessage{{Data: []byte(large), OrderingKey: "key"}},
				})))
				e.Ack(t, sub, stream.take(t, 1)...)
			}
		},
	},
}

// attempts returns the delivery_attempt of messages.
func attempts(messages []*pubsubpb.ReceivedMessage) (numbers []int32) {
	for _, m := range messages {
		numbers = append(numbers, m.GetDeliveryAttempt())
	}
	return slices.Clip(numbers)
}
