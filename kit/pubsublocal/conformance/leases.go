package conformance

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

var leases = []Case{
	{
		ID: "H1", Sentence: "An outstanding message is not delivered again before its deadline.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			t.Run("pull", func(t *testing.T) {
				topic, sub := e.Subscribed(t, leasedFor(20))
				e.Publish(t, topic, "", "a")
				pullInOrder(t, e, sub, "a")
				pullNothing(t, e, sub)
				stream := openRaw(t, e, sub)
				e.Advance(15 * time.Second)
				stream.quiet(t)
				e.Advance(10 * time.Second)
				stream.wants(t, "a")
			})
			t.Run("stream", func(t *testing.T) {
				topic, sub := e.Subscribed(t)
				stream := openRaw(t, e, sub, streamLease(20))
				e.Publish(t, topic, "", "a")
				stream.wants(t, "a")
				pullNothing(t, e, sub)
				e.Advance(15 * time.Second)
				stream.quiet(t)
				pullNothing(t, e, sub)
				e.Advance(10 * time.Second)
				stream.wants(t, "a")
			})
		},
	},
	{
		ID: "H2", Sentence: "ModifyAckDeadline sets the deadline to 0 to 600 s from now, longer or shorter.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			tests := []struct {
				name         string
				lease        int32 // ack deadline of the subscription
				wait         time.Duration
				extend       int32         // new deadline after the delivery
				still, again time.Duration // after how long it is still leased, and after how long it is delivered again
			}{
				{"longer", 10, 0, 60, 50 * time.Second, 15 * time.Second},
				{"shorter", 60, 0, 20, 15 * time.Second, 10 * time.Second},
				{"from now", 20, 14 * time.Second, 20, 15 * time.Second, 10 * time.Second},
				{"longest", 10, 0, 600, 590 * time.Second, 15 * time.Second},
				{"nack", 10, 0, 0, 0, 0},
			}
			for _, test := range tests {
				t.Run(test.name, func(t *testing.T) {
					topic, sub := e.Subscribed(t, leasedFor(test.lease))
					e.Publish(t, topic, "", "a")
					got := pullInOrder(t, e, sub, "a")
					e.Advance(test.wait)
					e.Extend(t, sub, test.extend, got...)
					if test.still > 0 {
						e.Advance(test.still)
						pullNothing(t, e, sub)
						e.Advance(test.again)
					}
					pullInOrder(t, e, sub, "a")
				})
			}
			for _, seconds := range []int32{-1, 601} {
				t.Run(fmt.Sprint("refused ", seconds), func(t *testing.T) {
					topic, sub := e.Subscribed(t, leasedFor(20))
					e.Publish(t, topic, "", "a")
					got := pullInOrder(t, e, sub, "a")
					WantCode(t, modifyDeadline(t, e, sub, seconds, AckIDs(got)...), codes.InvalidArgument)
					e.Advance(15 * time.Second)
					pullNothing(t, e, sub) // the lease is unchanged
					e.Advance(10 * time.Second)
					pullInOrder(t, e, sub, "a")
				})
			}
		},
	},
	{
		ID: "H3", Sentence: "A deadline of 0 is a nack: deliverable at once, or after the delay of the retry policy.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			topic, atOnce := e.Subscribed(t, leasedFor(600))
			delayed := e.Subscription(t, topic, leasedFor(600), delayedBy(20*time.Second))
			e.Publish(t, topic, "", "a")
			e.Nack(t, atOnce, pullInOrder(t, e, atOnce, "a")...)
			e.Nack(t, delayed, pullInOrder(t, e, delayed, "a")...)
			pullInOrder(t, e, atOnce, "a")
			pullNothing(t, e, delayed)
			e.Advance(15 * time.Second)
			pullNothing(t, e, delayed)
			e.Advance(10 * time.Second)
			pullInOrder(t, e, delayed, "a")
		},
	},
	{
		ID: "H4", Sentence: "Acknowledge and ModifyAckDeadline without ack ids are refused.",
		Run: func(t *testing.T, e *Env) {
			sub := e.Subscription(t, e.Topic(t))
			WantCode(t, acknowledge(t, e, sub), codes.InvalidArgument)
			WantCode(t, modifyDeadline(t, e, sub, 10), codes.InvalidArgument)
			WantCode(t, modifyDeadline(t, e, sub, 0), codes.InvalidArgument)
		},
	},
	{
		ID: "H5", Sentence: "An ack id never made, or made for another subscription, is refused, and the other ids of the request have no effect.",
		Run: func(t *testing.T, e *Env) {
			topic, other := e.Subscribed(t, leasedFor(600))
			sub := e.Subscription(t, topic, leasedFor(600))
			e.Publish(t, topic, "", "a")
			foreign := pullInOrder(t, e, other, "a")[0].GetAckId()
			good := pullInOrder(t, e, sub, "a")[0]
			altered := []byte(good.GetAckId())
			altered[len(altered)/2] ^= 1
			tests := []struct{ name, id string }{
				{"empty", ""},
				{"nonsense", "nonsense"},
				{"long", strings.Repeat("A", 180)},
				{"altered", string(altered)},
				{"of another subscription", foreign},
			}
			for _, test := range tests {
				t.Run(test.name, func(t *testing.T) {
					for _, ids := range [][]string{{test.id}, {good.GetAckId(), test.id}, {test.id, good.GetAckId()}} {
						WantCode(t, acknowledge(t, e, sub, ids...), codes.InvalidArgument)
						WantCode(t, modifyDeadline(t, e, sub, 30, ids...), codes.InvalidArgument)
						WantCode(t, modifyDeadline(t, e, sub, 0, ids...), codes.InvalidArgument)
					}
				})
			}
			pullNothing(t, e, sub) // the nack had no effect
			e.Nack(t, sub, good)
			e.Nack(t, sub, pullInOrder(t, e, sub, "a")...) // the ack had no effect
			pullNothing(t, e, other)                       // the other subscription is unchanged
		},
	},
	{
		ID: "H6", Sentence: "Without exactly-once, expired, superseded and repeated ids are OK in both calls.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			tests := []struct {
				name  string
				stale func(t *testing.T, sub string, got []*pubsubpb.ReceivedMessage)
			}{
				{"expired", func(*testing.T, string, []*pubsubpb.ReceivedMessage) { e.Advance(15 * time.Second) }},
				{"superseded", func(t *testing.T, sub string, _ []*pubsubpb.ReceivedMessage) {
					e.Advance(15 * time.Second)
					pullInOrder(t, e, sub, "a")
				}},
				{"nacked", func(t *testing.T, sub string, got []*pubsubpb.ReceivedMessage) { e.Nack(t, sub, got...) }},
				{"acknowledged", func(t *testing.T, sub string, got []*pubsubpb.ReceivedMessage) { e.Ack(t, sub, got...) }},
			}
			for _, test := range tests {
				t.Run(test.name, func(t *testing.T) {
					topic, sub := e.Subscribed(t)
					e.Publish(t, topic, "", "a")
					got := pullInOrder(t, e, sub, "a")
					test.stale(t, sub, got)
					e.Extend(t, sub, 10, got...)
					e.Nack(t, sub, got...)
					e.Ack(t, sub, got...)
					e.Ack(t, sub, got[0], got[0])
				})
			}
		},
	},
	{
		ID: "H7", Sentence: "Without exactly-once, an ack with an expired id counts if the message was not delivered again since.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t)
			e.Publish(t, topic, "", "a")
			got := pullInOrder(t, e, sub, "a")
			e.Advance(15 * time.Second)
			e.Ack(t, sub, got...)
			pullNothing(t, e, sub)

			e.Publish(t, topic, "", "b")
			got = pullInOrder(t, e, sub, "b")
			e.Advance(15 * time.Second)
			again := pullInOrder(t, e, sub, "b")
			e.Ack(t, sub, got...) // too late, after the lease
			e.Nack(t, sub, again...)
			e.Ack(t, sub, pullInOrder(t, e, sub, "b")...)
			e.Advance(15 * time.Second)
			pullNothing(t, e, sub)
		},
	},
	{
		ID: "H8", Sentence: "A nack or extension with an expired id has no effect.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t, leasedFor(20), deadTo(e.Topic(t), 10))
			e.Publish(t, topic, "", "a")
			got := pullInOrder(t, e, sub, "a")
			e.Advance(25 * time.Second)
			e.Extend(t, sub, 600, got...)
			e.Nack(t, sub, got...)
			again := pullInOrder(t, e, sub, "a")
			wantEqual(t, int32(2), again[0].GetDeliveryAttempt(), "delivery_attempt, with a nack after the expiry")
			e.Nack(t, sub, got...)
			pullNothing(t, e, sub) // the new lease continues
			e.Extend(t, sub, 600, got...)
			e.Advance(25 * time.Second) // the new lease has ended
			wantEqual(t, int32(3), pullInOrder(t, e, sub, "a")[0].GetDeliveryAttempt(), "delivery_attempt")
		},
	},
	{
		ID: "H9", Sentence: "Every redelivery has the same id, publish time and content, and a new ack id.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t)
			published := &pubsubpb.PubsubMessage{Data: []byte("a\x00ÿ"), Attributes: map[string]string{"k": "v", "w": ""}, OrderingKey: "key"}
			e.PublishMessages(t, topic, published)
			first := pullUntil(t, e, sub, 1)[0]
			deliveries := []*pubsubpb.ReceivedMessage{first}
			e.Nack(t, sub, first)
			deliveries = append(deliveries, pullUntil(t, e, sub, 1)...)
			e.Advance(15 * time.Second)
			stream := openRaw(t, e, sub)
			deliveries = append(deliveries, stream.take(t, 1)...)
			stream.cancel()
			deliveries = append(deliveries, openRaw(t, e, sub).take(t, 1)...)

			seen := map[string]bool{}
			for i, got := range deliveries {
				if seen[got.GetAckId()] || got.GetAckId() == "" {
					t.Errorf("delivery %d has ack id %q, want a new one", i+1, got.GetAckId())
				}
				seen[got.GetAckId()] = true
				wantEqual(t, first.GetMessage(), got.GetMessage(), "delivery %d", i+1)
			}
			if len(deliveries) != 4 {
				t.Errorf("got %d deliveries, want 4", len(deliveries))
			}
			published.MessageId, published.PublishTime = first.GetMessage().GetMessageId(), first.GetMessage().GetPublishTime()
			wantEqual(t, published, first.GetMessage(), "message")
		},
	},
	{
		ID: "H10", Sentence: "An Acknowledge or ModifyAckDeadline request over 524,288 bytes is refused.",
		Run: func(t *testing.T, e *Env) {
			const most = 524288
			topic, sub := e.Subscribed(t, leasedFor(600))
			e.Publish(t, topic, "", "a", "b")
			got := pullAny(t, e, sub, "a", "b")
			// fill returns the largest number of ids whose request is within the limit, or one
			// more.
			fill := func(request proto.Message, id string, more int) []string {
				one := proto.Size(&pubsubpb.AcknowledgeRequest{AckIds: []string{id}})
				ids := make([]string, (most-proto.Size(request))/one+more)
				for i := range ids {
					ids[i] = id
				}
				return ids
			}
			const text = "Request payload size exceeds the limit: 524288 bytes."
			a, b := got[0].GetAckId(), got[1].GetAckId()
			ack := &pubsubpb.AcknowledgeRequest{Subscription: sub}
			modify := &pubsubpb.ModifyAckDeadlineRequest{Subscription: sub, AckDeadlineSeconds: 60}
			WantCode(t, acknowledge(t, e, sub, fill(ack, a, 1)...), codes.InvalidArgument, text)
			WantCode(t, modifyDeadline(t, e, sub, 60, fill(modify, b, 1)...), codes.InvalidArgument, text)
			e.Nack(t, sub, got[0])
			a = pullInOrder(t, e, sub, "a")[0].GetAckId() // the ack had no effect
			WantCode(t, acknowledge(t, e, sub, fill(ack, a, 0)...), codes.OK)
			WantCode(t, modifyDeadline(t, e, sub, 60, fill(modify, b, 0)...), codes.OK)
		},
	},
	{
		ID: "H11", Sentence: "Ack ids have at most 180 bytes, so that 2,500 of them fit into a request.",
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t, func(s *pubsubpb.Subscription) {
				s.Name += strings.Repeat("x", 255-len(s.GetName()[strings.LastIndex(s.GetName(), "/")+1:]))
			})
			texts := serial(1, 2500)
			for part := range 3 {
				e.Publish(t, topic, "", texts[part*1000:min(part*1000+1000, len(texts))]...)
			}
			stream := openRaw(t, e, sub, streamLease(600))
			got := stream.take(t, 1)
			e.Nack(t, sub, got...) // so that the ack ids of second deliveries are checked, too
			got = stream.take(t, 2500)
			for _, m := range got {
				if n := len(m.GetAckId()); n > 180 {
					t.Fatalf("got an ack id of %d bytes, want at most 180", n)
				}
			}
			e.Ack(t, sub, got...)
			stream.cancel()
			pullNothing(t, e, sub)
		},
	},
	{
		ID: "H12", Sentence: "Leases may be extended without end.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t)
			e.Publish(t, topic, "", "a")
			got := pullInOrder(t, e, sub, "a")
			for range 12 { // two hours
				e.Extend(t, sub, 600, got...)
				e.Advance(590 * time.Second)
			}
			e.Extend(t, sub, 600, got...)
			pullNothing(t, e, sub)
			e.Ack(t, sub, got...)
			e.Advance(15 * time.Minute)
			pullNothing(t, e, sub)
		},
	},
}

// acknowledge sends an Acknowledge with these ids.
func acknowledge(t *testing.T, e *Env, sub string, ids ...string) error {
	t.Helper()
	return e.Subs.Acknowledge(t.Context(), &pubsubpb.AcknowledgeRequest{Subscription: sub, AckIds: ids})
}

// modifyDeadline sends a ModifyAckDeadline with these ids.
func modifyDeadline(t *testing.T, e *Env, sub string, seconds int32, ids ...string) error {
	t.Helper()
	return e.Subs.ModifyAckDeadline(t.Context(), &pubsubpb.ModifyAckDeadlineRequest{
		Subscription: sub, AckIds: ids, AckDeadlineSeconds: seconds,
	})
}
