package pubsublocal

import (
	"slices"
	"time"
)

// push appends a message to the backlog. It and all functions below are called
// with mu held.
func (s *subscription) push(m *message) {
	if s.closed != nil {
		return
	}
	d := &delivery{message: m, index: -1}
	s.backlog.PushBack(d)
	if m.key == noKey || !s.cfg.GetEnableMessageOrdering() {
		s.ready.PushBack(d)
		return
	}
	k := s.keys[m.key]
	if k == nil {
		k = &keyQueue{key: m.key}
		s.keys[m.key] = k
	}
	d.key = k
	k.entries.PushBack(d)
	if k.hi == 0 {
		s.queue(k)
	}
}

func (s *subscription) queue(k *keyQueue) {
	if !k.queued && k.entries.Len() > k.hi {
		k.queued = true
		s.readyKeys.PushBack(k)
	}
}

// pump delivers what is ready to streams that have credit. Only pump delivers
// messages.
func (s *subscription) pump(now time.Time) {
	for keys := s.readyKeys.Len(); ; {
		for s.ready.Len() > 0 && s.ready.At(0).state != ready { // acknowledged after its lease had ended
			s.ready.PopFront()
		}
		st := s.pick()
		if st == nil || keys == 0 && s.ready.Len() == 0 {
			break
		}
		// Runs of keys and messages without a key alternate, also between
		// calls. So neither delays the other for long.
		if s.ready.Len() > 0 && (s.afterRun || keys == 0) {
			s.afterRun = false
			s.next++
			s.deliver(s.ready.PopFront(), st, now)
			continue
		}
		s.afterRun = true
		keys--
		k := s.readyKeys.PopFront()
		k.queued = false
		if s.keys[k.key] == k && s.deliverRun(k, now) {
			s.queue(k)
		}
	}
	// A Pull returns after its first messages, so it gets no more.
	s.streams = slices.DeleteFunc(s.streams, func(st *stream) bool { return st.pull && len(st.out) > 0 })
}

// pick returns a stream with credit, or nil if there is none. The streams take
// turns.
func (s *subscription) pick() *stream {
	for i := range s.streams {
		if st := s.streams[(s.next+i)%len(s.streams)]; st.hasCredit() {
			return st
		}
	}
	return nil
}

// deliverRun delivers the run of a key, or the part of it that must be
// delivered again. It reports whether the key could go on if a stream had
// credit.
func (s *subscription) deliverRun(k *keyQueue, now time.Time) (waiting bool) {
	const maxRun = 1000
	again := k.hi > 0 // while an earlier message is outstanding, only redelivery is allowed
	st := s.streamFor(k)
	for n := 0; n < maxRun && k.hi < k.entries.Len(); {
		d := k.entries.At(k.hi)
		if d.state == acked || d.state == buried {
			k.hi++
			continue
		}
		if d.state != ready || again && d.lease == 0 {
			return false
		}
		if st == nil || !st.hasCredit() {
			return k.hi == 0 || d.lease != 0 // otherwise d belongs to the next run
		}
		k.hi++
		n++
		s.deliver(d, st, now)
		if k.owner != st {
			k.owner = st
			s.next++
		}
	}
	return k.hi < k.entries.Len() && k.entries.At(k.hi).lease != 0
}

// streamFor returns the stream for the next deliveries of a key, or nil if
// there is none now.
func (s *subscription) streamFor(k *keyQueue) *stream {
	if k.owner != nil && !k.owner.ended && (k.hi > 0 || k.owner.hasCredit()) {
		return k.owner
	}
	return s.pick()
}

// deliver leases a message to a stream.
func (s *subscription) deliver(d *delivery, st *stream, now time.Time) {
	delete(s.lent, d.lease)
	s.lastLease++
	d.lease = s.lastLease
	s.lent[d.lease] = d
	d.state = leased
	d.counted = s.cfg.GetDeadLetterPolicy() != nil
	s.server.observe(s, Delivered, d.message)
	d.stream = st
	st.outstanding++
	st.bytes += len(d.message.encoded)
	s.wait(d, now.Add(st.ackDeadline))
	if len(st.out) > 64 && len(st.out) > 2*st.outstanding { // its client does not read, and most of out was delivered elsewhere [G23]
		st.out = slices.DeleteFunc(st.out, func(p posted) bool { return !p.current(st) })
	}
	st.out = append(st.out, posted{delivery: d, lease: d.lease})
	st.notify()
}

// attempt returns the delivery_attempt of a delivery.
func (s *subscription) attempt(d *delivery) int32 {
	if s.cfg.GetDeadLetterPolicy() == nil {
		return 0
	}
	return d.attempts + 1
}
