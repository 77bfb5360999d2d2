package localpubsub

import (
	"context"
	"io"
	"strings"
	"sync"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/grpc"
)

// leases knows which messages are lent over which stream. When a stream ends, what was lent over it is deliverable at
// once, as with the real service; the fake alone would wait for the ack deadline. Under exactly-once delivery it does
// so rightly: there leases outlive streams.
type leases struct {
	fake *pstest.GServer

	mu    sync.Mutex
	lent  map[lease]*lender // guarded by mu
	nacks map[string]int    // guarded by mu: by message id
}

// lease is one delivery of a message. Ack ids of the fake are unique in a subscription only.
type lease struct{ subscription, ackID string }

// unary notes acks and nacks on their way to the fake.
func (l *leases) unary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	response, err := handler(ctx, request)
	if err != nil {
		return nil, err
	}
	switch r := request.(type) {
	case *pubsubpb.AcknowledgeRequest:
		l.ended(r.GetSubscription(), r.GetAckIds(), false)
	case *pubsubpb.ModifyAckDeadlineRequest:
		if r.GetAckDeadlineSeconds() == 0 {
			l.ended(r.GetSubscription(), r.GetAckIds(), true)
		}
	}
	return response, nil
}

func (l *leases) ended(subscription string, ackIDs []string, nacked bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ackIDs {
		delete(l.lent, lease{subscription, id})
		if nacked {
			message, _, _ := strings.Cut(id, ":")
			l.nacks[message]++
		}
	}
}

func (l *leases) nackCount(messageID string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.nacks[messageID]
}

func (l *leases) stream(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	s := &lender{ServerStream: stream, leases: l}
	err := handler(server, s)
	s.end()
	return err
}

// lender is a stream that messages are lent over.
type lender struct {
	grpc.ServerStream
	leases       *leases
	subscription string // set by the first request, before anything is lent

	// sending is held while a message is written, because the fake writes it from the same memory in which it changes
	// it before the next delivery.
	sending sync.Mutex
	over    bool // guarded by sending
}

// RecvMsg implements grpc.ServerStream.
func (s *lender) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if request, ok := m.(*pubsubpb.StreamingPullRequest); ok && err == nil && request.GetSubscription() != "" {
		s.subscription = request.GetSubscription()
	}
	return err
}

// SendMsg implements grpc.ServerStream.
func (s *lender) SendMsg(m any) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	response, ok := m.(*pubsubpb.StreamingPullResponse)
	if ok && !response.GetSubscriptionProperties().GetExactlyOnceDeliveryEnabled() {
		var ackIDs []string
		for _, received := range response.GetReceivedMessages() {
			ackIDs = append(ackIDs, received.GetAckId())
		}
		if s.over { // the fake does not know yet
			s.takeBack(ackIDs)
			return io.EOF
		}
		s.lend(ackIDs)
	}
	return s.ServerStream.SendMsg(m)
}

func (s *lender) lend(ackIDs []string) {
	s.leases.mu.Lock()
	defer s.leases.mu.Unlock()
	for _, id := range ackIDs {
		s.leases.lent[lease{s.subscription, id}] = s
	}
}

func (s *lender) end() {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.over = true
	s.leases.mu.Lock()
	var ackIDs []string
	for lease, lender := range s.leases.lent {
		if lender == s {
			delete(s.leases.lent, lease)
			ackIDs = append(ackIDs, lease.ackID)
		}
	}
	s.leases.mu.Unlock()
	s.takeBack(ackIDs)
}

func (s *lender) takeBack(ackIDs []string) {
	if len(ackIDs) > 0 {
		// An error means that the subscription is gone, and the messages with it.
		_, _ = s.leases.fake.ModifyAckDeadline(context.Background(), &pubsubpb.ModifyAckDeadlineRequest{
			Subscription: s.subscription, AckIds: ackIDs,
		})
	}
}
