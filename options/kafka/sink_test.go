package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	randv2 "math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.opentelemetry.io/otel/metric/noop"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
)

// limit is how long the sinks of tests try a message.
const limit = time.Second

func (c *cluster) sink(t testing.TB, more ...kgo.Opt) *Sink {
	t.Helper()
	s := NewSink(c.options(t, more...), topic, limit)
	t.Cleanup(func() {
		if s.Stop(); len(s.keys)+len(s.queue) > 0 {
			t.Errorf("at its end the sink has %d keys and %d messages, want none", len(s.keys), len(s.queue))
		}
	})
	return s
}

// pass hands messages over and waits for the responses, as a pass does.
func pass(t testing.TB, s *Sink, messages []envelope.Message) (errs []error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*s.limit)
	defer cancel()
	var receipts []outbox.Receipt
	for _, m := range messages {
		receipts = append(receipts, s.Publish(m))
	}
	for _, r := range receipts {
		errs = append(errs, r.Wait(ctx))
	}
	return errs
}

func refused(err error) bool {
	_, ok := errors.AsType[*outbox.RefusedError](err)
	return ok
}

// While the broker fails in every way, leaders move, connections break and publishers compete, every event is
// published, and first deliveries are in order.
func TestSinkKeepsTheOrder(t *testing.T) {
	t.Parallel()
	c, pool := newCluster(t, 6), pgtest.Pool(t, 10)
	const keys, mostFaults = 100, 100
	events, stop := pg.NewOutbox(pool), make(chan struct{})
	cfg := outbox.Config{Batch: 300, PublishTimeout: 3 * time.Second, Lease: 7 * time.Second, PollInterval: 20 * time.Millisecond, MaxAttempts: 1000}
	running, end := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 2 {
		publisher, err := outbox.New(events, c.sink(t), cfg, slog.New(slog.DiscardHandler), noop.Meter{})
		must(t, err)
		all.Go(func() { _ = publisher.Run(running) })
	}
	var faults atomic.Int64
	all.Go(func() {
		for tick := time.Tick(40 * time.Millisecond); ; faults.Add(1) {
			select {
			case <-stop:
				return
			case <-tick:
			}
			err := anyOf(kerr.NotEnoughReplicas, kerr.RequestTimedOut, kerr.TopicAuthorizationFailed, kerr.NotLeaderForPartition,
				kerr.InvalidRecord, kerr.MessageTooLarge, kerr.NotEnoughReplicasAfterAppend)
			c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Partitions: []int32{randv2.Int32N(6)}, Err: err})
			_ = c.MoveTopicPartition(topic, randv2.Int32N(6), randv2.Int32N(3))
			if faults.Load()%10 == 0 {
				c.cut()
			}
		}
	})
	versions := 0
	for faults.Load() < mostFaults {
		versions++
		for key := range keys {
			pgtest.Append(t, pool, letter(fmt.Sprint("l", key), versions, 1))
		}
	}
	close(stop)
	pgtest.Eventually(t, time.Minute, "all events are published", func() bool {
		pgtest.Execute(t, pool, "UPDATE video_catalog.outbox_blocked SET next_retry_at = now() WHERE next_retry_at > now()")
		return pgtest.Count(t, pool, "SELECT (SELECT count(*) FROM video_catalog.outbox_pending) + (SELECT count(*) FROM video_catalog.outbox_deferred)") == 0
	})
	end()
	all.Wait()
	n := c.checkTopic(t, keys*versions)
	t.Logf("%d events, %d faults, %d records", keys*versions, faults.Load(), n)
}

// One event that the broker refuses blocks its own key among 10,000.
func TestPoisonBlocksItsKeyOnly(t *testing.T) {
	t.Parallel()
	const keys = 10_000
	c := newCluster(t, 6)
	s := NewSink(c.options(t, kgo.ProducerBatchCompression(kgo.NoCompression())), topic, time.Minute) // no response is late on a busy machine
	t.Cleanup(s.Stop)
	poison := []byte("poison")
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Err: kerr.InvalidRecord, Count: -1, When: func(r kmsg.Request) bool {
		for _, topic := range r.(*kmsg.ProduceRequest).Topics {
			if slices.ContainsFunc(topic.Partitions, func(p kmsg.ProduceRequestTopicPartition) bool { return bytes.Contains(p.Records, poison) }) {
				return true
			}
		}
		return false
	}})
	left := map[string]envelope.Message{"k7": letter("k7", 1, poison...)}
	for key := range keys {
		if name := fmt.Sprint("k", key); key != 7 {
			left[name] = letter(name, 1, 1)
		}
	}
	passes := 0
	for ; len(left) > 1; passes++ {
		var messages []envelope.Message
		for _, m := range left {
			messages = append(messages, m)
		}
		for i, err := range pass(t, s, messages) {
			if key := messages[i].AggregateID; err == nil {
				delete(left, key)
			} else if refused(err) && key != "k7" {
				t.Fatalf("%s is refused: %v", key, err)
			}
		}
	}
	if errs := pass(t, s, []envelope.Message{left["k7"]}); !refused(errs[0]) || passes > 2 {
		t.Errorf("after %d passes the poison is %v, want it refused after 2", passes, errs[0])
	}
	c.checkTopic(t, keys-1)
}

// While responses of a key are outstanding, also abandoned ones, no later message of it is sent. A message that is
// given up in the queue is never sent.
func TestSinkWaitsForAbandonedMessages(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	s := c.sink(t)
	pass(t, s, letters("a1 b1 c1"))
	asked, release := make(chan struct{}), make(chan struct{})
	ask := sync.OnceFunc(func() { close(asked) })
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		ask()
		c.SleepControl(func() { <-release })
		return nil, nil, false
	})
	gaveUp, giveUp := context.WithCancel(t.Context())
	a2, receipts := s.Publish(letters("a2")[0]), make(chan error, 1)
	go func() { receipts <- a2.Wait(gaveUp) }()
	<-asked
	b2 := s.Publish(letters("b2")[0]) // waits in the queue behind the round of a2
	giveUp()
	if err := errors.Join(<-receipts, b2.Wait(gaveUp)); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait() = %v, want that it ends with its context", err)
	}
	if errs := pass(t, s, letters("a3")); !errors.Is(errs[0], errNotSent) {
		t.Errorf("a3 = %v, want it not sent before the response to a2", errs)
	}
	close(release)
	eventually(t, "the response to a2 has come", func() bool { return pass(t, s, letters("a3"))[0] == nil })
	pass(t, s, letters("b3 c2"))
	var sent []string
	for _, r := range c.records(t) {
		sent = append(sent, string(r.Value))
	}
	if diff := cmp.Diff([]string{"a1", "b1", "c1", "a2", "a3", "b3", "c2"}, sent); diff != "" {
		t.Errorf("the topic (-want +got):\n%s", diff)
	}
}

// Stop waits no longer than its limit for a broker that is silent.
func TestStop(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	s := NewSink(c.options(t), topic, limit)
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) { c.KeepControl(); return nil, nil, true })
	s.Publish(letters("a1")[0])
	begin := time.Now()
	if s.Stop(); time.Since(begin) > 10*limit {
		t.Errorf("Stop() took %s, want about %s", time.Since(begin), limit)
	}
}
