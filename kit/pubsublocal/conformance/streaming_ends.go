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

// streamingPullEnds are the cases of section G about responses, and how a stream ends.
var streamingPullEnds = []Case{
	{
		ID: "G12", Sentence: "Every response, even an empty one, says whether ordering is on.",
		Run: func(t *testing.T, e *Env) {
			for _, ordered := range []bool{false, true} {
				t.Run(fmt.Sprintf("ordered %v", ordered), func(t *testing.T) { tellsProperties(t, e, ordered) })
			}
			t.Run("client", func(t *testing.T) {
				topic, sub := e.Subscribed(t, Ordered)
				want := serial(1, 50)
				e.Publish(t, topic, "key", want...)
				ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
				defer cancel()
				var running atomic.Int32
				var got []string // written by one callback at a time, which is what the case tests
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
		ID: "G13", Sentence: "With protocol version 1 a later request without ids gets an empty response within a second.",
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t)
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
				stream.silent(t) // exactly one response
			}
			ping()
			ping()
			e.Publish(t, topic, "", "a", "b")
			stream.take(t, 1)
			ping() // a ping needs no credit
		},
	},
	{
		ID: "G14", Sentence: "With protocol version 0, pings get no response.",
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
					time.Sleep(silence) // the messages are sent, but not read
					must(t, stream.CloseSend())
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
			topic, sub := e.Subscribed(t)
			stream := openRaw(t, e, sub)
			stream.settle(t)
			e.Advance(29 * time.Minute)
			e.Publish(t, topic, "", "a")
			e.Ack(t, sub, stream.wants(t, "a")...) // acks do not extend its lifetime
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
				time.Sleep(silence) // time for the client to send its ack
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
					topic, sub := e.Subscribed(t, leasedFor(600), deadTo(e.Topic(t), 5), delayedBy(time.Minute))
					stream := openRaw(t, e, sub, streamLease(600))
					want := serial(1, 5)
					e.Publish(t, topic, "", want...)
					for round := range 6 { // more rounds than the dead-letter policy allows failures
						for _, m := range stream.wantsAny(t, want...) {
							wantEqual(t, int32(1), m.GetDeliveryAttempt(), "delivery_attempt in round %d", round+1)
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
		ID: "G20", Sentence: "After the end of a stream an old id still acknowledges a message that was not redelivered.",
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t)
			stream := openRaw(t, e, sub)
			e.Publish(t, topic, "", "a", "b")
			got := stream.wantsAny(t, "a", "b")
			stream.stop()
			e.Ack(t, sub, got[0])
			other := openRaw(t, e, sub)
			again := other.wants(t, "b")
			other.quiet(t)
			e.Ack(t, sub, got[1]) // it was delivered again, so this has no effect
			e.Nack(t, sub, again...)
			other.wants(t, "b")
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
					topic, sub := e.Subscribed(t)
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
			// With a small window, messages that are not read stay in the server.
			options := append(slices.Clone(e.Options), option.WithGRPCDialOption(grpc.WithStaticStreamWindowSize(1<<16)),
				option.WithGRPCDialOption(grpc.WithStaticConnWindowSize(1<<16)))
			narrow, err := vkit.NewSubscriptionAdminClient(t.Context(), options...)
			must(t, err)
			defer narrow.Close()
			topic, sub := e.Subscribed(t)
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
			got := make(map[string]bool) // on a busy machine a message may come twice

			for range 40 { // the slow stream has credit too, and gets some again
				for read, ok := other.next(silence); ok; read, ok = other.next(silence) {
					if read.err != nil {
						t.Fatal(read.err)
					}
				}
				if messages := other.take(t, len(other.queue)); len(messages) > 0 {
					e.Ack(t, sub, messages...)
					for _, m := range messages {
						got[m.GetMessage().GetMessageId()] = true
					}
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
