package conformance

import (
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
)

// ordering are the cases of section I about runs and redeliveries.
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
			wantEqual(t, want, got, "stream")
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
			wantEqual(t, want, got, "pulls")

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
			topic, sub := e.Subscribed(t, Ordered)
			stream := openRaw(t, e, sub)
			e.Publish(t, topic, "", "1")
			first := stream.wants(t, "1")
			e.Publish(t, topic, "", "2") // not delayed by the first one
			stream.wants(t, "2")
			e.Nack(t, sub, first...) // does not redeliver the second one
			stream.wants(t, "1")
			stream.quiet(t)
		},
	},
	{
		ID: "I3", Sentence: "A key has one run outstanding; the next starts when each message of it is acknowledged or dead-lettered.",
		Run: func(t *testing.T, e *Env) {
			t.Run("acknowledged", func(t *testing.T) {
				topic, sub := e.Subscribed(t, Ordered)
				e.Publish(t, topic, "key", "1", "2", "3")
				stream := openRaw(t, e, sub)
				got := stream.wants(t, "1", "2", "3") // before the acks of earlier ones
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
				topic, sub := e.Subscribed(t, Ordered)
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
				topic, sub := e.Subscribed(t, Ordered, deadTo(e.Topic(t), 5))
				e.Publish(t, topic, "key", "1", "2", "3")
				stream := openRaw(t, e, sub, outstanding(2))
				got := stream.wants(t, "1", "2")
				e.Ack(t, sub, got[0])
				stream.quiet(t)
				for range 4 {
					e.Nack(t, sub, got[1])
					// A redelivery may be longer than the first run.
					got = append(got[:1], stream.wants(t, "2", "3")...)
				}
				e.Nack(t, sub, got[1])
				stream.wants(t, "3")
				stream.quiet(t)
			})
		},
	},
	{
		ID: "I4", Sentence: "A run goes to one stream, or into one response of Pull.",
		Run: func(t *testing.T, e *Env) {
			t.Run("stream", func(t *testing.T) {
				topic, sub := e.Subscribed(t, Ordered)
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
				topic, sub := e.Subscribed(t, Ordered)
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
				topic, sub := e.Subscribed(t, Ordered)
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
				stream.quiet(t) // the second messages of the keys are outstanding
				other.quiet(t)
				for i := range keys {
					e.Ack(t, sub, got[2*i+1])
				}
				stream.wantsAny(t, want...)
				other.quiet(t)
			})
			t.Run("moves", func(t *testing.T) {
				topic, sub := e.Subscribed(t, Ordered)
				stream := openRaw(t, e, sub, outstanding(1))
				e.Publish(t, topic, "a", "1")
				got := stream.wants(t, "1")
				e.Publish(t, topic, "b", "1")
				e.Publish(t, topic, "a", "2")
				e.Ack(t, sub, got...)
				key := stream.take(t, 1)[0].GetMessage().GetOrderingKey()
				stream.quiet(t)
				// One of the keys has used the credit. The other one has nothing outstanding, so
				// any stream can get it.
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
				topic, sub := e.Subscribed(t, Ordered)
				e.Publish(t, topic, "key", serial(1, 10)...)
				stream := openRaw(t, e, sub, outstanding(4))
				got := stream.wants(t, serial(1, 4)...)
				e.Ack(t, sub, got[:3]...)
				stream.quiet(t) // there is credit, but the run is outstanding
				e.Ack(t, sub, got[3])
				e.Ack(t, sub, stream.wants(t, serial(5, 8)...)...)
				stream.wants(t, "0009", "0010")
			})
			t.Run("1,000", func(t *testing.T) {
				topic, sub := e.Subscribed(t, Ordered)
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
				topic, sub := e.Subscribed(t, Ordered)
				e.Publish(t, topic, "key", serial(1, 5)...)
				stream := openRaw(t, e, sub)
				got := stream.wants(t, serial(1, 5)...)
				e.Publish(t, topic, "key", "0006")
				e.Ack(t, sub, got[3])
				e.Nack(t, sub, got[1])
				again := stream.wants(t, serial(2, 5)...)
				// Message 6 is in this run or in the next one.
				e.Ack(t, sub, append(again, got[0])...)
				stream.wants(t, "0006")
				stream.quiet(t)
			})
			t.Run("pull", func(t *testing.T) {
				topic, sub := e.Subscribed(t, Ordered)
				e.Publish(t, topic, "key", serial(1, 5)...)
				e.Publish(t, topic, "other key", "a")
				got := pullAny(t, e, sub, append(serial(1, 5), "a")...)
				e.Ack(t, sub, got[4])
				e.Nack(t, sub, got[2])
				pullInOrder(t, e, sub, serial(3, 5)...)
			})
			t.Run("all", func(t *testing.T) {
				topic, sub := e.Subscribed(t, Ordered)
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
			topic, sub := e.Subscribed(t, Ordered)
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
			topic, sub := e.Subscribed(t, Ordered)
			e.Publish(t, topic, "key", serial(1, 4)...)
			stream := openRaw(t, e, sub, outstanding(4))
			old := stream.wants(t, serial(1, 4)...)
			e.Nack(t, sub, old[1])
			again := stream.wants(t, serial(2, 4)...) // the stream has credit for all of them
			e.Nack(t, sub, old[2])
			stream.quiet(t)
			e.Ack(t, sub, old[2], old[3])
			e.Ack(t, sub, old[0], again[0], again[2])
			e.Publish(t, topic, "key", "0005")
			stream.quiet(t) // 3 is not acknowledged
			e.Ack(t, sub, again[1])
			stream.wants(t, "0005")
		},
	},
	{
		ID: "I10", Sentence: "Earlier messages are not delivered again; while one of them is outstanding, the redelivery goes to its stream.",
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t, Ordered)
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
					topic, sub := e.Subscribed(t, Ordered)
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
			topic, sub := e.Subscribed(t, Ordered)
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
}
