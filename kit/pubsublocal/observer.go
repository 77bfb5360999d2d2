package pubsublocal

import "strconv"

// EventKind is the kind of an [Event].
type EventKind uint8

// The kinds of events.
const (
	Published    EventKind = iota + 1 // a topic has accepted the message
	Delivered                         // a subscriber has the lease; it may not have received the message yet
	Acked                             // a subscriber has acknowledged it, with effect
	Nacked                            // a subscriber has sent a nack, with effect
	Expired                           // the ack deadline has passed
	DeadLettered                      // the message was published to the dead-letter topic
)

// Event is something that happened to a message.
type Event struct {
	Kind         EventKind
	Topic        string // full name
	Subscription string // full name; empty for Published
	MessageID    string
	OrderingKey  string
	// Message is the google.pubsub.v1.PubsubMessage in its wire format. It must not be changed.
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
