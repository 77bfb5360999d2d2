package pubsublocal_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/googleapis/gax-go/v2"
	"google.golang.org/grpc/codes"

	"example.com/servicekit/pubsublocal"
)

var (
	soakSeeds    = flag.Int("soak.seeds", 2, "how many seeds TestOrderUnderFaults runs")
	soakFirst    = flag.Int("soak.first", 0, "the first seed of TestOrderUnderFaults")
	soakMessages = flag.Int("soak.messages", 100, "how many messages each of its 100 keys gets")
)

// Three subscribers receive 100 keys under random nacks, expired leases and
// lost connections. Every message is handled. Each key is delivered in order,
// except that it goes back to a failed message. At the end the server keeps
// nothing.
func TestOrderUnderFaults(t *testing.T) {
	for i := range *soakSeeds {
		seed := *soakFirst + i
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { soak(t, uint64(seed)) })
	}
}

func soak(t *testing.T, seed uint64) {
	const keys, subscribers = 100, 3
	perKey := *soakMessages
	watch := &orderWatch{keys: map[string]*watchedKey{}}
	clock := &pubsublocal.Clock{}
	server, err := pubsublocal.Start(pubsublocal.Config{Observer: watch.observe, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	client := newClient(t, server, "soak")
	const topicName, subName = "projects/soak/topics/soak", "projects/soak/subscriptions/soak"
	if _, err := client.TopicAdminClient.CreateTopic(ctx, &pubsubpb.Topic{Name: topicName}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.SubscriptionAdminClient.CreateSubscription(ctx, &pubsubpb.Subscription{
		Name: subName, Topic: topicName, EnableMessageOrdering: true, AckDeadlineSeconds: 10,
	}); err != nil {
		t.Fatal(err)
	}
	heapBefore := heap()

	var handled sync.Map // key/index of every acknowledged message
	var left atomic.Int64
	left.Store(int64(keys * perKey))
	receiving, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	for i := range subscribers {
		own := newClient(t, server, "soak")
		random := newLockedRand(seed, uint64(i))
		work.Go(func() {
			subscriber := own.Subscriber(subName)
			subscriber.ReceiveSettings.NumGoroutines = 2
			subscriber.ReceiveSettings.MaxOutstandingMessages = 500
			if err := subscriber.Receive(receiving, func(_ context.Context, m *pubsub.Message) {
				switch n := random.n(1000); {
				case n < 20:
					m.Nack()
					return
				case n < 22:
					time.Sleep(time.Duration(random.n(50)) * time.Millisecond)
				}
				if _, again := handled.LoadOrStore(string(m.Data), true); !again {
					left.Add(-1)
				}
				m.Ack()
			}); err != nil {
				t.Error(err)
			}
		})
	}
	faulting, calm := context.WithCancel(ctx)
	work.Go(func() {
		random := newLockedRand(seed, 99)
		for faulting.Err() == nil {
			time.Sleep(time.Duration(20+random.n(100)) * time.Millisecond)
			switch random.n(4) {
			case 0:
				server.CutConnections()
			case 1:
				server.CutStreams()
			case 2:
				clock.Advance(time.Duration(5+random.n(60)) * time.Second) // leases expire
			default:
				if err := server.Duplicate(subName, random.n(3)); err != nil {
					t.Error(err)
				}
			}
		}
	})

	// The pauses of the client grow fourfold, up to a minute. A publisher that
	// fails several times would not finish in time.
	client.TopicAdminClient.CallOptions.Publish = append(client.TopicAdminClient.CallOptions.Publish, gax.WithRetry(func() gax.Retryer {
		return gax.OnCodes([]codes.Code{codes.Canceled, codes.Internal, codes.Unknown, codes.Unavailable},
			gax.Backoff{Initial: 50 * time.Millisecond, Max: 50 * time.Millisecond})
	}))
	publisher := client.Publisher(topicName)
	publisher.EnableMessageOrdering = true
	results := make([]*pubsub.PublishResult, 0, keys*perKey)
	for i := range perKey {
		for k := range keys {
			key := strconv.Itoa(k)
			results = append(results, publisher.Publish(ctx, &pubsub.Message{OrderingKey: key, Data: []byte(key + "/" + strconv.Itoa(i))}))
		}
	}
	publisher.Stop()
	for _, result := range results {
		if _, err := result.Get(ctx); err != nil {
			t.Errorf("publish: %v", err)
			cancel()
			break
		}
	}
	for left.Load() > 0 && ctx.Err() == nil {
		time.Sleep(20 * time.Millisecond)
	}
	calm()
	if n := left.Load(); n > 0 {
		t.Errorf("%d of %d messages were never handled", n, keys*perKey)
	}
	time.Sleep(300 * time.Millisecond) // time for the last acks
	stop()
	work.Wait()
	for _, violation := range watch.violations() {
		t.Error(violation)
	}
	handled.Clear() // so that the memory of this test does not count as the server's
	if grown := int64(heap()) - int64(heapBefore); grown > 16<<20 {
		t.Errorf("the heap has grown by %d MB though everything is acknowledged", grown>>20)
	}
}

func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// orderWatch checks the order of deliveries. A key continues with its next
// unacknowledged message, or goes back.
type orderWatch struct {
	mu    sync.Mutex
	keys  map[string]*watchedKey
	wrong []string
}

type watchedKey struct {
	place map[string]int // by message id, in the order of publishing
	acked map[int]bool   // since the last delivery
	next  int
}

func (w *orderWatch) observe(e pubsublocal.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.keys == nil {
		return // the test has ended
	}
	key := w.keys[e.OrderingKey]
	if key == nil {
		key = &watchedKey{place: map[string]int{}, acked: map[int]bool{}}
		w.keys[e.OrderingKey] = key
	}
	place := key.place[e.MessageID]
	switch e.Kind {
	case pubsublocal.Published:
		key.place[e.MessageID] = len(key.place)
	case pubsublocal.Acked:
		key.acked[place] = true
	case pubsublocal.Delivered:
		for ; key.next < place; key.next++ {
			if !key.acked[key.next] {
				w.wrong = append(w.wrong, fmt.Sprintf("key %s: message %d was delivered when %d was next", e.OrderingKey, place, key.next))
			}
		}
		key.acked[place] = false
		key.next = place + 1
	default:
	}
}

func (w *orderWatch) violations() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keys = nil // so that its memory does not count as the server's
	return w.wrong[:min(len(w.wrong), 10)]
}

func newClient(t testing.TB, server *pubsublocal.Server, project string) *pubsub.Client {
	t.Helper()
	client, err := server.Client(context.WithoutCancel(t.Context()), project)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil && !strings.Contains(err.Error(), "closing") {
			t.Error(err)
		}
	})
	return client
}

// lockedRand is a random source that is safe for concurrent use.
type lockedRand struct {
	mu   sync.Mutex
	rand *rand.Rand
}

func newLockedRand(seed, stream uint64) *lockedRand {
	return &lockedRand{rand: rand.New(rand.NewPCG(seed, stream))}
}

func (r *lockedRand) n(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rand.IntN(n)
}
