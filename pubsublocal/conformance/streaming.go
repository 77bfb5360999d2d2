package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

var streamingPull = []Case{
	{
		ID: "G1", Sentence: "The first request names a subscription that exists, is attached and has no push config.",
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			detached := e.Subscription(t, topic)
			if _, err := e.Topics.DetachSubscription(t.Context(), &pubsubpb.DetachSubscriptionRequest{Subscription: detached}); err != nil {
				t.Fatal(err)
			}
			tests := []struct {
				name, sub string
				want      codes.Code
			}{
				{"none", "", codes.InvalidArgument},
				{"malformed", "x", codes.InvalidArgument},
				{"missing", e.Name("subscriptions"), codes.NotFound},
				{"detached", detached, codes.FailedPrecondition},
				{"push", e.Subscription(t, topic, pushed), codes.FailedPrecondition},
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
			topic := e.Topic(t)
			sub := e.Subscription(t, topic)
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
					if Texts(got)[0] == "a" { // after 0
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
					topic := e.Topic(t)
					sub := e.Subscription(t, topic, leasedFor(test.sub))
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
				topic := e.Topic(t)
				sub := e.Subscription(t, topic)
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
					topic := e.Topic(t)
					sub := e.Subscription(t, topic)
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
			topic := e.Topic(t)
			sub := e.Subscription(t, topic)
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
				topic := e.Topic(t)
				sub := e.Subscription(t, topic)
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
				want int // messages more
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
						topic := e.Topic(t)
						sub := e.Subscription(t, topic)
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
				topic := e.Topic(t)
				sub := e.Subscription(t, topic)
				a, b, c := openRaw(t, e, sub), openRaw(t, e, sub), openRaw(t, e, sub)
				a.settle(t)
				b.settle(t)
				c.settle(t)
				want := serial(1, 60)
				e.Publish(t, topic, "", want[:30]...)
				e.publishEach(t, topic, want[30:]...)
				got := slices.Concat(takeFrom(t, len(want), a, b, c)...)
				if diff := cmp.Diff(want, slices.Sorted(slices.Values(Texts(got)))); diff != "" {
					t.Errorf("on all streams, sorted (-want +got):\n%s", diff)
				}
				a.quiet(t)
				b.quiet(t)
				c.quiet(t)
			})
			t.Run("without credit", func(t *testing.T) {
				topic := e.Topic(t)
				sub := e.Subscription(t, topic)
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
	{
		ID: "G12", Sentence: "Every response, also an empty one, tells whether exactly-once and ordering are on now.",
		Run: func(t *testing.T, e *Env) {
			for _, ordered := range []bool{false, true} {
				for _, once := range []bool{false, true} {
					t.Run(fmt.Sprintf("ordered %v, exactly-once %v", ordered, once), func(t *testing.T) { tellsProperties(t, e, ordered, once) })
				}
			}
			t.Run("client", func(t *testing.T) {
				topic := e.Topic(t)
				sub := e.Subscription(t, topic, Ordered)
				want := serial(1, 50)
				e.Publish(t, topic, "key", want...)
				ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
				defer cancel()
				var running atomic.Int32
				var got []string // of one callback at a time, which is what the case proves
				err := e.Client.Subscriber(sub).Receive(ctx, func(_ context.Context, m *pubsub.Message) {
					if running.Add(1) > 1 {
						t.Error("two callbacks of a key at once")
						cancel()
						return
					}
					got = append(got, string(m.Data))
					time.Sleep(time.Millisecond)
					running.Add(-1)
					m.Ack()
					if len(got) == len(want) {
						cancel()
					}
				})
				if err != nil {
					t.Errorf("Receive: %v", err)
				}
				if diff := cmp.Diff(want, got); diff != "" && !t.Failed() {
					t.Errorf("callbacks (-want +got):\n%s", diff)
				}
			})
		},
	},
	{
		ID: "G13", Sentence: "With protocol version 1 a later request without ids is answered with an empty response within a second.",
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			sub := e.Subscription(t, topic)
			stream := openRaw(t, e, sub, outstanding(1))
			ping := func() {
				t.Helper()
				stream.send(t, &pubsubpb.StreamingPullRequest{})
				got, ok := stream.next(time.Second)
				if !ok || got.err != nil {
					t.Fatalf("answered %v, error %v; want an answer within a second", ok, got.err)
				}
				if n := len(got.response.GetReceivedMessages()); n > 0 {
					t.Errorf("got %d messages, want none", n)
				}
				stream.silent(t) // one answer, not more
			}
			ping()
			ping()
			e.Publish(t, topic, "", "a", "b")
			stream.take(t, 1)
			ping() // also without credit
		},
	},
	{
		ID: "G14", Sentence: "With protocol version 0 pings are not answered.",
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			stream := openRaw(t, e, e.Subscription(t, topic), func(r *pubsubpb.StreamingPullRequest) { r.ProtocolVersion = 0 })
			for range 3 {
				stream.send(t, &pubsubpb.StreamingPullRequest{})
			}
			stream.silent(t)
			e.Publish(t, topic, "", "a")
			stream.wants(t, "a")
			if n := len(stream.responses); n != 1 {
				t.Errorf("got %d responses, want 1", n)
			}
		},
	},
	{
		ID: "G15", Sentence: "When the client half-closes, the server sends what is on its way and ends the stream with OK within a second.",
		Run: func(t *testing.T, e *Env) {
			for _, texts := range [][]string{nil, serial(1, 3)} {
				t.Run(fmt.Sprint(len(texts), " messages"), func(t *testing.T) {
					topic := e.Topic(t)
					stream := openRaw(t, e, e.Subscription(t, topic))
					stream.settle(t)
					e.publishEach(t, topic, texts...)
					time.Sleep(silence) // they are on their way, and nobody reads
					if err := stream.CloseSend(); err != nil {
						t.Fatal(err)
					}
					start := time.Now()
					if err := stream.end(t); !errors.Is(err, io.EOF) {
						t.Errorf("ended with %v, want OK", err)
					}
					if took := time.Since(start); took > time.Second {
						t.Errorf("ended after %v, want a second at most", took)
					}
					stream.wantsAny(t, texts...)
				})
			}
		},
	},
	{
		ID: "G16", Sentence: "A stream ends by itself after 30 minutes with UNAVAILABLE.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			sub := e.Subscription(t, topic)
			stream := openRaw(t, e, sub)
			stream.settle(t)
			e.Advance(29 * time.Minute)
			e.Publish(t, topic, "", "a")
			e.Ack(t, sub, stream.wants(t, "a")...) // use does not make it live longer
			e.Advance(2 * time.Minute)
			WantCode(t, stream.end(t), codes.Unavailable,
				"The StreamingPull stream closed for an expected reason and should be recreated")
		},
	},
	{
		ID: "G17", Sentence: "The end of a stream does not make the Go client give up.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			raw := openRaw(t, e, e.Subscription(t, topic))
			raw.settle(t)
			sub := e.Subscription(t, topic)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			got, done := make(chan string, 10), make(chan error, 1)
			go func() {
				done <- e.Client.Subscriber(sub).Receive(ctx, func(_ context.Context, m *pubsub.Message) {
					m.Ack()
					got <- string(m.Data)
				})
			}()
			for _, text := range []string{"a", "b", "c"} {
				e.Publish(t, topic, "", text)
				select {
				case err := <-done:
					t.Fatalf("Receive ended with %v", err)
				case text2 := <-got:
					if text2 != text {
						t.Errorf("got %q, want %q", text2, text)
					}
				case <-time.After(2 * patience):
					t.Fatalf("%q did not come", text)
				}
				time.Sleep(silence) // the client sends its ack
				e.Advance(31 * time.Minute)
			}
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Receive: %v", err)
			}
			if err := raw.end(t); err == nil || strings.Contains(err.Error(), "Server shutdownNow invoked") {
				t.Errorf("the stream ended with %v, which the Go client does not take", err)
			}
		},
	},
	{
		ID: "G18", Sentence: "When a stream ends, what it had outstanding is deliverable to others at once; that is no delivery failure.",
		Run: func(t *testing.T, e *Env) {
			for _, end := range endings {
				t.Run(end.name, func(t *testing.T) {
					topic := e.Topic(t)
					sub := e.Subscription(t, topic, leasedFor(600), deadTo(e.Topic(t), 5), delayedBy(time.Minute))
					stream := openRaw(t, e, sub, streamLease(600))
					want := serial(1, 5)
					e.Publish(t, topic, "", want...)
					for round := range 6 { // more often than a message may fail
						for _, m := range stream.wantsAny(t, want...) {
							if got := m.GetDeliveryAttempt(); got != 1 {
								t.Fatalf("round %d: delivery_attempt is %d, want 1", round+1, got)
							}
						}
						next := openRaw(t, e, sub, streamLease(600))
						next.quiet(t)
						end.do(t, stream)
						stream = next
					}
				})
			}
		},
	},
	{
		ID: "G19", Sentence: "On an exactly-once subscription the leases outlive the stream.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			sub := e.Subscription(t, topic, ExactlyOnce)
			stream := openRaw(t, e, sub)
			e.Publish(t, topic, "", "a", "b")
			got := stream.wantsAny(t, "a", "b")
			stream.stop()
			other := openRaw(t, e, sub)
			other.quiet(t)
			e.Ack(t, sub, got[0]) // its id is still good
			e.Advance(50 * time.Second)
			other.quiet(t)
			e.Advance(15 * time.Second)
			other.wants(t, "b")
			other.quiet(t)
		},
	},
	{
		ID: "G20", Sentence: "After the end of a stream an old id still acknowledges a message that was not redelivered.",
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			sub := e.Subscription(t, topic)
			stream := openRaw(t, e, sub)
			e.Publish(t, topic, "", "a", "b")
			got := stream.wantsAny(t, "a", "b")
			stream.stop()
			e.Ack(t, sub, got[0])
			other := openRaw(t, e, sub)
			again := other.wants(t, "b")
			other.quiet(t)
			e.Ack(t, sub, got[1]) // it was redelivered: no effect
			e.Nack(t, sub, again...)
			other.wants(t, "b")
		},
	},
	{
		ID: "G21", Sentence: "A stream with the client id of one that just ended is preferred for what the old one held.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			// Exactly-once, so that nobody else gets it while there is no such stream.
			t.Run("messages", func(t *testing.T) {
				topic := e.Topic(t)
				want := serial(1, 20)
				prefersReopened(t, e, e.Subscription(t, topic, ExactlyOnce), want, func() { e.Publish(t, topic, "", want...) })
			})
			t.Run("keys", func(t *testing.T) {
				topic := e.Topic(t)
				want := serial(1, 20)
				prefersReopened(t, e, e.Subscription(t, topic, ExactlyOnce, Ordered), want, func() {
					for _, text := range want {
						e.Publish(t, topic, text, text)
					}
				})
			})
		},
	},
	{
		ID: "G22", Sentence: "A response holds up to 1,000 messages and about 1 MB; a bigger message is alone.",
		Run: func(t *testing.T, e *Env) {
			big := func(megabytes int) string { return strings.Repeat("x", megabytes<<20) }
			var large []string
			for _, text := range serial(1, 30) {
				large = append(large, text+strings.Repeat("x", 200_000))
			}
			tests := []struct {
				name  string
				texts [][]string // of each request
			}{
				{"many", [][]string{serial(1, 1000), serial(1001, 2000), serial(2001, 2500)}},
				{"large", [][]string{large}},
				{"larger than a response", [][]string{{"0001", "0002", big(3), "0003", big(5), "0004"}}},
			}
			for _, test := range tests {
				t.Run(test.name, func(t *testing.T) {
					topic := e.Topic(t)
					sub := e.Subscription(t, topic)
					for _, texts := range test.texts {
						e.Publish(t, topic, "", texts...)
					}
					stream := openRaw(t, e, sub, outstandingBytes(0), outstanding(0))
					stream.take(t, len(slices.Concat(test.texts...)))
					for _, response := range stream.responses {
						n, size := len(response.GetReceivedMessages()), proto.Size(response)
						if n > 1000 || n > 1 && size > 1_500_000 {
							t.Errorf("a response has %d messages and %d bytes, want 1,000 and about 1 MB at most, or one message", n, size)
						}
					}
				})
			}
		},
	},
	{
		ID: "G23", Sentence: "What a slow client does not read stays leased; expired, it goes elsewhere, and only there.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			// A small window, so that what is not read stays in the server.
			options := append(slices.Clone(e.Options), option.WithGRPCDialOption(grpc.WithStaticStreamWindowSize(1<<16)),
				option.WithGRPCDialOption(grpc.WithStaticConnWindowSize(1<<16)))
			narrow, err := vkit.NewSubscriptionAdminClient(t.Context(), options...)
			if err != nil {
				t.Fatal(err)
			}
			defer narrow.Close()
			topic := e.Topic(t)
			sub := e.Subscription(t, topic)
			slow := openRawWith(t, narrow, sub)
			slow.settle(t)
			var want []string
			for _, text := range serial(1, 40) {
				want = append(want, text+strings.Repeat("x", 100_000))
			}
			e.Publish(t, topic, "", want...)
			other := openRaw(t, e, sub)
			other.quiet(t)
			e.Advance(50 * time.Second)
			other.quiet(t)

			e.Advance(15 * time.Second)
			var got []*pubsubpb.ReceivedMessage
			for range 40 { // both have credit, so that some go to the slow one again
				for read, ok := other.next(silence); ok; read, ok = other.next(silence) {
					if read.err != nil {
						t.Fatal(read.err)
					}
				}
				if messages := other.take(t, len(other.queue)); len(messages) > 0 {
					e.Ack(t, sub, messages...)
					got = append(got, messages...)
				}
				if len(got) >= len(want) {
					break
				}
				e.Advance(65 * time.Second)
			}
			if len(got) != len(want) {
				t.Fatalf("%d messages went elsewhere, want %d", len(got), len(want))
			}
			n := 0
			for read, ok := slow.next(silence); ok && read.err == nil; read, ok = slow.next(silence) {
				n += len(read.response.GetReceivedMessages())
			}
			if n >= len(want) {
				t.Errorf("the slow client read %d messages after all, want only what was on the wire", n)
			}
		},
	},
}
