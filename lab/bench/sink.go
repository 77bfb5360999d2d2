package main

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"example.com/servicekit/pubsublocal"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/reconnect"
	"google.golang.org/protobuf/encoding/protowire"
)

// The sinks for events.
const (
	sinkNone     = "none"            // responds immediately
	sinkSlow     = "10ms"            // responds to each message after 10 ms, to any number at a time
	sinkPubSub   = "pubsub"          // pubsublocal, a real client, ordering keys; no client waits to fill a request
	sinkDefaults = "pubsub-defaults" // the same, with the default settings of the client: it waits up to 10 ms to fill a request
)

const slowDelay = 10 * time.Millisecond

// sinks makes the sinks. The Pub/Sub server runs in this process, so its CPU time counts for all
// peers alike.
type sinks struct {
	server *pubsublocal.Server
	ledger atomic.Pointer[ledger] // of the present turn
	topics int
	kafkas kafkas
}

func startSinks() (*sinks, error) {
	s := &sinks{}
	server, err := pubsublocal.Start(pubsublocal.Config{Observer: func(e pubsublocal.Event) {
		if e.Kind == pubsublocal.Published {
			if data := dataOf(e.Message); len(data) >= headerSize {
				s.ledger.Load().see(data)
			}
		}
	}})
	if err != nil {
		return nil, fmt.Errorf("start Pub/Sub: %w", err)
	}
	s.server = server
	return s, nil
}

// dataOf returns the field data of an encoded PubsubMessage. Decoding everything would cost more
// than the server.
func dataOf(message []byte) []byte {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil
		}
		message = message[n:]
		if number == 1 && kind == protowire.BytesType {
			data, _ := protowire.ConsumeBytes(message)
			return data
		}
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return nil
		}
		message = message[n:]
	}
	return nil
}

// begin returns the sink of a turn. l records its events.
func (s *sinks) begin(ctx context.Context, kind string, l *ledger) (*sink, error) {
	s.ledger.Store(l)
	k := &sink{kind: kind, server: s.server, ledger: l, kafkas: s.kafkas}
	if s.kafkas[kind] != "" {
		s.topics++
		k.topic = fmt.Sprintf("turn-%d", s.topics)
		return k, s.kafkas.create(ctx, kind, k.topic)
	}
	if kind != sinkPubSub && kind != sinkDefaults {
		return k, nil
	}
	s.topics++
	client, err := s.server.Client(ctx, project)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	k.topic = fmt.Sprintf("projects/%s/topics/turn-%d", project, s.topics)
	if _, err := client.TopicAdminClient.CreateTopic(ctx, &pubsubpb.Topic{Name: k.topic}); err != nil {
		return nil, fmt.Errorf("create topic: %w", err)
	}
	return k, nil
}

const project = "bench"

// sink receives the events of one turn.
type sink struct {
	kind   string
	server *pubsublocal.Server
	topic  string
	ledger *ledger
	kafkas kafkas
}

// sender sends the events of one instance of a peer. It is safe for concurrent use.
type sender struct {
	sink   *sink
	client *pubsub.Client
	topic  *pubsub.Publisher
}

func (k *sink) sender(ctx context.Context) (*sender, error) {
	s := &sender{sink: k}
	if k.topic == "" {
		return s, nil
	}
	var err error
	if s.client, err = k.server.Client(ctx, project); err != nil {
		return nil, err
	}
	s.topic = s.client.Publisher(k.topic)
	s.topic.EnableMessageOrdering = true
	if k.kind == sinkPubSub {
		s.topic.PublishSettings.CountThreshold = 1 // a peer that waits for each message must not wait for a full request
	}
	return s, nil
}

// send sends an event and waits for the response.
func (s *sender) send(ctx context.Context, payload []byte) error {
	if s.topic != nil {
		aggregate, version := header(payload)
		m := envelope.Message{ // every peer sends the attributes that a consumer needs
			AggregateType: event.AggregateVideo, AggregateID: strconv.FormatInt(aggregate, 10), Type: "VideoUpdated", Version: version,
			SchemaVersion: event.VideoSchemaVersion, OccurredAt: time.Now(),
		}
		_, err := s.topic.Publish(ctx, &pubsub.Message{Data: payload, OrderingKey: m.AggregateID, Attributes: m.Attributes()}).Get(ctx)
		return err
	}
	s.sink.ledger.see(payload)
	if s.sink.kind == sinkSlow {
		time.Sleep(slowDelay)
	}
	return nil
}

func (s *sender) close() error {
	if s.client == nil {
		return nil
	}
	s.topic.Stop()
	return s.client.Close()
}

// broker returns the sink as a broker for our publisher, and a function that closes it.
func (k *sink) broker(ctx context.Context, inFlight int) (outbox.Broker, func() error, error) {
	if k.topic == "" {
		return noBroker{k}, func() error { return nil }, nil
	}
	if k.kafkas[k.kind] != "" {
		return k.kafkas.open(k.kind, k.topic, k.ledger)
	}
	client, err := k.server.Client(ctx, project)
	if err != nil {
		return nil, nil, err
	}
	reconnect.RetrySoon(client)
	topic := outbox.NewTopic(client.Publisher(k.topic), 4*time.Second, inFlight)
	return topic, func() error { topic.Stop(); return client.Close() }, nil
}

// noBroker acknowledges every message, after the delay of the sink.
type noBroker struct{ sink *sink }

func (b noBroker) Publish(m envelope.Message) outbox.Receipt {
	b.sink.ledger.see(m.Payload)
	if b.sink.kind == sinkSlow {
		return slowReceipt(time.Now().Add(slowDelay))
	}
	return slowReceipt{}
}

type slowReceipt time.Time

func (r slowReceipt) Wait(context.Context) error {
	if at := time.Time(r); !at.IsZero() {
		time.Sleep(time.Until(at))
	}
	return nil
}
