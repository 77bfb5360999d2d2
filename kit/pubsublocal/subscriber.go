package pubsublocal

import (
	"context"
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// subscriberService implements google.pubsub.v1.Subscriber.
type subscriberService struct {
	pubsubpb.UnimplementedSubscriberServer

	server *Server
}

// CreateSubscription implements google.pubsub.v1.Subscriber.
func (p *subscriberService) CreateSubscription(ctx context.Context, r *pubsubpb.Subscription) (*pubsubpb.Subscription, error) {
	s := p.server
	cfg := proto.CloneOf(r)
	if cfg.GetName() == "" {
		name, err := s.madeName(subscriptions, topics, cfg.GetTopic())
		if err != nil {
			return nil, err
		}
		cfg.Name = name
	}
	if _, _, err := parseName(subscriptions, cfg.GetName()); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.subscriptions.get(cfg.GetName()) != nil {
		return nil, alreadyExists("subscription", cfg.GetName())
	}
	if err := checkReference(topics, cfg.GetTopic()); err != nil {
		return nil, err
	}
	if err := normalizeSubscription(cfg); err != nil {
		return nil, err
	}
	t := s.topics.get(cfg.GetTopic())
	if t == nil {
		return nil, notFound("topic", cfg.GetTopic())
	}
	if err := s.checkDeadLetterTopic(cfg); err != nil {
		return nil, err
	}
	f, err := parseFilter(cfg.GetFilter())
	if err != nil {
		return nil, err
	}
	if cfg.GetPushConfig().GetPushEndpoint() != "" {
		s.log.WarnContext(ctx, "pubsublocal: push delivery is not modeled: nothing will be pushed", "subscription", cfg.GetName())
	}
	sub := newSubscription(t, cfg, f)
	s.subscriptions.set(sub.name, sub)
	written := s.journal.subscription(sub)
	t.attach(sub)
	return sub.config(), written.wait()
}

// checkDeadLetterTopic returns an error if the dead-letter topic does not exist. It is called with
// s.mu held.
func (s *Server) checkDeadLetterTopic(cfg *pubsubpb.Subscription) error {
	policy := cfg.GetDeadLetterPolicy()
	if policy == nil {
		return nil
	}
	if err := checkReference(topics, policy.GetDeadLetterTopic()); err != nil {
		return err
	}
	if s.topics.get(policy.GetDeadLetterTopic()) == nil {
		return notFound("dead-letter topic", policy.GetDeadLetterTopic())
	}
	return nil
}

// UpdateSubscription implements google.pubsub.v1.Subscriber.
func (p *subscriberService) UpdateSubscription(_ context.Context, r *pubsubpb.UpdateSubscriptionRequest) (*pubsubpb.Subscription, error) {
	if err := checkReference(subscriptions, r.GetSubscription().GetName()); err != nil {
		return nil, err
	}
	s := p.server
	s.mu.Lock()
	defer s.mu.Unlock()
	sub := s.subscriptions.get(r.GetSubscription().GetName())
	if sub == nil {
		return nil, notFound("subscription", r.GetSubscription().GetName())
	}
	if err := sub.update(func(current *pubsubpb.Subscription) (*pubsubpb.Subscription, error) {
		cfg, err := patchSubscription(current, r)
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
	return sub.config(), s.journal.subscription(sub).wait()
}

// ModifyPushConfig implements google.pubsub.v1.Subscriber.
func (p *subscriberService) ModifyPushConfig(_ context.Context, r *pubsubpb.ModifyPushConfigRequest) (*emptypb.Empty, error) {
	sub, err := p.find(r.GetSubscription())
	if err != nil {
		return nil, err
	}
	if err := sub.update(func(current *pubsubpb.Subscription) (*pubsubpb.Subscription, error) {
		return patchSubscription(current, &pubsubpb.UpdateSubscriptionRequest{
			Subscription: &pubsubpb.Subscription{PushConfig: r.GetPushConfig()},
			UpdateMask:   &fieldmaskpb.FieldMask{Paths: []string{"push_config"}},
		})
	}); err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, p.server.journal.subscription(sub).wait()
}

// GetSubscription implements google.pubsub.v1.Subscriber.
func (p *subscriberService) GetSubscription(_ context.Context, r *pubsubpb.GetSubscriptionRequest) (*pubsubpb.Subscription, error) {
	sub, err := p.find(r.GetSubscription())
	if err != nil {
		return nil, err
	}
	sub.touch()
	return sub.config(), nil
}

// ListSubscriptions implements google.pubsub.v1.Subscriber.
func (p *subscriberService) ListSubscriptions(_ context.Context, r *pubsubpb.ListSubscriptionsRequest) (*pubsubpb.ListSubscriptionsResponse, error) {
	found, next, err := list(&p.server.subscriptions, r.GetProject(), r.GetPageSize(), r.GetPageToken())
	if err != nil {
		return nil, err
	}
	response := &pubsubpb.ListSubscriptionsResponse{NextPageToken: next}
	for _, sub := range found {
		response.Subscriptions = append(response.Subscriptions, sub.config())
	}
	return response, nil
}

// DeleteSubscription implements google.pubsub.v1.Subscriber.
func (p *subscriberService) DeleteSubscription(_ context.Context, r *pubsubpb.DeleteSubscriptionRequest) (*emptypb.Empty, error) {
	if err := checkReference(subscriptions, r.GetSubscription()); err != nil {
		return nil, err
	}
	s := p.server
	s.mu.Lock()
	defer s.mu.Unlock()
	sub := s.subscriptions.get(r.GetSubscription())
	if sub == nil {
		return nil, notFound("subscription", r.GetSubscription())
	}
	return &emptypb.Empty{}, s.deleteSubscription(sub).wait()
}

// deleteSubscription deletes a subscription. It is called with s.mu held.
func (s *Server) deleteSubscription(sub *subscription) *commit {
	s.subscriptions.remove(sub.name)
	sub.topic.remove(sub)
	sub.close(notFound("subscription", sub.name))
	return s.journal.deleted(sub.name)
}

// detach detaches the subscription from its topic, and drops its messages. It cannot be undone.
func (s *subscription) detach() {
	s.mu.Lock()
	cfg := proto.CloneOf(s.cfg)
	cfg.Detached = true
	s.cfg = cfg
	s.mu.Unlock()
	s.close(status.Errorf(codes.FailedPrecondition, "The subscription is detached from its topic (resource=%s).", s.name))
}

func (s *subscription) touch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.use() // no error here: a detached subscription can be read, too
}

// Acknowledge implements google.pubsub.v1.Subscriber.
func (p *subscriberService) Acknowledge(_ context.Context, r *pubsubpb.AcknowledgeRequest) (*emptypb.Empty, error) {
	sub, err := p.find(r.GetSubscription())
	if err != nil {
		return nil, err
	}
	if err := checkAnswer(r, len(r.GetAckIds())); err != nil {
		return nil, err
	}
	result, err := sub.acknowledgeAll(r.GetAckIds())
	if err != nil {
		return nil, err
	}
	if err := result.written.wait(); err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, result.err()
}

// ModifyAckDeadline implements google.pubsub.v1.Subscriber.
func (p *subscriberService) ModifyAckDeadline(_ context.Context, r *pubsubpb.ModifyAckDeadlineRequest) (*emptypb.Empty, error) {
	sub, err := p.find(r.GetSubscription())
	if err != nil {
		return nil, err
	}
	if err := checkAnswer(r, len(r.GetAckIds())); err != nil {
		return nil, err
	}
	if err := checkDeadline(r.GetAckDeadlineSeconds()); err != nil {
		return nil, err
	}
	result, err := sub.modifyAll(r.GetAckIds(), func(int) int32 { return r.GetAckDeadlineSeconds() })
	if err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, result.err()
}

func checkAnswer(r proto.Message, ids int) error {
	if ids == 0 {
		return status.Error(codes.InvalidArgument, "ack_ids must not be empty.")
	}
	return checkAckRequest(proto.Size(r))
}

func checkDeadline(seconds int32) error {
	if seconds < 0 || seconds > 600 {
		return status.Errorf(codes.InvalidArgument, "An ack deadline must be from 0 to 600 seconds, not %d.", seconds)
	}
	return nil
}

// CreateSnapshot implements google.pubsub.v1.Subscriber.
func (p *subscriberService) CreateSnapshot(_ context.Context, r *pubsubpb.CreateSnapshotRequest) (*pubsubpb.Snapshot, error) {
	s := p.server
	name := r.GetName()
	if name == "" {
		made, err := s.madeName(snapshots, subscriptions, r.GetSubscription())
		if err != nil {
			return nil, err
		}
		name = made
	}
	if _, _, err := parseName(snapshots, name); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.snapshots.get(name) != nil {
		return nil, alreadyExists("snapshot", name)
	}
	if err := checkReference(subscriptions, r.GetSubscription()); err != nil {
		return nil, err
	}
	if err := checkLabels(r.GetLabels()); err != nil {
		return nil, err
	}
	sub := s.subscriptions.get(r.GetSubscription())
	if sub == nil {
		return nil, notFound("subscription", r.GetSubscription())
	}
	const life, shortest = 7 * 24 * time.Hour, time.Hour
	snap, err := sub.snap(&pubsubpb.Snapshot{Name: name, Labels: r.GetLabels()}, func(oldest time.Time) (time.Time, error) {
		end := oldest.Add(life)
		if end.Before(s.clock.Now().Add(shortest)) {
			return time.Time{}, status.Error(codes.FailedPrecondition, "The snapshot would expire in less than an hour: the oldest unacknowledged message of the subscription is too old.")
		}
		return end, nil
	})
	if err != nil {
		return nil, err
	}
	snap.timer = s.clock.newTimer(func() { s.expireSnapshot(snap) })
	snap.timer.set(snap.expires)
	s.snapshots.set(name, snap)
	return snap.config(), s.journal.snapshot(snap).wait()
}

func (s *Server) expireSnapshot(snap *snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.snapshots.get(snap.name) == snap && !snap.config().GetExpireTime().AsTime().After(s.clock.Now()) {
		s.deleteSnapshot(snap)
	}
}

// deleteSnapshot deletes a snapshot. It is called with s.mu held.
func (s *Server) deleteSnapshot(snap *snapshot) *commit {
	s.snapshots.remove(snap.name)
	snap.drop()
	return s.journal.deleted(snap.name)
}

// UpdateSnapshot implements google.pubsub.v1.Subscriber.
func (p *subscriberService) UpdateSnapshot(_ context.Context, r *pubsubpb.UpdateSnapshotRequest) (*pubsubpb.Snapshot, error) {
	if err := checkReference(snapshots, r.GetSnapshot().GetName()); err != nil {
		return nil, err
	}
	s := p.server
	s.mu.Lock()
	defer s.mu.Unlock()
	snap := s.snapshots.get(r.GetSnapshot().GetName())
	if snap == nil {
		return nil, notFound("snapshot", r.GetSnapshot().GetName())
	}
	snap.topic.mu.Lock()
	cfg, err := patchSnapshot(snap.cfg, r)
	if err == nil {
		snap.cfg, snap.expires = cfg, cfg.GetExpireTime().AsTime()
	}
	snap.topic.mu.Unlock()
	if err != nil {
		return nil, err
	}
	snap.timer.set(snap.expires)
	return snap.config(), s.journal.snapshot(snap).wait()
}

// GetSnapshot implements google.pubsub.v1.Subscriber.
func (p *subscriberService) GetSnapshot(_ context.Context, r *pubsubpb.GetSnapshotRequest) (*pubsubpb.Snapshot, error) {
	if err := checkReference(snapshots, r.GetSnapshot()); err != nil {
		return nil, err
	}
	snap, err := p.server.snapshot(r.GetSnapshot())
	if err != nil {
		return nil, err
	}
	return snap.config(), nil
}

// ListSnapshots implements google.pubsub.v1.Subscriber.
func (p *subscriberService) ListSnapshots(_ context.Context, r *pubsubpb.ListSnapshotsRequest) (*pubsubpb.ListSnapshotsResponse, error) {
	found, next, err := list(&p.server.snapshots, r.GetProject(), r.GetPageSize(), r.GetPageToken())
	if err != nil {
		return nil, err
	}
	response := &pubsubpb.ListSnapshotsResponse{NextPageToken: next}
	for _, snap := range found {
		response.Snapshots = append(response.Snapshots, snap.config())
	}
	return response, nil
}

// DeleteSnapshot implements google.pubsub.v1.Subscriber.
func (p *subscriberService) DeleteSnapshot(_ context.Context, r *pubsubpb.DeleteSnapshotRequest) (*emptypb.Empty, error) {
	if err := checkReference(snapshots, r.GetSnapshot()); err != nil {
		return nil, err
	}
	s := p.server
	s.mu.Lock()
	defer s.mu.Unlock()
	snap := s.snapshots.get(r.GetSnapshot())
	if snap == nil {
		return nil, notFound("snapshot", r.GetSnapshot())
	}
	return &emptypb.Empty{}, s.deleteSnapshot(snap).wait()
}

// Seek implements google.pubsub.v1.Subscriber.
func (p *subscriberService) Seek(_ context.Context, r *pubsubpb.SeekRequest) (*pubsubpb.SeekResponse, error) {
	sub, err := p.find(r.GetSubscription())
	if err != nil {
		return nil, err
	}
	var written *commit
	switch target := r.GetTarget().(type) {
	case *pubsubpb.SeekRequest_Time:
		if err := target.Time.CheckValid(); err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "time is not valid: %v", err)
		}
		written, err = sub.seekTime(target.Time.AsTime())
	case *pubsubpb.SeekRequest_Snapshot:
		if err := checkReference(snapshots, target.Snapshot); err != nil {
			return nil, err
		}
		snap, findErr := p.server.snapshot(target.Snapshot)
		if findErr != nil {
			return nil, findErr
		}
		if snap.topic != sub.topic {
			return nil, status.Errorf(codes.FailedPrecondition, "The snapshot %s belongs to another topic than the subscription %s.", target.Snapshot, sub.name)
		}
		written, err = sub.seekSnapshot(snap)
	default:
		return nil, status.Error(codes.InvalidArgument, "A seek needs a target: time or snapshot.")
	}
	if err != nil {
		return nil, err
	}
	return &pubsubpb.SeekResponse{}, written.wait()
}

func (p *subscriberService) find(name string) (*subscription, error) {
	if err := checkReference(subscriptions, name); err != nil {
		return nil, err
	}
	return p.server.subscription(name)
}

// madeName returns a new name in the project of another resource. It is used if a request has no
// name. [A7]
func (s *Server) madeName(c, of collection, reference string) (string, error) {
	project, _, ok := splitName(of, reference)
	if !ok {
		return "", checkReference(of, reference)
	}
	return fmt.Sprintf("projects/%s/%s/%s-%d", project, c, strings.TrimSuffix(string(c), "s"), s.lastID.Add(1)), nil
}
