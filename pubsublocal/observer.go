package pubsublocal

import (
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// EventKind says what happened to a message.
type EventKind uint8

// What happens to a message.
const (
	Published    EventKind = iota + 1 // by a topic
	Delivered                         // lent to a subscriber; it may not have it yet
	Acked                             // by a subscriber, with effect
	Nacked                            // by a subscriber, with effect
	Expired                           // its ack deadline passed
	DeadLettered                      // it is in the dead-letter topic
)

// Event is something that happened to a message.
type Event struct {
	Kind         EventKind
	Topic        string // full name
	Subscription string // full name; empty for Published
	MessageID    string
	OrderingKey  string
	// Message is the message in its wire format, google.pubsub.v1.PubsubMessage. It must not be changed.
	Message []byte
}

func (s *Server) observe(sub *subscription, kind EventKind, m *message) {
	if s.observer != nil {
		s.observer(Event{
			Kind: kind, Topic: sub.topic.name, Subscription: sub.name,
			MessageID: strconv.FormatUint(m.id, 10), OrderingKey: m.key.Value(), Message: m.encoded,
		})
	}
}

func (s *Server) observePublished(t *topic, messages []*message) {
	if s.observer == nil {
		return
	}
	for _, m := range messages {
		s.observer(Event{
			Kind: Published, Topic: t.name,
			MessageID: strconv.FormatUint(m.id, 10), OrderingKey: m.key.Value(), Message: m.encoded,
		})
	}
}

func unavailable(text string) error { return status.Error(codes.Unavailable, text) }
