package pubsublocal

import (
	"context"
	"strconv"
	"strings"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

// publisherService implements google.pubsub.v1.Publisher.
type publisherService struct {
	pubsubpb.UnimplementedPublisherServer

	server *Server
}

// CreateTopic implements google.pubsub.v1.Publisher.
func (p *publisherService) CreateTopic(_ context.Context, r *pubsubpb.Topic) (*pubsubpb.Topic, error) {
	if err := checkName(topics, r.GetName()); err != nil {
		return nil, err
	}
	cfg := proto.CloneOf(r)
	s := p.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.topics.get(r.GetName()) != nil {
		return nil, alreadyExists(r.GetName())
	}
	cfg.SatisfiesPzs = false // output only
	if err := completeTopic(cfg, ""); err != nil {
		return nil, err
	}
	if err := s.schemas.check(cfg.GetSchemaSettings()); err != nil {
		return nil, err
	}
	t := newTopic(s, cfg)
	s.topics.set(t.name, t)
	return t.config(), nil
}

// UpdateTopic implements google.pubsub.v1.Publisher.
func (p *publisherService) UpdateTopic(_ context.Context, r *pubsubpb.UpdateTopicRequest) (*pubsubpb.Topic, error) {
	if err := checkName(topics, r.GetTopic().GetName()); err != nil {
		return nil, err
	}
	s := p.server
	s.mu.Lock() // one update at a time
	defer s.mu.Unlock()
	t := s.topics.get(r.GetTopic().GetName())
	if t == nil {
		return nil, notFound(r.GetTopic().GetName())
	}
	t.mu.Lock()
	current := t.cfg
	t.mu.Unlock()
	cfg, err := patch(current, r.GetTopic(), r, mutableOfTopic, func(next *pubsubpb.Topic) error {
		return completeTopic(next, current.GetSchemaSettings().GetSchema())
	})
	if err != nil {
		return nil, err
	}
	if !proto.Equal(cfg.GetSchemaSettings(), current.GetSchemaSettings()) {
		if err := s.schemas.check(cfg.GetSchemaSettings()); err != nil {
			return nil, err
		}
	}
	t.setConfig(cfg)
	return t.config(), nil
}

// find returns the topic with that name.
func (p *publisherService) find(name string) (*topic, error) {
	if err := checkName(topics, name); err != nil {
		return nil, err
	}
	return p.server.topic(name)
}

// GetTopic implements google.pubsub.v1.Publisher.
func (p *publisherService) GetTopic(_ context.Context, r *pubsubpb.GetTopicRequest) (*pubsubpb.Topic, error) {
	t, err := p.find(r.GetTopic())
	if err != nil {
		return nil, err
	}
	return t.config(), nil
}

// ListTopics implements google.pubsub.v1.Publisher. All are on one page.
func (p *publisherService) ListTopics(_ context.Context, r *pubsubpb.ListTopicsRequest) (*pubsubpb.ListTopicsResponse, error) {
	found, err := p.server.topics.in(r.GetProject())
	if err != nil {
		return nil, err
	}
	response := &pubsubpb.ListTopicsResponse{}
	for _, t := range found {
		response.Topics = append(response.Topics, t.config())
	}
	return response, nil
}

// DeleteTopic implements google.pubsub.v1.Publisher.
func (p *publisherService) DeleteTopic(_ context.Context, r *pubsubpb.DeleteTopicRequest) (*emptypb.Empty, error) {
	if err := checkName(topics, r.GetTopic()); err != nil {
		return nil, err
	}
	s := p.server
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics.get(r.GetTopic())
	if t == nil {
		return nil, notFound(r.GetTopic())
	}
	s.topics.remove(t.name)
	t.close()
	return &emptypb.Empty{}, nil
}

// Publish implements google.pubsub.v1.Publisher.
func (p *publisherService) Publish(_ context.Context, r *pubsubpb.PublishRequest) (*pubsubpb.PublishResponse, error) {
	t, err := p.find(r.GetTopic())
	if err != nil {
		return nil, err
	}
	const maxBody = 10 << 20 // [B3]
	size := proto.Size(r)
	if size > maxBody {
		return nil, status.Errorf(codes.InvalidArgument, "Request payload size exceeds the limit: %d bytes.", maxBody)
	}
	if err := checkPublish(r, size); err != nil {
		return nil, err
	}
	t.mu.Lock()
	settings := t.cfg.GetSchemaSettings()
	t.mu.Unlock()
	drafts := make([]draft, len(r.GetMessages()))
	for i, m := range r.GetMessages() {
		if settings != nil {
			if err := p.server.stampSchema(settings, m); err != nil {
				return nil, err
			}
		}
		if drafts[i], err = newDraft(m); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
	}
	published, err := t.publish(drafts)
	if err != nil {
		return nil, err
	}
	response := &pubsubpb.PublishResponse{MessageIds: make([]string, len(published))}
	for i, m := range published {
		response.MessageIds[i] = strconv.FormatUint(m.id, 10)
	}
	return response, nil
}

// stampSchema validates a message against the schema of its topic. It adds
// attributes with the revision that matches. [M12, M13]
func (s *Server) stampSchema(settings *pubsubpb.SchemaSettings, m *pubsubpb.PubsubMessage) error {
	revision, err := s.schemas.validate(settings, m.GetData())
	if err != nil {
		return err
	}
	if m.Attributes == nil {
		m.Attributes = map[string]string{}
	}
	m.Attributes["googclient_schemaencoding"] = settings.GetEncoding().String()
	m.Attributes["googclient_schemaname"] = settings.GetSchema()
	m.Attributes["googclient_schemarevisionid"] = revision
	return nil
}

// deadLetterTopic returns the dead-letter topic, or nil if there is none or it
// was deleted.
func (s *subscription) deadLetterTopic() *topic {
	policy := s.cfg.GetDeadLetterPolicy()
	if policy == nil {
		return nil
	}
	t, err := s.server.topic(policy.GetDeadLetterTopic())
	if err != nil {
		return nil // [K9]
	}
	return t
}

// forward publishes a delivery to the dead-letter topic, and acknowledges it.
// It is called without a lock, because a topic is locked before its
// subscriptions.
func (s *subscription) forward(d *delivery) {
	s.mu.Lock()
	to, attempts, open := s.deadLetterTopic(), d.attempts, s.closed == nil
	s.mu.Unlock()
	if !open {
		return
	}
	sent := to != nil && s.copyTo(to, d.message, attempts) == nil
	s.mu.Lock()
	defer s.unlock()
	switch {
	case d.state != forwarding: // meanwhile a seek, the retention or a deletion removed it
	case sent:
		s.server.observe(s, DeadLettered, d.message)
		s.acknowledge(d)
		if d.state == acked {
			d.state = buried // so that it is not delivered again if an earlier one of its key fails [K4]
		}
	default: // the dead-letter topic was deleted meanwhile
		s.putBack(d)
	}
}

func (s *subscription) copyTo(to *topic, m *message, attempts int32) error {
	letter, err := m.decode()
	if err != nil {
		return err
	}
	segments := strings.Split(s.name, "/") // projects/{project}/subscriptions/{id}
	if letter.Attributes == nil {
		letter.Attributes = map[string]string{}
	}
	for name, value := range map[string]string{
		"DeliveryCount":       strconv.Itoa(int(attempts)),
		"Subscription":        segments[3],
		"SubscriptionProject": segments[1],
		"TopicPublishTime":    m.publishTime().Format("2006-01-02T15:04:05.000-07:00"),
	} {
		letter.Attributes["CloudPubSubDeadLetterSource"+name] = value
	}
	d, err := newDraft(letter)
	if err != nil {
		return err
	}
	_, err = to.publish([]draft{d})
	return err
}
