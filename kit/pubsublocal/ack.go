package pubsublocal

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"slices"
	"time"

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

// resolved is the delivery of an ack ID, and its new deadline.
type resolved struct {
	delivery *delivery // nil: the id is out of date
	seconds  int32
}

// resolve returns the deliveries of ids in the order of publishing, because clients send the ids of a request in any
// order. A malformed id fails the request. [H5]
func (s *subscription) resolve(ids []string, seconds func(i int) int32) ([]resolved, error) {
	if s.closed != nil {
		return nil, s.closed
	}
	all := make([]resolved, 0, len(ids))
	for i, id := range ids {
		lease, ok := s.leaseOf(id)
		if !ok {
			return nil, status.Error(codes.InvalidArgument, "You have passed an invalid ack ID to the service (ack_id="+id+").")
		}
		all = append(all, resolved{delivery: s.lent[lease], seconds: seconds(i)})
	}
	slices.SortStableFunc(all, func(a, b resolved) int { return cmp.Compare(a.place(), b.place()) })
	return all, nil
}

// place is the sort key. Ids that are out of date come first.
func (a *resolved) place() uint64 {
	if a.delivery == nil {
		return 0
	}
	return a.delivery.message.id
}

// acknowledgeAll implements Acknowledge. Ids that are out of date have no effect.
func (s *subscription) acknowledgeAll(ids []string) error {
	s.mu.Lock()
	defer s.unlock()
	all, err := s.resolve(ids, func(int) int32 { return 0 })
	for _, a := range all {
		// A late ack counts, unless the message was delivered again since. [G20, H7] If a request has an id twice, it
		// counts once.
		if d := a.delivery; d != nil && d.state < forwarding {
			s.server.observe(s, Acked, d.message)
			s.acknowledge(d)
		}
	}
	return err
}

// modifyAll implements ModifyAckDeadline. A deadline of 0 seconds is a nack. Ids that are out of date have no effect.
func (s *subscription) modifyAll(ids []string, seconds func(i int) int32) error {
	s.mu.Lock()
	defer s.unlock()
	all, err := s.resolve(ids, seconds)
	now := s.server.clock.Now()
	valid := slices.DeleteFunc(all, func(a resolved) bool {
		return a.delivery == nil || a.delivery.state != leased || !a.delivery.deadline.After(now)
	})
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
	return err
}
