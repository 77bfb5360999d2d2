// Package broker has the list of what a broker must do, whichever it is: a sentence and its test for each promise of
// outbox.Broker and consumer.Source. A broker that passes needs no change of the publisher or of the receivers.
package broker_test

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/lab/internal/child"
	"example.com/videocatalog/lab/kafka"
)

const soon = 200 * time.Millisecond

var publishTimeout = outbox.Config{}.WithDefaults().PublishTimeout

// sentences are the list. One that freezes the broker, or moves its clock, is tested alone.
var sentences = []struct {
	says  string
	alone bool
	test  func(*fixture)
}{
	{"messages of a key arrive in the order of Publish", false, func(f *fixture) {
		f.publish(series(2500, "a", "b")...)
		f.equal("messages", map[string][]string{"a": series(2500, "a"), "b": series(2500, "b")}, f.read("a2500", "b2500"))
	}},
	{"Publish is called at the same time for different keys", false, func(f *fixture) {
		var keys sync.WaitGroup
		for id := range strings.FieldsSeq("a b c d e f g h") {
			keys.Go(func() {
				for _, name := range series(20, id) {
					f.publish(name)
				}
			})
		}
		keys.Wait()
		for id, got := range f.read("a20", "b20", "c20", "d20", "e20", "f20", "g20", "h20") {
			f.equal("messages of "+id, series(20, id), got)
		}
	}},
	{"key, attributes, payload and the time of publishing arrive as they are", false, func(f *fixture) {
		all, start := messages("a1"), time.Now()
		m := &all[0]
		m.AggregateID, m.Type, m.Traceparent, m.Payload = "ключ / 1", "Überschrift=1;", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", nil
		for b := range 256 {
			m.Payload = append(m.Payload, byte(b))
		}
		want := consumer.Message{Key: m.AggregateID, Attributes: m.Attributes(), Data: m.Payload}
		f.settle(all)
		f.each(func(_ string, got consumer.Message) (ack, done bool) {
			if got.ID == "" || got.PublishTime.Before(start.Add(-time.Hour)) || got.PublishTime.After(start.Add(time.Hour)) {
				f.Errorf("id %q, published at %s, want an id and %s", got.ID, got.PublishTime, start)
			}
			want.ID, want.PublishTime = got.ID, got.PublishTime
			f.equal("message", want, got)
			return true, true
		})
	}},
	{"a client of others reads the same key, attributes and payload", false, func(f *fixture) {
		if f.other == nil {
			f.Skip("there is no other client: for Kafka, apt-get install kcat")
		}
		all, attributes := messages("a1"), ""
		f.settle(all)
		for _, name := range slices.Sorted(maps.Keys(all[0].Attributes())) {
			attributes += "," + name + "=" + all[0].Attributes()[name]
		}
		got, err := f.other(f.within(time.Minute), f.id)
		f.must(err)
		f.equal("message", "a "+attributes[1:]+" a1", got)
	}},
	{"an empty payload arrives", false, func(f *fixture) {
		all := messages("a1")
		all[0].Payload = nil
		f.settle(all)
		f.equal("messages", map[string][]string{"a": {""}}, f.read(""))
	}},
	{"the largest event that may be committed arrives, and a larger one is refused", false, func(f *fixture) {
		all, bytes := messages("a1", "b1"), make([]byte, envelope.MaxMessageBytes+1)
		most := sort.Search(len(bytes), func(n int) bool {
			all[0].Payload = bytes[:n]
			return all[0].CheckLimits() != nil
		}) - 1
		all[0].Payload, all[1].Payload = bytes[:most], bytes
		f.equal("refused", map[string]bool{"b": true}, f.settle(all))
		f.equal("messages", map[string][]string{"a": {string(bytes[:most])}}, f.read(string(bytes[:most])))
	}},
	{"a refusal of content harms only its key, whose earlier messages arrive, and none behind it", false, func(f *fixture) {
		all := messages("a1", "a2", "a3", "b1", "b2", "c1", "d1", "e1", "e2")
		f.id += "-small"
		f.must(f.create(f.Context(), f.id, 100_000))
		f.client = f.dial(f.id)
		f.refuse(&all[1])
		f.equal("refused", map[string]bool{"a": true}, f.settle(all))
		f.publish("a4") // an operator has skipped the others
		got := f.read("a4", "b2", "c1", "d1", "e2")
		f.equal("messages of a", []string{"a1", "a4"}, got["a"])
		f.equal("messages of b", series(2, "b"), got["b"])
	}},
	{"a topic that does not exist is an error, and no refusal", false, func(f *fixture) {
		f.unknown(f.dial(f.id + "-missing").topic.Publish(messages("a1")[0]).Wait(f.within(publishTimeout)))
	}},
	{"a response that has come counts, although the context of Wait is done", false, func(f *fixture) {
		all := messages(series(50, "a")...)
		receipts := f.hand(all)
		f.must(receipts[49].Wait(f.within(time.Minute))) // the last of its key
		f.equal("errors", make([]error, 49), f.collect(0, all, receipts[:49]))
	}},
	{"Wait returns when its context is done, and an unknown result is no refusal", true, func(f *fixture) {
		f.freeze()
		start := time.Now()
		for _, err := range f.pass(soon, messages("a1", "b1")) {
			if !errors.Is(err, context.DeadlineExceeded) {
				f.Errorf("Wait() = %v, want the deadline's error", err)
			}
		}
		if took := time.Since(start); took > 5*time.Second {
			f.Errorf("Wait took %s, want %s", took, soon)
		}
	}},
	{"no message of a key overtakes one that was abandoned", true, func(f *fixture) {
		f.publish("a1")
		thaw := f.freeze()
		f.unknown(f.pass(soon, messages("a2", "a3"))...)
		f.unknown(f.pass(soon, messages("a2", "a3"))...)
		thaw()
		f.publish("a2", "a3", "a4")
		if got := strings.Join(f.read("a4")["a"], " "); !strings.HasPrefix(got, "a1 a2 a3") || !strings.HasSuffix(got, "a2 a3 a4") {
			f.Errorf("stored: %s, want a2 and a3 once or more, and a4 last", got)
		}
	}},
	{"a key that opens in the middle of a pass stays closed for its rest", true, func(f *fixture) {
		thaw, all := f.freeze(), messages("a1", "a2", "a3")
		f.unknown(f.pass(soon, all[:2])...)
		receipts := f.hand(all[:1])
		time.Sleep(outbox.Config{}.RequestTimeout() + time.Second) // until a client has given up what was abandoned, if it does that
		thaw()
		f.publish("b1")
		f.collect(publishTimeout, all, append(receipts, f.hand(all[1:])...))
		f.publish("a1", "a2", "a3")
		f.inOrder("a", f.read("a3")["a"])
	}},
	{"an unavailable broker is an error, and heals within seconds", true, func(f *fixture) {
		thaw := f.freeze()
		f.unknown(f.pass(publishTimeout, messages("a1", "b1", "a2"))...)
		thaw()
		start := time.Now()
		f.publish("a1", "b1", "a2")
		if took := time.Since(start); took > 5*time.Second {
			f.Errorf("it healed after %s, want 5s at most", took)
		}
		f.inOrder("a", f.read("a2")["a"])
	}},
	{"Stop waits for the messages that were handed over", false, func(f *fixture) {
		f.hand(messages(series(100, "a")...))
		f.stop()
		f.equal("messages", series(100, "a"), f.read("a100")["a"])
	}},

	{"messages of a key are handled one after the other", false, func(f *fixture) {
		f.publish(series(100, "a", "b")...)
		var calls sync.Map
		var n atomic.Int32
		f.receive(func(_ context.Context, m consumer.Message) (ack, done bool) {
			if _, busy := calls.LoadOrStore(m.Key, true); busy {
				f.Errorf("%s was handed over while another one of its key was in hand", m.Data)
			}
			defer calls.Delete(m.Key)
			runtime.Gosched()
			return true, n.Add(1) == 200
		})
	}},
	{"messages of different keys are handled at the same time", false, func(f *fixture) {
		f.publish(series(1, "a", "b", "c", "d", "e", "f", "g", "h")...)
		var met sync.WaitGroup
		met.Add(8)
		f.receive(func(context.Context, consumer.Message) (ack, done bool) {
			met.Done()
			met.Wait() // for all others
			return true, true
		})
	}},
	{"a message that was not acknowledged comes again, and none of its key before it", false, func(f *fixture) {
		f.publish("a1", "a2", "a3", "b1")
		var got []string
		f.each(func(name string, m consumer.Message) (ack, done bool) {
			if m.Key == "a" {
				got = append(got, name)
			}
			return name != "a2", name == "a2"
		})
		f.equal("before", series(2, "a"), got)
		f.equal("after", []string{"a2", "a3"}, f.read("a3")["a"])
	}},
	{"nothing that was acknowledged comes again after a stop", false, func(f *fixture) {
		f.publish(series(200, "a", "b")...)
		seen := map[string]bool{}
		for _, n := range []int{100, 400} {
			f.each(func(name string, _ consumer.Message) (ack, done bool) {
				if seen[name] {
					f.Errorf("%s came again", name)
				}
				seen[name] = true
				return true, len(seen) >= n
			})
		}
	}},
	{"when receiving stops, the context of handle ends, and Receive returns after all calls", false, func(f *fixture) {
		f.publish("a1", "b1")
		var calls, n atomic.Int32
		f.receive(func(ctx context.Context, _ consumer.Message) (ack, done bool) {
			calls.Add(1)
			defer calls.Add(-1)
			if n.Add(1) == 2 {
				return true, true
			}
			<-ctx.Done()
			time.Sleep(soon) // a rollback
			return false, true
		})
		f.equal("calls that were running when Receive returned", int32(0), calls.Load())
	}},
	{"after a crash, messages that were not acknowledged come again with their ids, in order", true, func(f *fixture) {
		f.publish(series(3, "a", "b")...)
		process, lines, err := child.Run("receiver", f.name, f.addr, f.id)
		f.must(err)
		ids := map[string]string{}
		for len(ids) < 2 && lines.Scan() { // the first of each key
			name, id, _ := strings.Cut(lines.Text(), " ")
			ids[name] = id
		}
		process.End(syscall.SIGKILL)
		f.must(f.forget())
		got, again := map[string][]string{}, map[string]string{}
		f.each(func(name string, m consumer.Message) (ack, done bool) {
			if got[m.Key] = append(got[m.Key], name); ids[name] != "" {
				again[name] = m.ID
			}
			return true, len(got["a"]) == 3 && len(got["b"]) == 3
		})
		f.equal("messages", map[string][]string{"a": series(3, "a"), "b": series(3, "b")}, got)
		f.equal("ids", ids, again)
	}},
	{"two receivers share a subscription, and the order of keys holds", false, func(f *fixture) {
		ids := strings.Split("abcdefghijklmnopqrstuvwxyz", "")
		var mu sync.Mutex
		got, shares := map[string][]string{}, [2]int{}
		ctx, end := context.WithCancel(f.within(time.Minute))
		defer end()
		var receivers sync.WaitGroup
		for i := range shares {
			source := f.dial(f.id).source
			receivers.Go(func() {
				for ctx.Err() == nil { // as a receiver does: Kafka may tell a source of a new topic late
					_ = source.Receive(ctx, func(_ context.Context, m consumer.Message) bool {
						mu.Lock()
						defer mu.Unlock()
						got[m.Key] = append(got[m.Key], string(m.Data))
						shares[i]++
						return true
					})
				}
			})
		}
		holds := func(condition func() bool) bool {
			mu.Lock()
			defer mu.Unlock()
			return condition() || ctx.Err() != nil
		}
		n := 0
		for both := false; !both; both = holds(func() bool { return shares[0] > 0 && shares[1] > 0 }) {
			n++
			f.publish(series(n, ids...)[(n-1)*len(ids):]...)
		}
		for !holds(func() bool { return !slices.ContainsFunc(ids, func(id string) bool { return len(got[id]) < n }) }) {
			time.Sleep(time.Millisecond)
		}
		f.must(ctx.Err())
		end()
		receivers.Wait()
		for id, names := range got {
			f.inOrder(id, names)
		}
	}},
	{"a source without its subscription waits or returns an error, and receives when there is one", false, func(f *fixture) {
		f.id += "-late"
		f.client = f.dial(f.id)
		ctx, end := context.WithCancel(f.within(time.Minute))
		defer end()
		created := make(chan struct{})
		time.AfterFunc(time.Second, func() {
			defer close(created)
			f.must(f.create(ctx, f.id, kafka.MaxBatch))
			f.publish("a1")
		})
		var received atomic.Bool
		for !received.Load() && ctx.Err() == nil { // as a receiver does
			_ = f.source.Receive(ctx, func(context.Context, consumer.Message) bool {
				received.Store(true)
				end()
				return true
			})
		}
		<-created
		if !received.Load() || !strings.Contains(f.source.String(), f.id) {
			f.Errorf("%s has received: %t, want true and the name of the subscription", f.source, received.Load())
		}
	}},
	{"a source receives again after an outage", true, func(f *fixture) {
		f.publish("a1")
		var outage sync.WaitGroup
		f.each(func(name string, _ consumer.Message) (ack, done bool) {
			if name == "a1" {
				thaw := f.freeze()
				outage.Go(func() {
					f.unknown(f.pass(publishTimeout, messages("a2"))...)
					thaw()
					f.publish("a2")
				})
			}
			return true, name == "a2"
		})
		outage.Wait()
	}},
}
