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
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

var ordering = []Case{
	{
		ID: "I1", Sentence: "Messages of a key come in publish order, on every subscription, by stream and pull; keys do not wait for one another.",
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			streamed, pulled := e.Subscription(t, topic, Ordered), e.Subscription(t, topic, Ordered)
			keys := []string{"a", "b", "c"}
			want := map[string][]string{}
			for _, text := range serial(1, 20) {
				for _, key := range keys {
					e.Publish(t, topic, key, text)
					want[key] = append(want[key], text)
				}
			}
			got := map[string][]string{}
			stream := openRaw(t, e, streamed, outstanding(7))
			for range 60 {
				m := stream.take(t, 1)[0]
				got[m.GetMessage().GetOrderingKey()] = append(got[m.GetMessage().GetOrderingKey()], string(m.GetMessage().GetData()))
				e.Ack(t, streamed, m)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("stream (-want +got):\n%s", diff)
			}
			got = map[string][]string{}
			for n := 0; n < 60; {
				messages := e.Pull(t, pulled, 7)
				if len(messages) == 0 {
					break
				}
				for _, m := range messages {
					got[m.GetMessage().GetOrderingKey()] = append(got[m.GetMessage().GetOrderingKey()], string(m.GetMessage().GetData()))
				}
				n += len(messages)
				e.Ack(t, pulled, messages...)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("pulls (-want +got):\n%s", diff)
			}

			t.Run("keys do not wait", func(t *testing.T) {
				topic := e.Topic(t)
				stream := openRaw(t, e, e.Subscription(t, topic, Ordered))
				for _, key := range keys {
					e.Publish(t, topic, key, key+"1")
					stream.wants(t, key+"1")
					e.Publish(t, topic, key, key+"2")
					stream.quiet(t)
				}
			})
		},
	},
	{
		ID: "I2", Sentence: "Messages without key are unordered, also on an ordered subscription.",
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			sub := e.Subscription(t, topic, Ordered)
			stream := openRaw(t, e, sub)
			e.Publish(t, topic, "", "1")
			first := stream.wants(t, "1")
			e.Publish(t, topic, "", "2") // does not wait for the first
			stream.wants(t, "2")
			e.Nack(t, sub, first...) // does not bring back the second
			stream.wants(t, "1")
			stream.quiet(t)
		},
	},
	{
		ID: "I3", Sentence: "A key has one run outstanding; the next starts when each message of it is acknowledged or dead-lettered.",
		Run: func(t *testing.T, e *Env) {
			t.Run("acknowledged", func(t *testing.T) {
				topic := e.Topic(t)
				sub := e.Subscription(t, topic, Ordered)
				e.Publish(t, topic, "key", "1", "2", "3")
				stream := openRaw(t, e, sub)
				got := stream.wants(t, "1", "2", "3") // without waiting for acks
				e.Publish(t, topic, "key", "4")
				e.Publish(t, topic, "key", "5")
				for _, m := range got {
					stream.quiet(t)
					pullNothing(t, e, sub)
					e.Ack(t, sub, m)
				}
				stream.wants(t, "4", "5")
			})
			t.Run("redelivered in part", func(t *testing.T) {
				topic := e.Topic(t)
				sub := e.Subscription(t, topic, Ordered)
				e.Publish(t, topic, "key", "1", "2", "3")
				stream := openRaw(t, e, sub)
				got := stream.wants(t, "1", "2", "3")
				e.Publish(t, topic, "key", "4")
				e.Nack(t, sub, got[2])
				again := stream.wants(t, "3")
				stream.quiet(t) // 1 and 2 are outstanding
				e.Ack(t, sub, got[0], got[1], again[0])
				stream.wants(t, "4")
			})
			t.Run("dead-lettered", func(t *testing.T) {
				topic := e.Topic(t)
				sub := e.Subscription(t, topic, Ordered, deadTo(e.Topic(t), 5))
				e.Publish(t, topic, "key", "1", "2", "3")
				stream := openRaw(t, e, sub, outstanding(2))
				got := stream.wants(t, "1", "2")
				e.Ack(t, sub, got[0])
				stream.quiet(t)
				for range 4 {
					e.Nack(t, sub, got[1])
					// The run of a redelivery may be longer.
					got = append(got[:1], stream.wants(t, "2", "3")...)
				}
				e.Nack(t, sub, got[1])
				stream.wants(t, "3")
				stream.quiet(t)
			})
		},
	},
	{
		ID: "I4", Sentence: "A run goes to one stream, or into one answer of Pull.",
		Run: func(t *testing.T, e *Env) {
			t.Run("stream", func(t *testing.T) {
				topic := e.Topic(t)
				sub := e.Subscription(t, topic, Ordered)
				a, b := openRaw(t, e, sub), openRaw(t, e, sub)
				a.settle(t)
				b.settle(t)
				owner := map[string]int{}
				for _, key := range serial(1, 20) {
					e.Publish(t, topic, key, "1", "2", "3")
				}
				for i, messages := range takeFrom(t, 60, a, b) {
					for _, m := range messages {
						key := m.GetMessage().GetOrderingKey()
						if other, ok := owner[key]; ok && other != i {
							t.Errorf("key %s came on both streams", key)
						}
						owner[key] = i
					}
				}
			})
			t.Run("pull", func(t *testing.T) {
				topic := e.Topic(t)
				sub := e.Subscription(t, topic, Ordered)
				e.Publish(t, topic, "key", serial(1, 5)...)
				got := e.Pull(t, sub, 3)
				if diff := cmp.Diff(serial(1, len(got)), Texts(got)); diff != "" || len(got) == 0 {
					t.Fatalf("pulled %q, want the first messages", Texts(got))
				}
				pullNothing(t, e, sub)
				e.Ack(t, sub, got...)
				pullInOrder(t, e, sub, serial(len(got)+1, 5)...)
			})
		},
	},
	{
		ID: "I5", Sentence: "A key with outstanding messages stays with its stream; one without prefers it and may move to one with credit.",
		Run: func(t *testing.T, e *Env) {
			t.Run("stays and prefers", func(t *testing.T) {
				topic := e.Topic(t)
				sub := e.Subscription(t, topic, Ordered)
				keys := serial(1, 20)
				stream := openRaw(t, e, sub)
				for _, key := range keys {
					e.Publish(t, topic, key, key+" 1", key+" 2")
				}
				got := sortByText(stream.take(t, 2*len(keys)))
				other := openRaw(t, e, sub)
				other.settle(t)
				var want []string
				for i, key := range keys {
					e.Publish(t, topic, key, key+" 3")
					e.Ack(t, sub, got[2*i])
					want = append(want, key+" 3")
				}
				stream.quiet(t) // the second ones are outstanding
				other.quiet(t)
				for i := range keys {
					e.Ack(t, sub, got[2*i+1])
				}
				stream.wantsAny(t, want...)
				other.quiet(t)
			})
			t.Run("moves", func(t *testing.T) {
				topic := e.Topic(t)
				sub := e.Subscription(t, topic, Ordered)
				stream := openRaw(t, e, sub, outstanding(1))
				e.Publish(t, topic, "a", "1")
				got := stream.wants(t, "1")
				e.Publish(t, topic, "b", "1")
				e.Publish(t, topic, "a", "2")
				e.Ack(t, sub, got...)
				key := stream.take(t, 1)[0].GetMessage().GetOrderingKey()
				stream.quiet(t)
				// Either key may have taken the credit. The other one has nothing outstanding, and does not wait for the stream.
				if other := openRaw(t, e, sub).take(t, 1)[0].GetMessage().GetOrderingKey(); other == key {
					t.Errorf("both streams got key %s", key)
				}
			})
		},
	},
	{
		ID: "I6", Sentence: "A run takes what is waiting, bounded by the credit of the stream and by 1,000 messages.",
		Run: func(t *testing.T, e *Env) {
			t.Run("credit", func(t *testing.T) {
				topic := e.Topic(t)
				sub := e.Subscription(t, topic, Ordered)
				e.Publish(t, topic, "key", serial(1, 10)...)
				stream := openRaw(t, e, sub, outstanding(4))
				got := stream.wants(t, serial(1, 4)...)
				e.Ack(t, sub, got[:3]...)
				stream.quiet(t) // there is credit, and a run outstanding
				e.Ack(t, sub, got[3])
				e.Ack(t, sub, stream.wants(t, serial(5, 8)...)...)
				stream.wants(t, "0009", "0010")
			})
			t.Run("1,000", func(t *testing.T) {
				topic := e.Topic(t)
				sub := e.Subscription(t, topic, Ordered)
				want := serial(1, 1500)
				e.Publish(t, topic, "key", want[:750]...)
				e.Publish(t, topic, "key", want[750:]...)
				stream := openRaw(t, e, sub)
				got := stream.wants(t, want[:1000]...)
				stream.quiet(t)
				e.Ack(t, sub, got...)
				stream.wants(t, want[1000:]...)
			})
		},
	},
	{
		ID: "I7", Sentence: "A nack makes the message and all later delivered ones of its key deliverable again in order, also acknowledged ones.",
		Run: func(t *testing.T, e *Env) {
			t.Run("stream", func(t *testing.T) {
				topic := e.Topic(t)
				sub := e.Subscription(t, topic, Ordered)
				e.Publish(t, topic, "key", serial(1, 5)...)
				stream := openRaw(t, e, sub)
				got := stream.wants(t, serial(1, 5)...)
				e.Publish(t, topic, "key", "0006")
				e.Ack(t, sub, got[3])
				e.Nack(t, sub, got[1])
				again := stream.wants(t, serial(2, 5)...)
				// 6 is in this run or waits for its end.
				e.Ack(t, sub, append(again, got[0])...)
				stream.wants(t, "0006")
				stream.quiet(t)
			})
			t.Run("pull", func(t *testing.T) {
				topic := e.Topic(t)
				sub := e.Subscription(t, topic, Ordered)
				e.Publish(t, topic, "key", serial(1, 5)...)
				e.Publish(t, topic, "other key", "a")
				got := pullAny(t, e, sub, append(serial(1, 5), "a")...)
				e.Ack(t, sub, got[4])
				e.Nack(t, sub, got[2])
				pullInOrder(t, e, sub, serial(3, 5)...)
			})
			t.Run("all", func(t *testing.T) {
				topic := e.Topic(t)
				sub := e.Subscription(t, topic, Ordered)
				e.Publish(t, topic, "key", serial(1, 3)...)
				got := pullInOrder(t, e, sub, serial(1, 3)...)
				e.Ack(t, sub, got[1:]...)
				e.Nack(t, sub, got[0])
				e.Ack(t, sub, pullInOrder(t, e, sub, serial(1, 3)...)...)
				pullNothing(t, e, sub)
			})
		},
	},
	{
		ID: "I8", Sentence: "The expiry of a lease does what a nack does.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			sub := e.Subscription(t, topic, Ordered)
			e.Publish(t, topic, "key", serial(1, 4)...)
			stream := openRaw(t, e, sub, streamLease(20))
			got := stream.wants(t, serial(1, 4)...)
			e.Extend(t, sub, 600, got[0], got[2])
			e.Ack(t, sub, got[3])
			e.Advance(15 * time.Second)
			stream.quiet(t)
			e.Advance(10 * time.Second)
			stream.wants(t, serial(2, 4)...)
			stream.quiet(t)
		},
	},
	{
		ID: "I9", Sentence: "The leases of the later messages end at that moment, and their ack ids count as expired.",
		Run: func(t *testing.T, e *Env) {
			t.Run("without exactly-once", func(t *testing.T) {
				topic := e.Topic(t)
				sub := e.Subscription(t, topic, Ordered)
				e.Publish(t, topic, "key", serial(1, 4)...)
				stream := openRaw(t, e, sub, outstanding(4))
				old := stream.wants(t, serial(1, 4)...)
				e.Nack(t, sub, old[1])
				again := stream.wants(t, serial(2, 4)...) // there is credit for all of them
				e.Nack(t, sub, old[2])
				stream.quiet(t)
				e.Ack(t, sub, old[2], old[3])
				e.Ack(t, sub, old[0], again[0], again[2])
				e.Publish(t, topic, "key", "0005")
				stream.quiet(t) // 3 is not acknowledged
				e.Ack(t, sub, again[1])
				stream.wants(t, "0005")
			})
			t.Run("exactly-once", func(t *testing.T) {
				topic := e.Topic(t)
				sub := e.Subscription(t, topic, Ordered, ExactlyOnce)
				e.Publish(t, topic, "key", serial(1, 3)...)
				got := pullInOrder(t, e, sub, serial(1, 3)...)
				e.Nack(t, sub, got[0])
				wantFailures(t, acknowledge(t, e, sub, AckIDs(got[1:])...), invalidAckID, got[1:]...)
			})
		},
	},
	{
		ID: "I10", Sentence: "Earlier messages are not delivered again; while one of them is outstanding, the redelivery goes to its stream.",
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			sub := e.Subscription(t, topic, Ordered)
			stream := openRaw(t, e, sub)
			keys := serial(1, 10)
			var want []string
			for _, key := range keys {
				e.Publish(t, topic, key, key+" 1", key+" 2", key+" 3", key+" 4")
				want = append(want, key+" 3", key+" 4")
			}
			got := sortByText(stream.take(t, 4*len(keys)))
			other := openRaw(t, e, sub)
			other.settle(t)
			for i := range keys {
				e.Ack(t, sub, got[4*i])
				e.Nack(t, sub, got[4*i+2])
			}
			stream.wantsAny(t, want...)
			stream.quiet(t)
			other.quiet(t)
		},
	},
	{
		ID: "I11", Sentence: "Without exactly-once an ack out of order is accepted; the message is kept until earlier ones are acknowledged.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			for _, again := range []struct {
				name string
				do   func(t *testing.T, sub string, m *pubsubpb.ReceivedMessage)
			}{
				{"nack", func(t *testing.T, sub string, m *pubsubpb.ReceivedMessage) { e.Nack(t, sub, m) }},
				{"expiry", func(*testing.T, string, *pubsubpb.ReceivedMessage) { e.Advance(15 * time.Second) }},
			} {
				t.Run(again.name, func(t *testing.T) {
					topic := e.Topic(t)
					sub := e.Subscription(t, topic, Ordered)
					e.Publish(t, topic, "key", serial(1, 4)...)
					got := pullInOrder(t, e, sub, serial(1, 4)...)
					for _, i := range []int{3, 1, 2} {
						e.Ack(t, sub, got[i])
					}
					again.do(t, sub, got[0])
					e.Ack(t, sub, pullInOrder(t, e, sub, serial(1, 4)...)...)
					e.Advance(15 * time.Second)
					pullNothing(t, e, sub)
				})
			}
		},
	},
	{
		ID: "I12", Sentence: "What is acknowledged together with all earlier ones of its key is never delivered again.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			sub := e.Subscription(t, topic, Ordered)
			e.Publish(t, topic, "key", serial(1, 4)...)
			stream := openRaw(t, e, sub)
			got := stream.wants(t, serial(1, 4)...)
			e.Ack(t, sub, got[1])
			e.Ack(t, sub, got[0])
			e.Nack(t, sub, got[2])
			stream.wants(t, "0003", "0004")
			e.Advance(65 * time.Second)
			stream.wants(t, "0003", "0004")
			stream.quiet(t)
			stream.cancel()
			stream = openRaw(t, e, sub)
			got = stream.wants(t, "0003", "0004")
			e.Nack(t, sub, got[1])
			got = append(got[:1], stream.wants(t, "0004")...)
			e.Ack(t, sub, got...)
			e.Advance(65 * time.Second)
			stream.quiet(t)
		},
	},
	{
		ID: "I13", Sentence: "A redelivery caused by an earlier message does not raise delivery_attempt, nor dead-letter.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			dead := e.Topic(t)
			letters := e.Subscription(t, dead)
			topic := e.Topic(t)
			sub := e.Subscription(t, topic, Ordered, deadTo(dead, 5))
			e.Publish(t, topic, "key", "1", "2")
			for attempt := range int32(5) {
				got := pullInOrder(t, e, sub, "1", "2")
				if diff := cmp.Diff([]int32{attempt + 1, 1}, attempts(got)); diff != "" {
					t.Errorf("delivery_attempt of both (-want +got):\n%s", diff)
				}
				if attempt%2 == 0 {
					e.Nack(t, sub, got[0])
				} else {
					e.Extend(t, sub, 600, got[1])
					e.Advance(15 * time.Second)
				}
			}
			pullInOrder(t, e, letters, "1")
			got := pullInOrder(t, e, sub, "2")
			if diff := cmp.Diff([]int32{1}, attempts(got)); diff != "" {
				t.Errorf("delivery_attempt of the second one (-want +got):\n%s", diff)
			}
			e.Nack(t, sub, got...)
			if diff := cmp.Diff([]int32{2}, attempts(pullInOrder(t, e, sub, "2"))); diff != "" {
				t.Errorf("delivery_attempt after its own nack (-want +got):\n%s", diff)
			}
		},
	},
	{
		ID: "I14", Sentence: "A retry delay holds back the later messages of the key, of no other key.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			sub := e.Subscription(t, topic, Ordered, delayedBy(20*time.Second))
			e.Publish(t, topic, "key", "1", "2")
			stream := openRaw(t, e, sub, outstanding(2))
			e.Nack(t, sub, stream.wants(t, "1", "2")[0])
			e.Publish(t, topic, "key", "3")
			stream.quiet(t)
			e.Publish(t, topic, "other key", "a")
			others := stream.wants(t, "a")
			e.Publish(t, topic, "", "b") // there is credit for it: what is held back is not outstanding
			others = append(others, stream.wants(t, "b")...)
			e.Ack(t, sub, others...)
			e.Advance(15 * time.Second)
			stream.quiet(t)
			e.Advance(10 * time.Second)
			// 3 is in this run or waits for its end.
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
					dead := e.Topic(t)
					letters := e.Subscription(t, dead, leasedFor(600))
					topic := e.Topic(t)
					sub := e.Subscription(t, topic, Ordered, deadTo(dead, 5))
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
					topic := e.Topic(t)
					sub := e.Subscription(t, topic, Ordered)
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
					if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("other stream (-want +got):\n%s", diff)
					}
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
				topic := e.Topic(t)
				sub := e.Subscription(t, topic, Ordered, short)
				e.Publish(t, topic, "key", "1")
				e.Advance(11 * time.Minute)
				e.Publish(t, topic, "key", "2")
				pullInOrder(t, e, sub, "2")
			})
			t.Run("outstanding", func(t *testing.T) {
				topic := e.Topic(t)
				sub := e.Subscription(t, topic, Ordered, short, leasedFor(600))
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
			snapshot, err := e.Subs.CreateSnapshot(t.Context(), &pubsubpb.CreateSnapshotRequest{Name: e.Name("snapshots"), Subscription: sub})
			if err != nil {
				t.Fatal(err)
			}
			e.Ack(t, sub, got[1], got[2])
			to := func(m *pubsubpb.ReceivedMessage) *timestamppb.Timestamp { return m.GetMessage().GetPublishTime() }
			for _, seek := range []struct {
				request *pubsubpb.SeekRequest
				want    []string
			}{
				{&pubsubpb.SeekRequest{Target: &pubsubpb.SeekRequest_Time{Time: to(got[0])}}, []string{"1", "2", "3", "4"}},
				{&pubsubpb.SeekRequest{Target: &pubsubpb.SeekRequest_Time{Time: to(got[2])}}, []string{"3", "4"}},
				{&pubsubpb.SeekRequest{Target: &pubsubpb.SeekRequest_Snapshot{Snapshot: snapshot.GetName()}}, []string{"2", "3", "4"}},
			} {
				seek.request.Subscription = sub
				if _, err := e.Subs.Seek(t.Context(), seek.request); err != nil {
					t.Fatal(err)
				}
				got := pullInOrder(t, e, sub, seek.want...)
				pullNothing(t, e, sub)
				e.Ack(t, sub, got[:len(got)-1]...) // the next seek finds one outstanding
			}
		},
	},
	{
		ID: "I19", Sentence: "Order holds over all publishers.",
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			sub := e.Subscription(t, topic, Ordered)
			other, err := pubsub.NewClient(t.Context(), e.Project, e.Options...)
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			publishers := []*pubsub.Publisher{e.Client.Publisher(topic), other.Publisher(topic), other.Publisher(topic)}
			for _, p := range publishers {
				p.EnableMessageOrdering = true
				defer p.Stop()
			}
			want := serial(1, 15)
			for i, text := range want {
				message := &pubsub.Message{Data: []byte(text), OrderingKey: "key"}
				if _, err := publishers[i%len(publishers)].Publish(t.Context(), message).Get(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			openRaw(t, e, sub).wants(t, want...)
		},
	},
	{
		ID: "I20", Sentence: "A failed Publish leaves no mark on its key.",
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			sub := e.Subscription(t, topic, Ordered)
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
			topic := e.Topic(t)
			sub := e.Subscription(t, topic, Ordered)
			stream := openRaw(t, e, sub)
			stream.settle(t)
			large := strings.Repeat("x", 9_000_000)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			for range 3 {
				if _, err := e.Topics.Publish(ctx, &pubsubpb.PublishRequest{
					Topic: topic, Messages: []*pubsubpb.PubsubMessage{{Data: []byte(large), OrderingKey: "key"}},
				}); err != nil {
					t.Fatalf("Publish: %v", err)
				}
				e.Ack(t, sub, stream.take(t, 1)...)
			}
		},
	},
}

// attempts answers the delivery_attempt of messages.
func attempts(messages []*pubsubpb.ReceivedMessage) (numbers []int32) {
	for _, m := range messages {
		numbers = append(numbers, m.GetDeliveryAttempt())
	}
	return slices.Clip(numbers)
}
