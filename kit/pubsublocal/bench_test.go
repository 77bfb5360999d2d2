package pubsublocal_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"

	"example.com/servicekit/pubsublocal"
)

const (
	benchTopic = "projects/bench/topics/bench"
	benchSub   = "projects/bench/subscriptions/bench"
)

// newBench starts a server with a topic and a subscription, and a client with
// high limits.
func newBench(b testing.TB, ordered bool, observer func(pubsublocal.Event)) *pubsub.Client {
	b.Helper()
	server, err := pubsublocal.Start(pubsublocal.Config{Observer: observer})
	if err != nil {
		b.Fatal(err)
	}
	ctx := context.WithoutCancel(b.Context())
	client, err := server.Client(ctx, "bench")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = client.Close() // its connections share one transport, so a second close fails
		if err := server.Close(); err != nil {
			b.Error(err)
		}
	})
	if _, err := client.TopicAdminClient.CreateTopic(ctx, &pubsubpb.Topic{Name: benchTopic}); err != nil {
		b.Fatal(err)
	}
	if _, err := client.SubscriptionAdminClient.CreateSubscription(ctx, &pubsubpb.Subscription{
		Name: benchSub, Topic: benchTopic, EnableMessageOrdering: ordered, AckDeadlineSeconds: 60,
	}); err != nil {
		b.Fatal(err)
	}
	return client
}

// benchMessage returns a message of 1 KB with attributes.
func benchMessage(key string) *pubsub.Message {
	return &pubsub.Message{
		Data: benchData, OrderingKey: key,
		Attributes: map[string]string{"event_id": "0198c0de-0000-7000-8000-000000000000", "event_type": "VideoUpdated", "version": "17"},
	}
}

var benchData = []byte(strings.Repeat("x", 1024))

func publishAll(b *testing.B, client *pubsub.Client, n, keys int) time.Duration {
	b.Helper()
	publisher := client.Publisher(benchTopic)
	defer publisher.Stop()
	publisher.EnableMessageOrdering = keys > 0
	publisher.PublishSettings.CountThreshold = 1000
	publisher.PublishSettings.FlowControlSettings.MaxOutstandingMessages = 20_000
	publisher.PublishSettings.FlowControlSettings.LimitExceededBehavior = pubsub.FlowControlBlock
	start := time.Now()
	results := make([]*pubsub.PublishResult, n)
	for i := range n {
		key := ""
		if keys > 0 {
			key = strconv.Itoa(i % keys)
		}
		results[i] = publisher.Publish(b.Context(), benchMessage(key))
	}
	for _, r := range results {
		if _, err := r.Get(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(start)
}

// BenchmarkPublish measures messages per second from the client library to the
// server, in one process.
func BenchmarkPublish(b *testing.B) {
	for _, keys := range []int{0, 1000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			const n = 200_000
			var took time.Duration
			for b.Loop() {
				took += publishAll(b, newBench(b, keys > 0, nil), n, keys)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(n*b.N)/took.Seconds(), "messages/s")
		})
	}
}

// BenchmarkReceive measures StreamingPull with acks, over four streams.
func BenchmarkReceive(b *testing.B) {
	for _, keys := range []int{0, 1000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			const n = 200_000
			var took time.Duration
			for b.Loop() {
				b.StopTimer()
				client := newBench(b, keys > 0, nil)
				publishAll(b, client, n, keys)
				b.StartTimer()
				ctx, cancel := context.WithCancel(b.Context())
				subscriber := client.Subscriber(benchSub)
				subscriber.ReceiveSettings.NumGoroutines = 4
				subscriber.ReceiveSettings.MaxOutstandingMessages = 20_000
				subscriber.ReceiveSettings.MaxOutstandingBytes = -1
				var received atomic.Int64
				start := time.Now()
				if err := subscriber.Receive(ctx, func(_ context.Context, m *pubsub.Message) {
					m.Ack()
					if received.Add(1) == n {
						took += time.Since(start)
						cancel()
					}
				}); err != nil {
					b.Fatal(err)
				}
				cancel()
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(n*b.N)/took.Seconds(), "messages/s")
		})
	}
}

// BenchmarkLatency measures the time from publish to receive, at 1,000 messages
// per second over 10,000 keys, with one message per request.
func BenchmarkLatency(b *testing.B) {
	for b.Loop() {
		client := newBench(b, true, nil)
		publisher := client.Publisher(benchTopic)
		publisher.EnableMessageOrdering = true
		publisher.PublishSettings.CountThreshold = 1
		var mu sync.Mutex
		var took []time.Duration
		ctx, cancel := context.WithCancel(b.Context())
		var receiving sync.WaitGroup
		receiving.Go(func() {
			subscriber := client.Subscriber(benchSub)
			subscriber.ReceiveSettings.MaxOutstandingMessages = 10_000
			if err := subscriber.Receive(ctx, func(_ context.Context, m *pubsub.Message) {
				at := time.Now().UnixNano()
				sent, err := strconv.ParseInt(m.Attributes["sent"], 10, 64)
				if err != nil {
					b.Error(err)
				}
				mu.Lock()
				took = append(took, time.Duration(at-sent))
				mu.Unlock()
				m.Ack()
			}); err != nil {
				b.Error(err)
			}
		})
		const n = 5000
		ticker := time.NewTicker(time.Millisecond)
		for i := range n {
			<-ticker.C
			m := benchMessage(strconv.Itoa(i * 7919 % 10_000))
			m.Attributes["sent"] = strconv.FormatInt(time.Now().UnixNano(), 10)
			publisher.Publish(b.Context(), m)
		}
		ticker.Stop()
		publisher.Stop()
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			mu.Lock()
			all := len(took) == n
			mu.Unlock()
			if all {
				break
			}
		}
		cancel()
		receiving.Wait()
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
		b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkStart measures the time until a new server has handled its first
// call.
func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		server, err := pubsublocal.Start(pubsublocal.Config{})
		if err != nil {
			b.Fatal(err)
		}
		if err := server.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkMemory measures the resident memory of this process with a million
// undelivered messages of 1 KB, under a memory limit.
func BenchmarkMemory(b *testing.B) {
	const limit = 1900 << 20
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(limit))
	for b.Loop() {
		client := newBench(b, true, nil)
		for range 10 {
			publishAll(b, client, 100_000, 1000)
		}
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			b.Skip("no /proc on this system")
		}
		for line := range strings.Lines(string(status)) {
			if kb, ok := strings.CutPrefix(line, "VmHWM:"); ok {
				peak, err := strconv.Atoi(strings.Fields(kb)[0])
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(peak)/1024, "peak-MB")
			}
		}
		b.ReportMetric(float64(stats.HeapAlloc)/(1<<20), "heap-MB")
	}
	b.ReportMetric(0, "ns/op")
}
