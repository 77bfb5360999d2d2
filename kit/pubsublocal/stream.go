package pubsublocal

import (
	"context"
	"errors"
	"io"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// streamLifetime is the time after which the server ends a StreamingPull.
const streamLifetime = 30 * time.Minute

// stream is an open StreamingPull, or a waiting Pull. The lock of the
// subscription guards the fields that change.
type stream struct {
	pull        bool // it is a Pull, which returns after its first messages
	protocol    int64
	maxMessages int // 0: no limit
	maxBytes    int // 0: no limit
	ackDeadline time.Duration
	outstanding int
	bytes       int      // size of the outstanding messages
	out         []posted // to be sent
	ping        bool     // a response must be sent, even if there are no messages
	closing     bool     // no more deliveries: the client has half-closed, or the stream has ended
	ended       bool     // no longer part of the subscription
	err         error    // why the stream ended

	wake chan struct{} // capacity 1: there may be something to send
	over chan struct{} // closed when err is set
}

// posted is a delivery that will be sent, unless its lease ends before.
type posted struct {
	delivery *delivery
	lease    uint64
}

// current reports whether the stream still has the lease.
func (p posted) current(st *stream) bool {
	d := p.delivery
	return d.state == leased && d.lease == p.lease && d.stream == st
}

func (st *stream) hasCredit() bool {
	return !st.closing && (st.maxMessages == 0 || st.outstanding < st.maxMessages) && (st.maxBytes == 0 || st.bytes < st.maxBytes)
}

func (st *stream) notify() {
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

// end ends the stream with an error.
func (st *stream) end(why error) {
	if st.err == nil {
		st.err = why
		close(st.over)
	}
	st.closing, st.ended = true, true
	st.notify()
}

// take returns the next response, of about 1 MB at most. ok is false if there
// is nothing to send.
func (s *subscription) take(st *stream) (response encoded, ok bool) {
	const maxParcels, maxSize = 1000, 1 << 20
	s.mu.Lock()
	var parcels []parcel
	size, n := 0, 0
	for ; n < len(st.out) && len(parcels) < maxParcels && size < maxSize; n++ {
		p := st.out[n]
		if d := p.delivery; p.current(st) { // otherwise it was delivered elsewhere meanwhile [G23]
			if len(parcels) > 0 && size+len(d.message.encoded) > maxSize {
				break
			}
			parcels = append(parcels, parcel{ackID: s.ackID(p.lease), message: d.message, attempt: s.attempt(d)})
			size += len(d.message.encoded)
		}
	}
	clear(st.out[:n]) // for the garbage collector
	if st.out = st.out[n:]; len(st.out) == 0 {
		st.out = nil
	}
	rest := s.properties()
	ok = len(parcels) > 0 || st.ping
	st.ping = false
	s.mu.Unlock()
	return encodeParcels(parcels, rest), ok
}

// properties returns the fields that every response must have. A client reads
// a missing field as false. [G12]
func (s *subscription) properties() encoded {
	b, _ := proto.Marshal(&pubsubpb.StreamingPullResponse{SubscriptionProperties: &pubsubpb.StreamingPullResponse_SubscriptionProperties{
		MessageOrderingEnabled: s.cfg.GetEnableMessageOrdering(),
	}}) // cannot fail: it has no string
	return b
}

// StreamingPull implements google.pubsub.v1.Subscriber.
func (p *subscriberService) StreamingPull(g pubsubpb.Subscriber_StreamingPullServer) error {
	first, err := g.Recv()
	if errors.Is(err, io.EOF) {
		return status.Error(codes.InvalidArgument, "The first request of a stream must name a subscription.")
	}
	if err != nil {
		return err
	}
	if err := checkName(subscriptions, first.GetSubscription()); err != nil {
		return err
	}
	if seconds := first.GetStreamAckDeadlineSeconds(); seconds < 10 || seconds > 600 {
		return status.Errorf(codes.InvalidArgument, "stream_ack_deadline_seconds must be from 10 to 600 in the first request, not %d.", seconds)
	}
	sub, err := p.server.subscription(first.GetSubscription())
	if err != nil {
		return err
	}
	st := &stream{
		protocol:    first.GetProtocolVersion(),
		maxMessages: int(max(0, first.GetMaxOutstandingMessages())), maxBytes: int(max(0, first.GetMaxOutstandingBytes())),
		ackDeadline: time.Duration(first.GetStreamAckDeadlineSeconds()) * time.Second,
		wake:        make(chan struct{}, 1), over: make(chan struct{}),
	}
	if err := sub.open(st); err != nil {
		return err
	}
	defer sub.shut(st)
	if len(first.GetAckIds()) > 0 || len(first.GetModifyDeadlineAckIds()) > 0 {
		if err := sub.handleRequest(st, first); err != nil {
			return err
		}
	}
	lifetime := p.server.clock.newTimer(func() {
		sub.mu.Lock()
		defer sub.mu.Unlock()
		st.end(status.Error(codes.Unavailable,
			"The StreamingPull stream closed for an expected reason and should be recreated, which is done automatically if using the client libraries."))
	})
	lifetime.set(p.server.clock.Now().Add(streamLifetime))
	defer lifetime.set(time.Time{})
	received := make(chan error, 1)
	go func() { received <- sub.receive(st, g) }() // it ends when this method returns, because Recv then returns
	return sub.send(st, g, received)
}

// send sends responses until the stream ends.
func (s *subscription) send(st *stream, g pubsubpb.Subscriber_StreamingPullServer, received <-chan error) error {
	for {
		for {
			response, ok := s.take(st)
			if !ok {
				break
			}
			sent := make(chan error, 1)
			go func() { sent <- g.SendMsg(response) }() // it ends when this method returns, even if the client does not read
			select {
			case err := <-sent:
				if err != nil {
					return err
				}
			case <-st.over:
			}
			if s.why(st) != nil {
				break
			}
		}
		if why := s.why(st); why != nil {
			return why
		}
		s.mu.Lock()
		closing := st.closing && len(st.out) == 0
		s.mu.Unlock()
		if closing {
			return nil // the client has half-closed, and has received all deliveries [G15]
		}
		select {
		case <-g.Context().Done():
			return status.FromContextError(g.Context().Err()).Err()
		case <-st.wake:
		case err := <-received:
			if err != nil {
				return err
			}
			received = nil
		}
	}
}

// why returns the error that the stream ended with, or nil if it has not ended.
func (s *subscription) why(st *stream) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return st.err
}

// receive handles the requests of the client. It returns nil when the client
// half-closes.
func (s *subscription) receive(st *stream, g pubsubpb.Subscriber_StreamingPullServer) error {
	for {
		r, err := g.Recv()
		if errors.Is(err, io.EOF) {
			s.mu.Lock()
			st.closing = true
			st.notify()
			s.mu.Unlock()
			return nil
		}
		if err != nil {
			return err
		}
		for field, set := range map[string]bool{
			"subscription": r.GetSubscription() != "", "max_outstanding_messages": r.GetMaxOutstandingMessages() != 0,
			"max_outstanding_bytes": r.GetMaxOutstandingBytes() != 0, "protocol_version": r.GetProtocolVersion() != 0,
		} {
			if set {
				return status.Errorf(codes.InvalidArgument, "%s may be set only in the first request of a stream.", field)
			}
		}
		if err := s.handleRequest(st, r); err != nil {
			return err
		}
	}
}

// handleRequest handles a request on a stream: acks, new deadlines, or a ping.
func (s *subscription) handleRequest(st *stream, r *pubsubpb.StreamingPullRequest) error {
	switch seconds := r.GetStreamAckDeadlineSeconds(); {
	case seconds == 0:
	case seconds < 10 || seconds > 600:
		return status.Errorf(codes.InvalidArgument, "stream_ack_deadline_seconds must be from 10 to 600, not %d.", seconds)
	default:
		s.mu.Lock()
		st.ackDeadline = time.Duration(seconds) * time.Second
		s.mu.Unlock()
	}
	deadlines, deadlineIDs := r.GetModifyDeadlineSeconds(), r.GetModifyDeadlineAckIds()
	if len(deadlines) != len(deadlineIDs) {
		return status.Errorf(codes.InvalidArgument, "modify_deadline_seconds and modify_deadline_ack_ids must have the same length, not %d and %d.", len(deadlines), len(deadlineIDs))
	}
	for _, seconds := range deadlines {
		if err := checkDeadline(seconds); err != nil {
			return err
		}
	}
	if len(r.GetAckIds()) == 0 && len(deadlineIDs) == 0 && st.protocol >= 1 { // a ping [G13]
		s.mu.Lock()
		st.ping = true
		st.notify()
		s.mu.Unlock()
	}
	if err := s.modifyAll(deadlineIDs, func(i int) int32 { return deadlines[i] }); err != nil {
		return err
	}
	return s.acknowledgeAll(r.GetAckIds())
}

// Pull implements google.pubsub.v1.Subscriber.
func (p *subscriberService) Pull(ctx context.Context, r *pubsubpb.PullRequest) (*pubsubpb.PullResponse, error) {
	if err := checkName(subscriptions, r.GetSubscription()); err != nil {
		return nil, err
	}
	if r.GetMaxMessages() < 1 {
		return nil, status.Errorf(codes.InvalidArgument, "max_messages must be at least 1, not %d.", r.GetMaxMessages())
	}
	sub, err := p.server.subscription(r.GetSubscription())
	if err != nil {
		return nil, err
	}
	const maxMessages = 1000
	st := &stream{
		pull: true, maxMessages: int(min(r.GetMaxMessages(), maxMessages)),
		ackDeadline: sub.ackDeadline(), wake: make(chan struct{}, 1), over: make(chan struct{}),
	}
	if err := sub.open(st); err != nil { // this already delivers messages that are ready
		return nil, err
	}
	if !r.GetReturnImmediately() { //nolint:staticcheck // it is deprecated, but clients still use it
		p.wait(ctx, st)
	}
	return sub.finishPull(ctx, st)
}

// wait waits for messages, for the end of the stream, or until the time limit
// of a Pull. [F4]
func (p *subscriberService) wait(ctx context.Context, st *stream) {
	const longest = 20 * time.Second
	limit := p.server.clock.Now().Add(longest)
	if deadline, ok := ctx.Deadline(); ok {
		// Leaves time for the response to reach the caller, also on a busy
		// machine.
		remaining := time.Until(deadline)
		limit = earlier(limit, p.server.clock.Now().Add(remaining-min(250*time.Millisecond, remaining/4)))
	}
	over := make(chan struct{})
	timer := p.server.clock.newTimer(func() { close(over) })
	timer.set(limit)
	defer timer.set(time.Time{})
	select {
	case <-st.wake:
	case <-over:
	case <-ctx.Done():
	}
}

// finishPull returns the response of a Pull, and ends it. The leases stay, but
// belong to no stream.
func (s *subscription) finishPull(ctx context.Context, st *stream) (*pubsubpb.PullResponse, error) {
	if ctx.Err() != nil {
		s.shut(st) // the caller does not get the response [F7]
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	s.mu.Lock()
	var parcels []parcel
	for _, p := range st.out {
		if d := p.delivery; p.current(st) {
			parcels = append(parcels, parcel{ackID: s.ackID(p.lease), message: d.message, attempt: s.attempt(d)})
			d.stream = nil
		}
	}
	st.outstanding = 0
	why := st.err
	s.mu.Unlock()
	s.shut(st)
	if why != nil {
		return nil, why
	}
	response := &pubsubpb.PullResponse{}
	for _, p := range parcels {
		m, err := p.message.decode()
		if err != nil {
			return nil, err
		}
		response.ReceivedMessages = append(response.ReceivedMessages, &pubsubpb.ReceivedMessage{AckId: p.ackID, Message: m, DeliveryAttempt: p.attempt})
	}
	return response, nil
}

func (s *subscription) ackDeadline() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(s.cfg.GetAckDeadlineSeconds()) * time.Second
}
