package consumer_test

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"

	"example.com/servicekit/localbroker"
	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/localtopics"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/reconnect"
)

// broker is a Pub/Sub server with the topic and the subscription.
type broker struct {
	t      *testing.T
	server *localbroker.Server
	client *pubsub.Client
}

func newBroker(t *testing.T, resources localbroker.Resources) *broker {
	t.Helper()
	server, client := localtopics.Start(t, "test-project", resources)
	reconnect.RetrySoon(client)
	return &broker{t, server, client}
}

// publish publishes messages and returns their ids.
func (b *broker) publish(messages ...consumer.Message) []string {
	b.t.Helper()
	var ids []string
	for _, m := range messages {
		response, err := b.client.TopicAdminClient.Publish(b.t.Context(), &pubsubpb.PublishRequest{
			Topic:    "projects/test-project/topics/" + localtopics.Topic,
			Messages: []*pubsubpb.PubsubMessage{{Data: m.Data, Attributes: m.Attributes, OrderingKey: m.Key}},
		})
		must(b.t, err)
		ids = append(ids, response.GetMessageIds()...)
	}
	return ids
}

// waitForAcks waits until every message that was published is acknowledged.
func (b *broker) waitForAcks() {
	b.t.Helper()
	pgtest.Eventually(b.t, 20*time.Second, "all acks", func() bool {
		for _, m := range b.server.Published() {
			if m.Acks == 0 {
				return false
			}
		}
		return true
	})
}

// start runs a receiver until stop is called, which waits for it.
func (b *broker) start(cfg consumer.Config, store *memStore) (read readings, stop func()) {
	b.t.Helper()
	return b.startLogging(cfg, store, discard)
}

func (b *broker) startLogging(cfg consumer.Config, store *memStore, log *slog.Logger) (read readings, stop func()) {
	b.t.Helper()
	meter, read := newMeter(b.t)
	receiver, err := newFrom(cfg, consumer.PubSub(b.client.Subscriber(localtopics.Subscription), 1), store.handlers(), store, log, meter)
	must(b.t, err)
	return b.run(receiver, read)
}

// run runs a receiver until stop is called, which waits for it.
func (b *broker) run(receiver *consumer.Receiver, read readings) (_ readings, stop func()) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- receiver.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("Run() = %v, want nil once ctx is done", err)
		}
	})
	b.t.Cleanup(stop)
	return read, stop
}

// lockedBuffer is a buffer to which several goroutines can log.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
