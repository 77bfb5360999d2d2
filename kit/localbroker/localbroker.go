// Package localbroker creates the topics and subscriptions of a service in any Pub/Sub.
// For tests it also has a pubsublocal server that records the events of each message.
//
// It is not for production: there, deploy/ creates them.
package localbroker

import (
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/protobuf/proto"

	"example.com/servicekit/pubsublocal"
)

// Server is a running Pub/Sub that remembers every message. Its methods are safe for
// concurrent use.
type Server struct {
	*pubsublocal.Server

	mu       sync.Mutex
	messages []*Message          // guarded by mu: in the order in which they reached the server
	byID     map[string]*Message // guarded by mu
}

// Message is a message and the counts of its events.
type Message struct {
	ID          string
	Topic       string // full name
	OrderingKey string
	Attributes  map[string]string
	Data        []byte
	PublishTime time.Time
	// How often it was delivered, acknowledged and nacked, in all subscriptions together.
	Deliveries, Acks, Nacks int
}

// Start starts a server, in memory, on a free port.
func Start() (*Server, error) {
	s := &Server{byID: map[string]*Message{}}
	server, err := pubsublocal.Start(pubsublocal.Config{Observer: s.observe})
	if err != nil {
		return nil, err
	}
	s.Server = server
	return s, nil
}

func (s *Server) observe(e pubsublocal.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.byID[e.MessageID]
	switch e.Kind {
	case pubsublocal.Published:
		var published pubsubpb.PubsubMessage
		if err := proto.Unmarshal(e.Message, &published); err != nil {
			return // cannot happen: the server encoded it
		}
		m = &Message{
			ID: e.MessageID, Topic: e.Topic, OrderingKey: e.OrderingKey, Attributes: published.GetAttributes(),
			Data: published.GetData(), PublishTime: published.GetPublishTime().AsTime(),
		}
		s.messages = append(s.messages, m)
		s.byID[m.ID] = m
	case pubsublocal.Delivered:
		m.Deliveries++
	case pubsublocal.Acked:
		m.Acks++
	case pubsublocal.Nacked:
		m.Nacks++
	default:
	}
}

// Published returns every message that was ever published, in the order in which they
// reached the server. It includes the copies that the server itself publishes to the
// dead-letter topic; their Topic is that topic.
func (s *Server) Published() []Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	messages := make([]Message, len(s.messages))
	for i, m := range s.messages {
		messages[i] = *m
	}
	return messages
}
