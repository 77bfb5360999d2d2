// Package localbroker has the topics and subscriptions of the service, created in whatever Pub/Sub, and for tests a
// pubsublocal server that remembers what became of each message.
//
// It is not for production: there, deploy/ creates them.
package localbroker

import (
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/protobuf/proto"

	"example.com/videocatalog/pubsublocal"
)

// Server is a running Pub/Sub that remembers every message. Its methods may be called from several goroutines.
type Server struct {
	*pubsublocal.Server

	mu       sync.Mutex
	messages []*Message          // guarded by mu: in the order in which they reached the server
	byID     map[string]*Message // guarded by mu
}

// Message is a message, and what became of it.
type Message struct {
	ID          string
	Topic       string // full name
	OrderingKey string
	Attributes  map[string]string
	Data        []byte
	PublishTime time.Time
	// Of all subscriptions together: how often it was delivered, acknowledged and nacked.
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
			return // the server has made it
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

// Published returns all messages that were ever published, in the order in which they reached the server. The copies
// in the dead-letter topic, which the server itself publishes, have that topic.
func (s *Server) Published() []Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	messages := make([]Message, len(s.messages))
	for i, m := range s.messages {
		messages[i] = *m
	}
	return messages
}
