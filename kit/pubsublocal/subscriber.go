package pubsublocal

import (
	"context"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

// subscriberService implements google.pubsub.v1.Subscriber.
type subscriberService struct {
	pubsubpb.UnimplementedSubscriberServer

	server *Server
}

// CreateSubscription implements google.pubsub.v1.Subscriber.
func (p *subscriberService) CreateSubscription(_ context.Context, r *pubsubpb.Subscription) (*pubsubpb.Subscription, error) {
	s := p.server
	cfg := proto.CloneOf(r)
	if err := checkName(subscriptions, cfg.GetName()); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.subscriptions.get(cfg.GetName()) != nil {
		return nil, alreadyExists(cfg.GetName())
	}
	if err := checkName(topics, cfg.GetTopic()); err != nil {
		return nil, err
	}
	if err := normalizeSubscription(cfg); err != nil {
		return nil, err
	}
	t := s.topics.get(cfg.GetTopic())
	if t == nil {
		return nil, notFound(cfg.GetTopic())
	}
	if err := s.checkDeadLetterTopic(cfg); err != nil {
		return nil, err
	}
	sub := newSubscription(t, cfg)
	s.subscriptions.set(sub.name, sub)
	t.attach(sub)
	return sub.config(), nil
}

// checkDeadLetterTopic returns an error if the dead-letter topic does not exist. It is called with
// s.mu held.
func (s *Server) checkDeadLetterTopic(cfg *pubsubpb.Subscription) error {
	policy := cfg.GetDeadLetterPolicy()
	if policy == nil {
		return nil
	}
	if err := checkName(topics, policy.GetDeadLetterTopic()); err != nil {
		return err
	}
	if s.topics.get(policy.GetDeadLetterTopic()) == nil {
		return notFound(policy.GetDeadLetterTopic())
	}
	return nil
}

// UpdateSubscription implements google.pubsub.v1.Subscriber.
func (p *subscriberService) UpdateSubscription(_ context.Context, r *pubsubpb.UpdateSubscriptionRequest) (*pubsubpb.Subscription, error) {
	if err := checkName(subscriptions, r.GetSubscription().GetName()); err != nil {
		return nil, err
	}
	s := p.server
	s.mu.Lock()
	defer s.mu.Unlock()
	sub := s.subscriptions.get(r.GetSubscription().GetName())
	if sub == nil {
		return nil, notFound(r.GetSubscription().GetName())
	}
	if err := sub.update(func(current *pubsubpb.Subscription) (*pubsubpb.Subscription, error) {
		cfg, err := patch(current, r.GetSubscription(), r, mutableOfSubscription, func(next *pubsubpb.Subscription) error {
			return completeSubscription(next, current.GetDeadLetterPolicy().GetDeadLetterTopic())
		})
		if err != nil {
			return nil, err
		}
		if !proto.Equal(cfg.GetDeadLetterPolicy(), current.GetDeadLetterPolicy()) {
			if err := s.checkDeadLetterTopic(cfg); err != nil {
				return nil, err
			}
		}
		return cfg, nil
	}); err != nil {
		return nil, err
	}
	return sub.config(), nil
}

// GetSubscription implements google.pubsub.v1.Subscriber.
func (p *subscriberService) GetSubscription(_ context.Context, r *pubsubpb.GetSubscriptionRequest) (*pubsubpb.Subscription, error) {
	sub, err := p.find(r.GetSubscription())
	if err != nil {
		return nil, err
	}
	return sub.config(), nil
}

// ListSubscriptions implements google.pubsub.v1.Subscriber. All are on one page.
func (p *subscriberService) ListSubscriptions(_ context.Context, r *pubsubpb.ListSubscriptionsRequest) (*pubsubpb.ListSubscriptionsResponse, error) {
	found, err := p.server.subscriptions.in(r.GetProject())
	if err != nil {
		return nil, err
	}
	response := &pubsubpb.ListSubscriptionsResponse{}
	for _, sub := range found {
		response.Subscriptions = append(response.Subscriptions, sub.config())
	}
	return response, nil
}

// DeleteSubscription implements google.pubsub.v1.Subscriber.
func (p *subscriberService) DeleteSubscription(_ context.Context, r *pubsubpb.DeleteSubscriptionRequest) (*emptypb.Empty, error) {
	if err := checkName(subscriptions, r.GetSubscription()); err != nil {
		return nil, err
	}
	s := p.server
	s.mu.Lock()
	defer s.mu.Unlock()
	sub := s.subscriptions.get(r.GetSubscription())
	if sub == nil {
		return nil, notFound(r.GetSubscription())
	}
	s.subscriptions.remove(sub.name)
	sub.topic.remove(sub)
	sub.close(notFound(sub.name))
	return &emptypb.Empty{}, nil
}

// Acknowledge implements google.pubsub.v1.Subscriber.
func (p *subscriberService) Acknowledge(_ context.Context, r *pubsubpb.AcknowledgeRequest) (*emptypb.Empty, error) {
	sub, err := p.find(r.GetSubscription())
	if err != nil {
		return nil, err
	}
	if err := checkAck(r, len(r.GetAckIds())); err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, sub.acknowledgeAll(r.GetAckIds())
}

// ModifyAckDeadline implements google.pubsub.v1.Subscriber.
func (p *subscriberService) ModifyAckDeadline(_ context.Context, r *pubsubpb.ModifyAckDeadlineRequest) (*emptypb.Empty, error) {
	sub, err := p.find(r.GetSubscription())
	if err != nil {
		return nil, err
	}
	if err := checkAck(r, len(r.GetAckIds())); err != nil {
		return nil, err
	}
	if err := checkDeadline(r.GetAckDeadlineSeconds()); err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, sub.modifyAll(r.GetAckIds(), func(int) int32 { return r.GetAckDeadlineSeconds() })
}

func checkAck(r proto.Message, ids int) error {
	switch {
	case ids == 0:
		return status.Error(codes.InvalidArgument, "ack_ids must not be empty.")
	case proto.Size(r) > maxAckRequestSize: // H10
		return status.Errorf(codes.InvalidArgument, "Request payload size exceeds the limit: %d bytes.", maxAckRequestSize)
	}
	return nil
}

func checkDeadline(seconds int32) error {
	if seconds < 0 || seconds > 600 {
		return status.Errorf(codes.InvalidArgument, "An ack deadline must be from 0 to 600 seconds, not %d.", seconds)
	}
	return nil
}

// Seek implements google.pubsub.v1.Subscriber.
func (p *subscriberService) Seek(_ context.Context, r *pubsubpb.SeekRequest) (*pubsubpb.SeekResponse, error) {
	sub, err := p.find(r.GetSubscription())
	if err != nil {
		return nil, err
	}
	if err := checkUnimplemented(r, "snapshot"); err != nil {
		return nil, err
	}
	if err := r.GetTime().CheckValid(); err != nil { // nil is not valid, either [L1]
		return nil, status.Errorf(codes.InvalidArgument, "time is not valid: %v", err)
	}
	return &pubsubpb.SeekResponse{}, sub.seekTime(r.GetTime().AsTime())
}

func (p *subscriberService) find(name string) (*subscription, error) {
	if err := checkName(subscriptions, name); err != nil {
		return nil, err
	}
	return p.server.subscription(name)
}
