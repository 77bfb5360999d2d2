package consumer_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"example.com/servicekit/localbroker"
	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/localtopics"
	"example.com/videocatalog/internal/pg/pgtest"
)

// note is an event of a note, an aggregate of these tests. Its payload is its text.
type note struct{ envelope.Message }

func decodeNote(m envelope.Message) (note, error) {
	if m.SchemaVersion > 1 {
		return note{}, envelope.Undecodable("schema version %d is newer", m.SchemaVersion)
	}
	switch string(m.Payload) {
	case "broken":
		return note{}, envelope.Undecodable("payload is no note")
	case "panic":
		panic("index out of range")
	}
	return note{m}, nil
}

// newNote returns the message of the event that led to a version of a note.
func newNote(id string, version int64) consumer.Message {
	e := envelope.Message{
		ID: uuid.Must(uuid.NewV7()), Type: "NoteWritten", AggregateType: "note", AggregateID: id, Version: version, SchemaVersion: 1,
		Payload: []byte("text"), OccurredAt: time.Now().UTC().Truncate(time.Millisecond),
	}
	return consumer.Message{ID: e.ID.String(), Key: id, Attributes: e.Attributes(), Data: e.Payload, PublishTime: e.OccurredAt}
}

// messages are the first events of n notes.
func messages(n int) (all fakeSource) {
	for range n {
		all = append(all, newNote(uuid.NewString(), 1))
	}
	return all
}

// memStore has notes in memory, with an inbox and versions.
type memStore struct {
	// before, if it is set, is called first. If it returns an error, nothing is changed.
	before func(ctx context.Context, notes []note) error
	refuse func(envelope.Quarantined) error // the same in Quarantine
	log    slog.Handler                     // of the receiver; by default, it discards
	meter  metric.Meter                     // of the receiver

	mu         sync.Mutex
	inbox      map[uuid.UUID]bool
	versions   map[string]int64
	outcomes   []envelope.Outcome
	quarantine map[string]envelope.Quarantined
}

func newStore() *memStore {
	return &memStore{
		log: slog.DiscardHandler, meter: noop.Meter{},
		inbox: map[uuid.UUID]bool{}, versions: map[string]int64{}, quarantine: map[string]envelope.Quarantined{},
	}
}

func (s *memStore) handlers() consumer.Handlers {
	return consumer.Handlers{"note": consumer.Handle(decodeNote, s.project)}
}

func (s *memStore) project(ctx context.Context, _ string, notes []note) ([]envelope.Outcome, error) {
	if s.before != nil {
		if err := s.before(ctx, notes); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	outcomes := make([]envelope.Outcome, len(notes))
	for i, n := range notes {
		switch last := s.versions[n.AggregateID]; {
		case s.inbox[n.ID]:
			outcomes[i] = envelope.Duplicate
			continue
		case n.Version <= last:
			outcomes[i] = envelope.Stale
		case n.Version == last+1:
			outcomes[i] = envelope.Applied
		default:
			outcomes[i] = envelope.AppliedAfterGap
		}
		s.inbox[n.ID] = true
		s.versions[n.AggregateID] = max(s.versions[n.AggregateID], n.Version)
	}
	s.outcomes = append(s.outcomes, outcomes...)
	return outcomes, nil
}

func (s *memStore) Quarantine(_ context.Context, _ string, m envelope.Quarantined) error {
	if s.refuse != nil {
		if err := s.refuse(m); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quarantine[m.MessageID] = m
	return nil
}

// state returns what the store has.
func (s *memStore) state() (versions map[string]int64, outcomes []envelope.Outcome, quarantine map[string]envelope.Quarantined) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.versions), slices.Clone(s.outcomes), maps.Clone(s.quarantine)
}

// fakeSource hands over all its messages at once, as the client does with messages of different
// keys.
type fakeSource []consumer.Message

func (s fakeSource) Receive(ctx context.Context, handle func(context.Context, consumer.Message) bool) error {
	var calls sync.WaitGroup
	for _, m := range s {
		calls.Go(func() { handle(ctx, m) })
	}
	<-ctx.Done()
	calls.Wait()
	return nil
}

func (s fakeSource) String() string { return "projects/p/subscriptions/fake" }

// newReceiver makes a receiver of one source.
func newReceiver(t *testing.T, cfg consumer.Config, store *memStore, from consumer.Source) *consumer.Receiver {
	t.Helper()
	subscription := consumer.Input{Source: from, Consumer: "test", Handlers: store.handlers()}
	receiver, err := consumer.New(cfg, subscription, store, slog.New(store.log), store.meter)
	pgtest.Must(t, err)
	return receiver
}

// project runs a receiver on some messages for a time, inside a synctest bubble.
func project(t *testing.T, cfg consumer.Config, store *memStore, source consumer.Source, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if err := newReceiver(t, cfg, store, source).Run(ctx); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
}

// broker is a Pub/Sub server with the topic and the subscription.
type broker struct {
	t      *testing.T
	server *localbroker.Server
	client *pubsub.Client
}

func newBroker(t *testing.T) *broker {
	t.Helper()
	server, client := localtopics.Start(t, "test-project", localbroker.Resources{Schemaless: true, RetryMin: time.Millisecond})
	return &broker{t, server, client}
}

// start runs a receiver until stop is called, which waits for it.
func (b *broker) start(cfg consumer.Config, store *memStore) (stop func()) {
	b.t.Helper()
	receiver := newReceiver(b.t, cfg, store, consumer.PubSub(b.client.Subscriber(localtopics.Subscription), 1))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- receiver.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("Run() = %v, want nil", err)
		}
	})
	b.t.Cleanup(stop)
	return stop
}

// publish publishes messages and returns their ids.
func (b *broker) publish(messages ...consumer.Message) (ids []string) {
	b.t.Helper()
	for _, m := range messages {
		response, err := b.client.TopicAdminClient.Publish(b.t.Context(), &pubsubpb.PublishRequest{
			Topic:    "projects/test-project/topics/" + localtopics.Topic,
			Messages: []*pubsubpb.PubsubMessage{{Data: m.Data, Attributes: m.Attributes, OrderingKey: m.Key}},
		})
		pgtest.Must(b.t, err)
		ids = append(ids, response.GetMessageIds()...)
	}
	return ids
}

// find returns a message as the server has it.
func (b *broker) find(id string) localbroker.Message {
	b.t.Helper()
	i := slices.IndexFunc(b.server.Published(), func(m localbroker.Message) bool { return m.ID == id })
	if i < 0 {
		b.t.Fatalf("no message %s", id)
	}
	return b.server.Published()[i]
}

// waitForAcks waits until every message that was published is acknowledged.
func (b *broker) waitForAcks() {
	b.t.Helper()
	pgtest.Eventually(b.t, 20*time.Second, "all acks", func() bool {
		return !slices.ContainsFunc(b.server.Published(), func(m localbroker.Message) bool { return m.Acks == 0 })
	})
}

// unavailable is the error of a store whose database is unavailable.
func unavailable() error { return fmt.Errorf("project: %w", envelope.ErrUnavailable) }
