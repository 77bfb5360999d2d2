package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
)

// streamingPull are the cases of section G about requests, leases and credit.
var streamingPull = []Case{
	{
		ID: "G1", Sentence: "The first request names a subscription that exists.",
		Run: func(t *testing.T, e *Env) {
			tests := []struct {
				name, sub string
				want      codes.Code
			}{
				{"none", "", codes.InvalidArgument},
				{"malformed", "x", codes.InvalidArgument},
				{"missing", e.Name("subscriptions"), codes.NotFound},
			}
			for _, test := range tests {
				t.Run(test.name, func(t *testing.T) {
					WantCode(t, openRaw(t, e, test.sub).end(t), test.want)
				})
			}
		},
	},
	{
		ID: "G2", Sentence: "The first request has an ack deadline of 10 to 600 s; later ones may change it, and 0 leaves it.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			for _, seconds := range []int32{0, -1, 9, 601} {
				stream := openRaw(t, e, e.Subscription(t, topic), streamLease(seconds))
				WantCode(t, stream.end(t), codes.InvalidArgument)
			}
			for _, seconds := range []int32{10, 600} {
				sub := e.Subscription(t, topic)
				stream := openRaw(t, e, sub, streamLease(seconds))
				e.Publish(t, topic, "", "a")
				stream.wants(t, "a")
			}

			sub := e.Subscription(t, topic)
			stream := openRaw(t, e, sub, streamLease(20))
			for i, seconds := range []int32{60, 0} {
				stream.send(t, &pubsubpb.StreamingPullRequest{StreamAckDeadlineSeconds: seconds})
				stream.settle(t)
				text := fmt.Sprint(i)
				e.Publish(t, topic, "", text)
				stream.wants(t, text)
				e.Advance(50 * time.Second)
				stream.quiet(t)
				e.Advance(15 * time.Second)
				e.Ack(t, sub, stream.wants(t, text)...)
			}
		},
	},
	{
		ID: "G3", Sentence: "A later request with subscription, limits or protocol version ends the stream; a repeated client id does not.",
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t)
			tests := []struct {
				name  string
				later *pubsubpb.StreamingPullRequest
			}{
				{"subscription", &pubsubpb.StreamingPullRequest{Subscription: sub}},
				{"max_outstanding_messages", &pubsubpb.StreamingPullRequest{MaxOutstandingMessages: 10}},
				{"max_outstanding_bytes", &pubsubpb.StreamingPullRequest{MaxOutstandingBytes: 1000}},
				{"protocol_version", &pubsubpb.StreamingPullRequest{ProtocolVersion: 1}},
			}
			for _, test := range tests {
				t.Run(test.name, func(t *testing.T) {
					stream := openRaw(t, e, sub)
					stream.settle(t)
					stream.send(t, test.later)
					WantCode(t, stream.end(t), codes.InvalidArgument)
				})
			}
			stream := openRaw(t, e, sub, clientID("me"))
			stream.send(t, &pubsubpb.StreamingPullRequest{ClientId: "me"})
			stream.settle(t)
			e.Publish(t, topic, "", "a")
			stream.wants(t, "a")
		},
	},
	{
		ID: "G4", Sentence: "Deadlines that do not fit the ids in number, or are not 0 to 600, end the stream.",
		Run: func(t *testing.T, e *Env) {
			tests := []struct {
				name string
				ids  int
				to   []int32
				want codes.Code
			}{
				{"too few", 1, nil, codes.InvalidArgument},
				{"too many", 1, []int32{10, 10}, codes.InvalidArgument},
				{"without id", 0, []int32{10}, codes.InvalidArgument},
				{"negative", 1, []int32{-1}, codes.InvalidArgument},
				{"too long", 1, []int32{601}, codes.InvalidArgument},
				{"shortest", 1, []int32{0}, codes.OK},
				{"longest", 1, []int32{600}, codes.OK},
			}
			for _, test := range tests {
				t.Run(test.name, func(t *testing.T) {
					topic := e.Topic(t)
					stream := openRaw(t, e, e.Subscription(t, topic))
					e.Publish(t, topic, "", "a")
					ids := AckIDs(stream.wants(t, "a"))
					stream.send(t, &pubsubpb.StreamingPullRequest{ModifyDeadlineAckIds: ids[:test.ids], ModifyDeadlineSeconds: test.to})
					if test.want != codes.OK {
						WantCode(t, stream.end(t), test.want)
						return
					}
					e.Publish(t, topic, "", "b")
					got := stream.take(t, 1)
					if Texts(got)[0] == "a" { // after a deadline of 0 it comes again
						stream.wants(t, "b")
					}
				})
			}
		},
	},
	{
		ID: "G5", Sentence: "A malformed ack id ends the stream; an expired or acknowledged one does not.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			for _, request := range []*pubsubpb.StreamingPullRequest{
				{AckIds: []string{"nonsense"}},
				{ModifyDeadlineAckIds: []string{"nonsense"}, ModifyDeadlineSeconds: []int32{10}},
			} {
				stream := openRaw(t, e, e.Subscription(t, topic))
				stream.send(t, request)
				WantCode(t, stream.end(t), codes.InvalidArgument)
			}

			sub := e.Subscription(t, topic)
			stream := openRaw(t, e, sub, streamLease(10))
			e.Publish(t, topic, "", "a")
			expired := AckIDs(stream.wants(t, "a"))
			e.Advance(15 * time.Second)
			acked := AckIDs(stream.wants(t, "a"))
			stream.send(t, &pubsubpb.StreamingPullRequest{AckIds: acked})
			for _, ids := range [][]string{expired, acked} {
				stream.send(t, &pubsubpb.StreamingPullRequest{AckIds: ids})
				stream.send(t, &pubsubpb.StreamingPullRequest{ModifyDeadlineAckIds: ids, ModifyDeadlineSeconds: []int32{60}})
				stream.send(t, &pubsubpb.StreamingPullRequest{ModifyDeadlineAckIds: ids, ModifyDeadlineSeconds: []int32{0}})
			}
			stream.settle(t)
			e.Publish(t, topic, "", "b")
			stream.wants(t, "b")
		},
	},
	{
		ID: "G6", Sentence: "Ack ids work on any stream and in the unary calls, whichever delivered them.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			for _, from := range []string{"stream", "pull"} {
				for _, over := range []string{"same stream", "other stream", "unary"} {
					if from == "pull" && over == "same stream" {
						continue
					}
					t.Run(from+" to "+over, func(t *testing.T) { acrossStreams(t, e, from, over) })
				}
			}
		},
	},
	{
		ID: "G7", Sentence: "A delivery on a stream is leased for the deadline of the stream, not of the subscription.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			tests := []struct {
				name                 string
				sub, first, later    int32
				leasedAt, notAnyMore time.Duration
			}{
				{"longer", 10, 60, 0, 50 * time.Second, 15 * time.Second},
				{"shorter", 60, 20, 0, 15 * time.Second, 10 * time.Second},
				{"changed", 10, 20, 60, 50 * time.Second, 15 * time.Second},
			}
			for _, test := range tests {
				t.Run(test.name, func(t *testing.T) {
					topic, sub := e.Subscribed(t, leasedFor(test.sub))
					stream := openRaw(t, e, sub, streamLease(test.first))
					if test.later != 0 {
						stream.send(t, &pubsubpb.StreamingPullRequest{StreamAckDeadlineSeconds: test.later})
					}
					stream.settle(t)
					e.Publish(t, topic, "", "a")
					stream.wants(t, "a")
					e.Advance(test.leasedAt)
					stream.quiet(t)
					e.Advance(test.notAnyMore)
					stream.wants(t, "a")
				})
			}
		},
	},
	{
		ID: "G8", Sentence: "A stream never has more than max_outstanding_messages outstanding; 0 and less is no limit.",
		Run: func(t *testing.T, e *Env) {
			t.Run("limit", func(t *testing.T) {
				topic, sub := e.Subscribed(t)
				e.Publish(t, topic, "", serial(1, 5)...)
				stream := openRaw(t, e, sub, outstanding(3))
				got := stream.take(t, 3)
				stream.quiet(t)
				e.publishEach(t, topic, serial(6, 9)...)
				stream.quiet(t)
				e.Ack(t, sub, got[:2]...)
				stream.take(t, 2)
				stream.quiet(t)
			})
			for _, none := range []int64{0, -1} {
				t.Run(fmt.Sprint("no limit ", none), func(t *testing.T) {
					topic, sub := e.Subscribed(t)
					texts := serial(1, 3000)
					for part := range 3 {
						e.Publish(t, topic, "", texts[part*1000:part*1000+1000]...)
					}
					openRaw(t, e, sub, outstanding(none)).take(t, 3000)
				})
			}
		},
	},
	{
		ID: "G9", Sentence: "With max_outstanding_bytes outstanding nothing more is sent; one message may go over.",
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t)
			var texts []string
			for _, text := range serial(1, 5) {
				texts = append(texts, text+strings.Repeat("x", 600))
			}
			e.Publish(t, topic, "", texts...)
			stream := openRaw(t, e, sub, outstandingBytes(1000))
			got := stream.take(t, 2)
			stream.quiet(t)
			e.Ack(t, sub, got[0])
			stream.take(t, 1)
			stream.quiet(t)

			t.Run("larger than the limit", func(t *testing.T) {
				topic, sub := e.Subscribed(t)
				e.Publish(t, topic, "", strings.Repeat("x", 5000), strings.Repeat("y", 5000))
				stream := openRaw(t, e, sub, outstandingBytes(1000))
				got := stream.take(t, 1)
				stream.quiet(t)
				e.Ack(t, sub, got...)
				stream.take(t, 1)
			})
		},
	},
	{
		ID: "G10", Sentence: "Ack, nack and expiry give credit back at once, over whatever call; an extension does not.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			tests := []struct {
				name string
				do   func(t *testing.T, sub string, stream *rawStream, got []*pubsubpb.ReceivedMessage)
				want int // how many more messages are expected
			}{
				{"ack", func(t *testing.T, sub string, _ *rawStream, got []*pubsubpb.ReceivedMessage) {
					e.Ack(t, sub, got...)
				}, 1},
				{"nack", func(t *testing.T, sub string, _ *rawStream, got []*pubsubpb.ReceivedMessage) {
					e.Nack(t, sub, got...)
				}, 1},
				{"extension", func(t *testing.T, sub string, _ *rawStream, got []*pubsubpb.ReceivedMessage) {
					e.Extend(t, sub, 30, got...)
				}, 0},
				{"ack on the stream", func(t *testing.T, _ string, s *rawStream, got []*pubsubpb.ReceivedMessage) {
					s.send(t, &pubsubpb.StreamingPullRequest{AckIds: AckIDs(got)})
				}, 1},
				{"nack on the stream", func(t *testing.T, _ string, s *rawStream, got []*pubsubpb.ReceivedMessage) {
					s.modify(t, 0, got...)
				}, 1},
				{"extension on the stream", func(t *testing.T, _ string, s *rawStream, got []*pubsubpb.ReceivedMessage) {
					s.modify(t, 30, got...)
				}, 0},
				{"expiry", func(*testing.T, string, *rawStream, []*pubsubpb.ReceivedMessage) {
					e.Advance(65 * time.Second)
				}, 1},
			}
			for _, test := range tests {
				for _, limit := range []func(*pubsubpb.StreamingPullRequest){outstanding(1), outstandingBytes(1)} {
					t.Run(test.name, func(t *testing.T) {
						topic, sub := e.Subscribed(t)
						e.Publish(t, topic, "", serial(1, 4)...)
						stream := openRaw(t, e, sub, limit)
						got := stream.take(t, 1)
						test.do(t, sub, stream, got)
						start := time.Now()
						stream.take(t, test.want)
						if took := time.Since(start); took > time.Second {
							t.Errorf("the next message took %v, want it at once", took)
						}
						stream.quiet(t)
					})
				}
			}
		},
	},
	{
		ID: "G11", Sentence: "A message is on one stream at a time; a stream without credit does not hold back others.",
		Run: func(t *testing.T, e *Env) {
			t.Run("one at a time", func(t *testing.T) {
				topic, sub := e.Subscribed(t)
				a, b, c := openRaw(t, e, sub), openRaw(t, e, sub), openRaw(t, e, sub)
				a.settle(t)
				b.settle(t)
				c.settle(t)
				want := serial(1, 60)
				e.Publish(t, topic, "", want[:30]...)
				e.publishEach(t, topic, want[30:]...)
				got := slices.Concat(takeFrom(t, len(want), a, b, c)...)
				wantEqual(t, want, slices.Sorted(slices.Values(Texts(got))), "on all streams, sorted")
				a.quiet(t)
				b.quiet(t)
				c.quiet(t)
			})
			t.Run("without credit", func(t *testing.T) {
				topic, sub := e.Subscribed(t)
				full := openRaw(t, e, sub, outstanding(1))
				e.Publish(t, topic, "", "0000")
				full.wants(t, "0000")
				other := openRaw(t, e, sub)
				other.settle(t)
				e.publishEach(t, topic, serial(1, 5)...)
				other.wantsAny(t, serial(1, 5)...)
				full.quiet(t)
			})
		},
	},
}
