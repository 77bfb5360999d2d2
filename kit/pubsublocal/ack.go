package pubsublocal

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"slices"
	"time"

	"github.com/gammazero/deque"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ackIDSize is the size of an ack id in bytes. An id has a subscription, one of its leases, and a checksum. The
// checksum distinguishes an id that was never issued from one that is out of date. [H5, H6]
const ackIDSize = 16

func (s *subscription) ackID(lease uint64) string {
	var b [ackIDSize]byte
	binary.BigEndian.PutUint32(b[:], s.mark)
	binary.BigEndian.PutUint64(b[4:], lease)
	binary.BigEndian.PutUint32(b[12:], crc32.ChecksumIEEE(b[:12]))
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// leaseOf returns the lease of an ack id. ok is false if this subscription never issued the id.
func (s *subscription) leaseOf(id string) (lease uint64, ok bool) {
	var b [ackIDSize]byte
	if len(id) != base64.RawURLEncoding.EncodedLen(ackIDSize) {
		return 0, false
	}
	if _, err := base64.RawURLEncoding.Decode(b[:], []byte(id)); err != nil {
		return 0, false
	}
	lease = binary.BigEndian.Uint64(b[4:])
	return lease, binary.BigEndian.Uint32(b[:]) == s.mark && binary.BigEndian.Uint32(b[12:]) == crc32.ChecksumIEEE(b[:12])
}

// ackResult is the result for each id of a request. Without exactly-once delivery all of them succeed.
type ackResult struct {
	exactlyOnce          bool
	ok, invalid, unorder []string
}

// err returns the error of a unary call with this result.
func (r *ackResult) err() error {
	if len(r.invalid)+len(r.unorder) == 0 {
		return nil
	}
	failures := map[string]string{}
	for _, id := range r.invalid {
		failures[id] = "PERMANENT_FAILURE_INVALID_ACK_ID"
	}
	for _, id := range r.unorder {
		failures[id] = "TRANSIENT_FAILURE_UNORDERED_ACK_ID"
	}
	failed := status.New(codes.InvalidArgument, "Some acknowledgement ids in the request were invalid. This could be because the acknowledgement ids have expired or the acknowledgement ids were malformed.")
	if detailed, err := failed.WithDetails(&errdetails.ErrorInfo{
		Reason: "EXACTLY_ONCE_ACKID_FAILURE", Domain: "pubsub.googleapis.com", Metadata: failures,
	}); err == nil {
		failed = detailed
	}
	return failed.Err()
}

// answer is an ack or a new deadline for a delivery.
type answer struct {
	id       string
	lease    uint64
	delivery *delivery // nil: the id is out of date
	seconds  int32     // the new deadline
}

// answers resolves ids. It sorts them by time of publishing, because clients send the ids of a request in any order.
// [J8] A malformed id fails the request, or is invalid with exactly-once delivery. [H5, J12]
func (s *subscription) answers(ids []string, seconds func(i int) int32, result *ackResult) ([]answer, error) {
	if s.closed != nil {
		return nil, s.closed
	}
	result.exactlyOnce = s.cfg.GetEnableExactlyOnceDelivery()
	all := make([]answer, 0, len(ids))
	for i, id := range ids {
		lease, ok := s.leaseOf(id)
		switch {
		case ok:
			all = append(all, answer{id: id, lease: lease, delivery: s.lent.m[lease], seconds: seconds(i)})
		case result.exactlyOnce:
			result.invalid = append(result.invalid, id)
		default:
			return nil, status.Error(codes.InvalidArgument, "You have passed an invalid ack ID to the service (ack_id="+id+").")
		}
	}
	slices.SortStableFunc(all, func(a, b answer) int { return cmp.Compare(a.place(), b.place()) })
	return all, nil
}

// place is the sort key of a result. Ids that are out of date come first.
func (a *answer) place() uint64 {
	if a.delivery == nil {
		return 0
	}
	return a.delivery.message.id
}

// acknowledgeAll implements Acknowledge.
func (s *subscription) acknowledgeAll(ids []string) (result ackResult, err error) {
	s.mu.Lock()
	defer s.unlock()
	answers, err := s.answers(ids, func(int) int32 { return 0 }, &result)
	if err != nil {
		return result, err
	}
	now := s.server.clock.Now()
	for _, a := range answers {
		d := a.delivery
		if !result.exactlyOnce {
			// A late ack counts, unless the message was delivered again since. [G20, H7] If a request has an id twice,
			// it counts once.
			if d != nil && d.state < forwarding {
				s.server.observe(s, Acked, d.message)
				s.acknowledge(d)
			}
			continue
		}
		switch {
		case s.confirmed.has(a.lease, now): // acknowledged before, or twice in this request
			result.ok = append(result.ok, a.id) // [J11]
		case d == nil || d.state != leased || !d.deadline.After(now):
			result.invalid = append(result.invalid, a.id)
		case d.key != nil && d.key.entries.At(0) != d:
			result.unorder = append(result.unorder, a.id) // [J7]
		default:
			s.confirmed.add(a.lease, d.deadline)
			s.server.observe(s, Acked, d.message)
			s.acknowledge(d)
			result.ok = append(result.ok, a.id)
		}
	}
	return result, nil
}

// modifyAll implements ModifyAckDeadline. A deadline of 0 seconds is a nack.
func (s *subscription) modifyAll(ids []string, seconds func(i int) int32) (result ackResult, err error) {
	s.mu.Lock()
	defer s.unlock()
	answers, err := s.answers(ids, seconds, &result)
	if err != nil {
		return result, err
	}
	now := s.server.clock.Now()
	valid := answers[:0]
	for _, a := range answers {
		if d := a.delivery; d != nil && d.state == leased && d.deadline.After(now) {
			valid = append(valid, a)
			result.ok = append(result.ok, a.id)
		} else if result.exactlyOnce {
			result.invalid = append(result.invalid, a.id)
		}
	}
	for _, a := range valid {
		switch d := a.delivery; {
		case d.state != leased: // a nack of an earlier message of its key ended this lease
		case a.seconds == 0:
			s.server.observe(s, Nacked, d.message)
			s.fail(d, now)
		default:
			s.wait(d, now.Add(time.Duration(a.seconds)*time.Second))
		}
	}
	return result, nil
}

// confirmed holds the leases that were acknowledged under exactly-once delivery, until their deadlines. The zero value
// is empty.
type confirmed struct {
	deadlines table[uint64, time.Time]
	order     deque.Deque[uint64]
}

func (c *confirmed) add(lease uint64, deadline time.Time) {
	c.order.PushBack(lease)
	c.deadlines.set(lease, deadline)
}

// forget removes leases whose deadlines are over, in the order of their acks. So a lease with a later deadline
// delays the leases behind it.
func (c *confirmed) forget(now time.Time) {
	for c.order.Len() > 0 && !c.deadlines.m[c.order.At(0)].After(now) {
		c.deadlines.remove(c.order.PopFront())
	}
}

// next returns the time of the next forget. ok is false if there is nothing to forget.
func (c *confirmed) next() (deadline time.Time, ok bool) {
	if c.order.Len() == 0 {
		return time.Time{}, false
	}
	return c.deadlines.m[c.order.At(0)], true
}

func (c *confirmed) has(lease uint64, now time.Time) bool { return c.deadlines.m[lease].After(now) }
