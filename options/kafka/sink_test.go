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

// One event that the broker refuses blocks its own key among 10,000, in one pass.
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
	var messages []envelope.Message
	for key := range keys {
		messages = append(messages, letter(fmt.Sprint("k", key), 1, 1))
	}
	messages[7].Payload = poison
	for key, err := range pass(t, s, messages) {
		if isPoison := key == 7; refused(err) != isPoison || err != nil && !isPoison {
			t.Fatalf("k%d: %v, want k7 refused, and no other", key, err)
		}
	}
	c.checkTopic(t, keys-1)
}

// A message that is given up in the queue is never sent.
func TestSinkSendsNothingGivenUp(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	s := c.sink(t)
	asked, release := make(chan bool, 100), make(chan struct{})
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		asked <- true
		c.SleepControl(func() { <-release })
		return nil, nil, false
	})
	var waiting sync.WaitGroup
	waiting.Go(func() { pass(t, s, letters("a1")) })
	<-asked
	gone, giveUp := context.WithCancel(t.Context())
	giveUp()
	_ = s.Publish(letters("b1")[0]).Wait(gone)
	close(release)
	waiting.Wait()
	must(t, errors.Join(pass(t, s, letters("c1"))...))
	if n := len(c.records(t)); n != 2 {
		t.Errorf("%d messages were sent, want a1 and c1", n)
	}
}

// A cluster that once gives no producer id is an outage that ends.
func TestSinkAsksForAProducerIDAgain(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	s := c.sink(t)
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Err: kerr.UnknownServerError})
	if errs := pass(t, s, letters("a1")); errs[0] == nil || refused(errs[0]) {
		t.Errorf("Wait() = %v, want an error that is no refusal", errs[0])
	}
	must(t, errors.Join(pass(t, s, letters("a1"))...))
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
