package chaos

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/uuid"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/videocatalog/internal/localbroker"
	"example.com/videocatalog/pubsublocal"
)

const project = "chaos"

// broker is Pub/Sub, with the checker's own ears: the times at which messages
// were published, by our clock, and a subscription.
type broker struct {
	*pubsublocal.Server
	clock  *pubsublocal.Clock
	client *pubsub.Client

	mu           sync.Mutex
	publications map[string]time.Time // guarded by mu: by message id
	last         time.Time            // guarded by mu: the newest of them
	acks         []Ack                // guarded by mu: of the projectors
	newest       time.Time            // guarded by mu: when the newest message that they acknowledged was published
	dead         int                  // guarded by mu: messages that became dead letters
	sightings    []Sighting           // guarded by mu
	seen         map[string]bool      // guarded by mu: ids of the messages among them
	unreadable   []string             // guarded by mu: messages that are no events
}

// tapName is the checker's own subscription.
var tapName = localbroker.Topic + ".chaos"

func startBroker(ctx context.Context) (*broker, error) {
	b := &broker{clock: &pubsublocal.Clock{}, publications: map[string]time.Time{}, seen: map[string]bool{}}
	var err error
	if b.Server, err = pubsublocal.Start(pubsublocal.Config{Clock: b.clock, Observer: b.observe}); err != nil {
		return nil, fmt.Errorf("start Pub/Sub: %w", err)
	}
	if b.client, err = connectSoon(ctx, b.Server); err != nil {
		_ = b.Close() // the other error says more
		return nil, fmt.Errorf("open Pub/Sub: %w", err)
	}
	// Messages that the lab takes back again and again, by killing who has them, are healthy: they must not become dead
	// letters. And what is given back shall come soon.
	resources := localbroker.Resources{RetryMin: 100 * time.Millisecond, RetryMax: time.Second, MaxDeliveryAttempts: 100}
	if err := resources.Create(ctx, b.client); err != nil {
		b.stop()
		return nil, err
	}
	_, err = b.client.SubscriptionAdminClient.CreateSubscription(ctx, &pubsubpb.Subscription{
		Name: "projects/" + project + "/subscriptions/" + tapName, Topic: "projects/" + project + "/topics/" + localbroker.Topic,
		EnableMessageOrdering: true, AckDeadlineSeconds: 60, ExpirationPolicy: &pubsubpb.ExpirationPolicy{},
		MessageRetentionDuration: durationpb.New(7 * 24 * time.Hour),
	})
	if err != nil {
		b.stop()
		return nil, fmt.Errorf("create subscription %s: %w", tapName, err)
	}
	return b, nil
}

// connectSoon makes a client that looks every second whether a broker is back;
// by itself it would wait for up to two minutes.
func connectSoon(ctx context.Context, server *pubsublocal.Server) (*pubsub.Client, error) {
	soon := backoff.DefaultConfig
	soon.MaxDelay = time.Second
	conn, err := server.Conn(grpc.WithConnectParams(grpc.ConnectParams{Backoff: soon, MinConnectTimeout: 5 * time.Second}))
	if err != nil {
		return nil, err
	}
	return pubsub.NewClient(ctx, project, option.WithGRPCConn(conn))
}

// stop ends everything; what it held was in memory.
func (b *broker) stop() {
	_ = b.client.Close()
	_ = b.Close()
}

// observe is told by the server what happens.
func (b *broker) observe(e pubsublocal.Event) {
	switch e.Kind {
	case pubsublocal.Published, pubsublocal.Acked, pubsublocal.DeadLettered:
	default:
		return
	}
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case e.Kind == pubsublocal.DeadLettered:
		b.dead++
	case e.Kind == pubsublocal.Acked:
		if e.Subscription == "projects/"+project+"/subscriptions/"+localbroker.Subscription {
			published := b.publications[e.MessageID]
			b.acks = append(b.acks, Ack{published, now})
			if published.After(b.newest) {
				b.newest = published
			}
		}
	case e.Topic == "projects/"+project+"/topics/"+localbroker.Topic:
		b.publications[e.MessageID] = now
		b.last = now
	}
}

// listen reads the subscription until ctx ends. What breaks meanwhile, the
// client mends; when it gives up, it is started again.
func (b *broker) listen(ctx context.Context) {
	subscriber := b.client.Subscriber(tapName)
	subscriber.ReceiveSettings.MaxOutstandingMessages = 5000
	for ctx.Err() == nil {
		_ = subscriber.Receive(ctx, func(_ context.Context, m *pubsub.Message) {
			b.sight(m)
			m.Ack()
		})
		sleep(ctx, 100*time.Millisecond)
	}
}

func (b *broker) sight(m *pubsub.Message) {
	s := Sighting{MessageID: m.ID, Content: contentOf(m.OrderingKey, m.Attributes, m.Data)}
	var err error
	if s.Event, err = uuid.Parse(m.Attributes["event_id"]); err == nil {
		if s.Video, err = uuid.Parse(m.OrderingKey); err == nil {
			s.Version, err = strconv.ParseInt(m.Attributes["version"], 10, 64)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seen[m.ID] = true
	if err != nil {
		b.unreadable = append(b.unreadable, fmt.Sprintf("message %s: %v", m.ID, err))
		return
	}
	b.sightings = append(b.sightings, s)
}

// lastPublished is when the broker took a message last.
func (b *broker) lastPublished() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last
}

// lastConsumed is when the broker took the newest message that a projector has
// acknowledged. Acks alone say little: they are sent again for a minute, also by
// projectors that receive nothing.
func (b *broker) lastConsumed() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.newest
}

// published is how many messages the broker took, and heard how many of them
// the subscription has brought.
func (b *broker) published() (taken, heard int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.publications), len(b.seen)
}
