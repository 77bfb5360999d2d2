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
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/servicekit/localbroker"
	"example.com/servicekit/pubsublocal"
	"example.com/videocatalog/internal/localtopics"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/lab/kafka"
)

const project = "chaos"

// broker is the Pub/Sub of the lab, or its Kafka. It records when messages were published, by the clock of the lab, and what the
// checker's own subscription received.
type broker struct {
	*pubsublocal.Server // nil with Kafka, as clock and client
	clock               *pubsublocal.Clock
	client              *pubsub.Client

	kafka *kafka.Kafka // nil with Pub/Sub, as tap
	tap   *kgo.Client

	mu           sync.Mutex
	taken        int                  // guarded by mu: number of messages that the broker has accepted
	publications map[string]time.Time // guarded by mu: by message id
	last         time.Time            // guarded by mu: time of the newest publication
	acks         []Ack                // guarded by mu: of the projectors
	acked        map[string]bool      // guarded by mu: message ids that a projector has acknowledged
	newest       time.Time            // guarded by mu: publish time of the newest message that a projector acknowledged
	dead         int                  // guarded by mu: number of dead letters
	sightings    []Sighting           // guarded by mu
	seen         map[string]bool      // guarded by mu: message ids in sightings
	unreadable   []string             // guarded by mu: messages that cannot be decoded as events
}

// The topic of the videos, the subscription of the catalog, and the checker's own subscription.
var (
	topicName        = "projects/" + project + "/topics/" + names.VideoTopic.Name
	subscriptionName = "projects/" + project + "/subscriptions/" + names.VideoTopic.Subscription("catalog")
	tapName          = names.VideoTopic.Name + ".chaos"
)

func newBroker() *broker {
	return &broker{publications: map[string]time.Time{}, acked: map[string]bool{}, seen: map[string]bool{}}
}

func startPubSub(ctx context.Context) (*broker, error) {
	b := newBroker()
	b.clock = &pubsublocal.Clock{}
	var err error
	if b.Server, err = pubsublocal.Start(pubsublocal.Config{Clock: b.clock, Observer: b.observe}); err != nil {
		return nil, fmt.Errorf("start Pub/Sub: %w", err)
	}
	if b.client, err = connectSoon(ctx, b.Server); err != nil {
		_ = b.Close() // the other error is more useful
		return nil, fmt.Errorf("open Pub/Sub: %w", err)
	}
	// When the lab kills a projector, its messages count as failed, although they are good. So the broker allows many
	// attempts before they become dead letters. The retry delay is short.
	resources := localbroker.Resources{RetryMin: 100 * time.Millisecond, RetryMax: time.Second, MaxDeliveryAttempts: 100}
	if err := localtopics.Create(ctx, b.client, resources); err != nil {
		b.stop()
		return nil, err
	}
	_, err = b.client.SubscriptionAdminClient.CreateSubscription(ctx, &pubsubpb.Subscription{
		Name: "projects/" + project + "/subscriptions/" + tapName, Topic: topicName,
		EnableMessageOrdering: true, AckDeadlineSeconds: 60, ExpirationPolicy: &pubsubpb.ExpirationPolicy{},
		MessageRetentionDuration: durationpb.New(7 * 24 * time.Hour),
	})
	if err != nil {
		b.stop()
		return nil, fmt.Errorf("create subscription %s: %w", tapName, err)
	}
	return b, nil
}

// connectSoon returns a client that pauses at most about a second between attempts to connect. The default is two minutes.
func connectSoon(ctx context.Context, server *pubsublocal.Server) (*pubsub.Client, error) {
	soon := backoff.DefaultConfig
	soon.MaxDelay = time.Second
	conn, err := server.Conn(grpc.WithConnectParams(grpc.ConnectParams{Backoff: soon, MinConnectTimeout: 5 * time.Second}))
	if err != nil {
		return nil, err
	}
	return pubsub.NewClient(ctx, project, option.WithGRPCConn(conn))
}

// stop closes the client and the server.
func (b *broker) stop() {
	if b.kafka != nil {
		if b.tap != nil {
			b.tap.Close()
		}
		b.kafka.Kill()
		return
	}
	_ = b.client.Close()
	_ = b.Close()
}

// observe records an event of the server.
func (b *broker) observe(e pubsublocal.Event) {
	switch e.Kind {
	case pubsublocal.Published, pubsublocal.Acked, pubsublocal.DeadLettered:
	default:
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case e.Kind == pubsublocal.DeadLettered:
		b.dead++
	case e.Kind == pubsublocal.Acked:
		if e.Subscription == subscriptionName {
			b.acknowledge(e.MessageID)
		}
	case e.Topic == topicName:
		b.taken++
		b.publish(e.MessageID, time.Now())
	}
}

// publish records a message that the broker has accepted. The caller has b.mu.
func (b *broker) publish(id string, at time.Time) {
	b.publications[id] = at
	if at.After(b.last) {
		b.last = at
	}
}

// acknowledge records that a projector has acknowledged a message. The caller has b.mu.
func (b *broker) acknowledge(id string) {
	published := b.publications[id]
	b.acks = append(b.acks, Ack{published, time.Now()})
	b.acked[id] = true
	if published.After(b.newest) {
		b.newest = published
	}
}

// expire ends the leases of messages that dead receivers have. With Kafka their sessions end by themselves.
func (b *broker) expire() {
	if b.clock != nil {
		b.clock.Advance(messageLease)
	}
}

// listen receives from the subscription until ctx ends. The client handles lost connections. If it gives up, it is
// started again.
func (b *broker) listen(ctx context.Context) {
	if b.kafka != nil {
		b.listenKafka(ctx)
		return
	}
	subscriber := b.client.Subscriber(tapName)
	subscriber.ReceiveSettings.MaxOutstandingMessages = 5000
	for ctx.Err() == nil {
		_ = subscriber.Receive(ctx, func(_ context.Context, m *pubsub.Message) {
			b.mu.Lock()
			b.sight(m.ID, m.OrderingKey, m.Attributes, m.Data)
			b.mu.Unlock()
			m.Ack()
		})
		sleep(ctx, 100*time.Millisecond)
	}
}

// sight records a message of the topic. The caller has b.mu.
func (b *broker) sight(id, key string, attributes map[string]string, data []byte) {
	s := Sighting{MessageID: id, Content: contentOf(key, attributes, data)}
	var err error
	if s.Event, err = uuid.Parse(attributes["event_id"]); err == nil {
		if s.Video, err = uuid.Parse(key); err == nil {
			s.Version, err = strconv.ParseInt(attributes["version"], 10, 64)
		}
	}
	b.seen[id] = true
	if err != nil {
		b.unreadable = append(b.unreadable, fmt.Sprintf("message %s: %v", id, err))
		return
	}
	b.sightings = append(b.sightings, s)
}

// lastPublished returns when the broker accepted the newest message.
func (b *broker) lastPublished() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last
}

// lastConsumed returns the publish time of the newest message that a projector has acknowledged. The times of acks are
// not useful: acks are repeated for a minute, even by a projector that receives nothing.
func (b *broker) lastConsumed() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.newest
}

// published returns how many messages the broker accepted, and how many of them the subscription has received.
func (b *broker) published() (taken, heard int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.taken, len(b.seen)
}

// acknowledged returns how many messages a projector has acknowledged at least once.
func (b *broker) acknowledged() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.acked)
}
