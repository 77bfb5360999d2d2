package pubsublocal

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// open restores the data of Config.DataDir, and starts to write changes there. It is called before the server
// is used.
func (s *Server) open(cfg Config) error {
	if cfg.DataDir == "" {
		return nil
	}
	j, img, messages, err := openJournal(cfg.DataDir, s.log, s.clock.Now)
	if err != nil {
		return fmt.Errorf("data folder %s: %w", cfg.DataDir, err)
	}
	s.journal = j // changes by timers are written after what is restored
	if err := s.restore(img, messages); err != nil {
		s.clock.stop()
		return errors.Join(fmt.Errorf("data folder %s: %w", cfg.DataDir, err), j.close())
	}
	return nil
}

// restore creates the resources of an image. messages are its live messages.
func (s *Server) restore(img *image, messages map[uint64]*message) error {
	s.lastID.Store(img.lastID)
	s.lastMark.Store(img.lastMark)
	for _, name := range slices.Sorted(maps.Keys(img.schemas)) {
		for _, revision := range img.schemas[name] {
			if err := s.schemas.restore(revision); err != nil {
				return fmt.Errorf("restore schema %s: %w", name, err)
			}
		}
	}
	restored := map[*topicImage]*topic{}
	for _, t := range img.topics {
		restored[t] = s.restoreTopic(t, messages)
	}
	for _, mark := range slices.Sorted(maps.Keys(img.subscriptions)) {
		sub := img.subscriptions[mark]
		if err := s.restoreSubscription(sub, restored[sub.topic], img.starts, messages); err != nil {
			return fmt.Errorf("restore subscription %s: %w", sub.cfg.GetName(), err)
		}
	}
	for name, snap := range img.snapshots {
		s.restoreSnapshot(name, snap, restored[snap.topic], messages)
	}
	return nil
}

func (s *Server) restoreTopic(from *topicImage, messages map[uint64]*message) *topic {
	t := newTopic(s, from.cfg)
	t.number = from.number
	if from.gone {
		t.close()
		return t
	}
	if schema := from.cfg.GetSchemaSettings().GetSchema(); schema != "" && !s.schemas.exists(schema) {
		t.forgetSchema(schema) // deleted before the settings were written
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lastTime = from.lastTime
	for _, m := range from.messages {
		if m.retained {
			t.log.pushBack(messages[m.id])
		}
	}
	t.trim(s.clock.Now())
	s.topics.set(t.name, t)
	return t
}

func (s *Server) restoreSubscription(from *subscriptionImage, t *topic, starts uint64, messages map[uint64]*message) error {
	f, err := parseFilter(from.cfg.GetFilter())
	if err != nil {
		return err
	}
	sub := newSubscription(t, from.cfg, f)
	sub.mark = from.mark // so that ack ids issued before the restart are out of date, not malformed
	if from.cfg.GetDetached() {
		sub.detach()
		s.subscriptions.set(sub.name, sub)
		return nil
	}
	sub.mu.Lock()
	// This is more than any lease of earlier runs: those had a lower number of starts, or began with the time
	// in microseconds, which needs fewer bits. So no old ack id matches a new lease, even if the clock went
	// back.
	sub.lastLease = starts << 52
	if from.until > 0 {
		sub.retainedUntil = time.Unix(0, from.until)
	}
	for _, m := range pick(from.retained.sorted(), messages) {
		sub.acked.pushBack(m)
	}
	for _, m := range pick(from.unacked.sorted(), messages) {
		sub.push(m)
	}
	s.subscriptions.set(sub.name, sub)
	sub.unlock()
	if !t.gone.Load() {
		t.attach(sub)
	}
	return nil
}

func (s *Server) restoreSnapshot(name string, from *snapshotImage, t *topic, messages map[uint64]*message) {
	snap := &snapshot{
		name: name, topic: t, cfg: from.cfg, expires: from.cfg.GetExpireTime().AsTime(), unacked: pick(from.ids, messages),
	}
	snap.timer = s.clock.newTimer(func() { s.expireSnapshot(snap) })
	t.mu.Lock()
	if !t.gone.Load() {
		t.snapshots = append(t.snapshots, snap)
	}
	t.mu.Unlock()
	s.snapshots.set(name, snap)
	snap.timer.set(snap.expires)
}

func pick(ids []uint64, messages map[uint64]*message) []*message {
	picked := make([]*message, 0, len(ids))
	for _, id := range ids {
		if m := messages[id]; m != nil {
			picked = append(picked, m)
		}
	}
	return picked
}
