package pubsublocal

import (
	"cmp"
	"slices"
	"time"

	"github.com/gammazero/deque"
)

// seekTime seeks to a time: retained messages that were published at or after
// it become unacknowledged, and all others acknowledged. [L2, L3]
func (s *subscription) seekTime(at time.Time) error {
	first := at.UnixMilli()
	if at.After(time.UnixMilli(first)) {
		first++ // publish times are whole milliseconds
	}
	// With the lock of the topic, a message that is published meanwhile comes
	// after the seek.
	s.topic.mu.Lock()
	defer s.topic.mu.Unlock()
	s.mu.Lock()
	defer s.unlock() // nothing fails here, so it forwards no dead letters, which would lock a topic
	if s.closed != nil {
		return s.closed
	}
	all := s.union(s.topic.retained())
	horizon := max(first, s.server.clock.Now().Add(-s.retention()).UnixMilli())
	s.reset(all, horizon)
	return nil
}

// union returns the given messages with those that the subscription keeps, unacknowledged or retained,
// oldest first and without duplicates. Call it and the functions below with mu held.
func (s *subscription) union(messages []*message) []*message {
	all := slices.Clone(messages)
	for i := range s.backlog.Len() {
		if d := s.backlog.At(i); d.state < acked {
			all = append(all, d.message)
		}
	}
	all = s.acked.AppendToSlice(all)
	slices.SortFunc(all, func(a, b *message) int { return cmp.Compare(a.id, b.id) })
	return slices.Compact(all)
}

// reset replaces the content of the subscription by messages, oldest first. Those that were published before horizon
// are acknowledged. It forgets leases, runs, delays and counts of attempts. [L5, L6, K13]
func (s *subscription) reset(messages []*message, horizon int64) {
	s.clear()
	s.acked = deque.Deque[*message]{}
	for _, m := range messages {
		if m.time >= horizon {
			s.push(m)
		} else {
			s.retain(m)
		}
	}
}

// maxRetained is the maximum number of acknowledged messages that a subscription retains. It limits the memory.
const maxRetained = 100_000

// retain keeps an acknowledged message for a later seek, if retain_acked_messages is set.
func (s *subscription) retain(m *message) {
	if s.cfg.GetRetainAckedMessages() {
		s.acked.PushBack(m)
	}
	if s.acked.Len() > maxRetained {
		s.acked.PopFront()
	}
}
