package pubsublocal

import (
	"cmp"
	"slices"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// snapshot is the messages that a subscription had not acknowledged when the
// snapshot was created, and all messages that the topic received since.
type snapshot struct {
	name  string
	topic *topic
	timer *timer // deletes the snapshot when it expires

	// Guarded by topic.mu.
	cfg     *pubsubpb.Snapshot // the value is never changed, only replaced
	expires time.Time
	unacked []*message
	later   []*message
}

func (s *snapshot) config() *pubsubpb.Snapshot {
	s.topic.mu.Lock()
	defer s.topic.mu.Unlock()
	cfg := proto.CloneOf(s.cfg)
	cfg.Topic = s.topic.shownName()
	return cfg
}

// messages returns all messages of the snapshot, oldest first. It is called
// with topic.mu held.
func (s *snapshot) messages() []*message { return slices.Concat(s.unacked, s.later) }

// snap creates a snapshot of a subscription. expireTime returns its expiration
// from the publish time of its oldest message, or an error. [L8, L10]
func (s *subscription) snap(cfg *pubsubpb.Snapshot, expireTime func(oldest time.Time) (time.Time, error)) (*snapshot, error) {
	t := s.topic
	t.mu.Lock()
	defer t.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock() // not s.unlock: nothing becomes deliverable here
	if err := s.use(); err != nil {
		return nil, err
	}
	made := &snapshot{name: cfg.GetName(), topic: t, cfg: cfg}
	oldest := s.server.clock.Now()
	for i := range s.backlog.len() {
		if d := s.backlog.at(i); d.state < acked {
			made.unacked = append(made.unacked, d.message)
			oldest = earlier(oldest, d.message.publishTime())
		}
	}
	end, err := expireTime(oldest)
	if err != nil {
		return nil, err
	}
	cfg.ExpireTime, made.expires = timestamppb.New(end), end
	if !t.gone.Load() {
		t.snapshots = append(t.snapshots, made)
	}
	return made, nil
}

// drop removes a snapshot from its topic, and releases its messages.
func (s *snapshot) drop() {
	s.timer.set(time.Time{})
	t := s.topic
	t.mu.Lock()
	defer t.mu.Unlock()
	t.snapshots = slices.DeleteFunc(t.snapshots, func(other *snapshot) bool { return other == s })
	s.unacked, s.later = nil, nil
}

// seekTime seeks to a time: retained messages that were published at or after
// it become unacknowledged, and all others acknowledged. [L2, L3]
func (s *subscription) seekTime(at time.Time) (*commit, error) {
	first := at.UnixMilli()
	if at.After(time.UnixMilli(first)) {
		first++ // publish times are whole milliseconds
	}
	// With the lock of the topic, a message that is published meanwhile comes
	// after the seek, in the journal too.
	s.topic.mu.Lock()
	defer s.topic.mu.Unlock()
	s.mu.Lock()
	defer s.unlock() // nothing fails here, so it forwards no dead letters, which would lock a topic
	if err := s.use(); err != nil {
		return nil, err
	}
	all, err := s.matching(s.union(s.topic.retained()))
	if err != nil {
		return nil, err
	}
	horizon := max(first, s.server.clock.Now().Add(-s.retention()).UnixMilli())
	return s.reset(all, func(m *message) bool { return m.time >= horizon }, time.Time{}), nil
}

// seekSnapshot makes the messages of a snapshot unacknowledged, and all others
// acknowledged. [L9]
func (s *subscription) seekSnapshot(to *snapshot) (*commit, error) {
	s.topic.mu.Lock() // the reason is in seekTime
	defer s.topic.mu.Unlock()
	s.mu.Lock()
	defer s.unlock()
	messages := to.messages()
	if err := s.use(); err != nil {
		return nil, err
	}
	in := make(map[uint64]bool, len(messages))
	for _, m := range messages {
		in[m.id] = true
	}
	all, err := s.matching(s.union(messages))
	if err != nil {
		return nil, err
	}
	return s.reset(all, func(m *message) bool { return in[m.id] }, to.expires), nil
}

// union returns messages and all messages of the subscription, oldest first,
// without duplicates. It and the functions below are called with mu held.
func (s *subscription) union(messages []*message) []*message {
	all := slices.Clone(messages)
	for i := range s.backlog.len() {
		if d := s.backlog.at(i); d.state < acked {
			all = append(all, d.message)
		}
	}
	for i := range s.acked.len() {
		all = append(all, s.acked.at(i))
	}
	slices.SortFunc(all, func(a, b *message) int { return cmp.Compare(a.id, b.id) })
	return slices.Compact(all)
}

// matching returns the messages that the filter accepts. [E17]
func (s *subscription) matching(messages []*message) ([]*message, error) {
	if s.cfg.GetFilter() == "" {
		return messages, nil
	}
	var passed []*message
	for _, m := range messages {
		decoded, err := m.decode()
		if err != nil {
			return nil, err
		}
		if s.filter.match(decoded.GetAttributes()) {
			passed = append(passed, m)
		}
	}
	return passed, nil
}

// reset replaces the content of the subscription by messages, oldest first. It
// forgets leases, runs, delays and counts of attempts. Until retainedUntil, no
// message is dropped because of its age. [L5, L6, L15, K13]
func (s *subscription) reset(messages []*message, unacked func(*message) bool, retainedUntil time.Time) *commit {
	s.clear()
	s.acked = deque[*message]{}
	s.retainedUntil = retainedUntil
	for _, m := range messages {
		if unacked(m) {
			s.push(m)
		} else if s.cfg.GetRetainAckedMessages() {
			s.acked.pushBack(m)
		}
	}
	return s.server.journal.reset(s)
}
