package pubsublocal

import (
	"container/heap"
	"sort"
	"time"
	"unique"

	"github.com/gammazero/deque"
)

// state is the state of a delivery.
type state uint8

const (
	ready      state = iota // waits for a stream, or until its ordering key may deliver it
	leased                  // a subscriber has it, until its deadline
	delayed                 // waits for its retry, until its deadline
	forwarding              // is being published to the dead-letter topic
	acked                   // acknowledged, but is delivered again if an earlier one of its key fails
	buried                  // in the dead-letter topic, and waits for earlier ones of its key
	done                    // finished; it will be removed from the backlog
)

// delivery is a message in a subscription.
type delivery struct {
	message  *message
	key      *keyQueue // nil: it has no order
	stream   *stream   // the last stream that had it; nil: none, or a Pull has it
	lease    uint64    // the newest lease; 0: never delivered
	deadline time.Time // set while leased or delayed
	index    int32     // position in deadlines; -1: none
	attempts int32     // failed deliveries that count for the dead-letter policy
	failures int32     // all failed deliveries
	state    state
	counted  bool // attempts counts this delivery if it fails [K12]
}

// keyQueue holds the deliveries of an ordering key, from the first one that is not
// acknowledged. The first hi are the run: leased, or acknowledged out of order.
type keyQueue struct {
	key     unique.Handle[string]
	entries deque.Deque[*delivery]
	hi      int
	owner   *stream // the stream of the last run
	queued  bool    // it is in readyKeys
}

// wait sets the deadline of a delivery. expire handles the delivery when the
// deadline has passed.
func (s *subscription) wait(d *delivery, deadline time.Time) {
	d.deadline = deadline
	if d.index >= 0 {
		heap.Fix(&s.deadlines, int(d.index))
	} else {
		heap.Push(&s.deadlines, d)
	}
}

// release ends the lease or the delay of a delivery. The delivery is then
// ready, and in no queue.
func (s *subscription) release(d *delivery) {
	if d.index >= 0 {
		heap.Remove(&s.deadlines, int(d.index))
	}
	if d.state == leased && d.stream != nil {
		d.stream.outstanding--
		d.stream.bytes -= len(d.message.encoded)
	}
	d.state = ready
}

// acknowledge records the ack of a delivery, and ends its lease. A delivery
// with a key stays in the queue of the key until all earlier ones are
// acknowledged. If an earlier one fails, this delivery is repeated.
func (s *subscription) acknowledge(d *delivery) {
	if d.state == leased && s.duplicates > 0 {
		s.duplicates--
		s.putBack(d)
		return
	}
	s.drop(d)
	s.retain(d.message)
}

// drop finishes a delivery as acknowledge does, but does not retain the message.
func (s *subscription) drop(d *delivery) {
	s.release(d)
	delete(s.lent, d.lease)
	if d.key == nil {
		s.finish(d)
		return
	}
	d.state = acked
	k := d.key
	for k.entries.Len() > 0 && k.entries.At(0).state >= acked {
		s.finish(k.entries.PopFront())
		k.hi = max(0, k.hi-1)
	}
	switch {
	case k.entries.Len() == 0:
		delete(s.keys, k.key)
		s.forgetKeys()
	case k.hi == 0 || k.hi < k.entries.Len() && k.entries.At(k.hi).lease != 0:
		s.queue(k)
	}
}

// forgetKeys removes the keys without deliveries from readyKeys, if they are
// the majority there.
func (s *subscription) forgetKeys() {
	if n := s.readyKeys.Len(); n > 64 && n > 2*len(s.keys) {
		keep(&s.readyKeys, func(k *keyQueue) bool { return s.keys[k.key] == k })
	}
}

// keep keeps the elements for which f is true.
func keep[T any](q *deque.Deque[T], f func(T) bool) {
	for range q.Len() {
		if v := q.PopFront(); f(v) {
			q.PushBack(v)
		}
	}
}

// finish marks a delivery as done, and removes such deliveries from the
// backlog. It takes constant time on average.
func (s *subscription) finish(d *delivery) {
	d.state = done
	s.done++
	for s.backlog.Len() > 0 && s.backlog.At(0).state == done {
		s.backlog.PopFront()
		s.done--
	}
	if s.done > 64 && s.done > s.backlog.Len()/2 {
		keep(&s.backlog, func(d *delivery) bool { return d.state != done })
		s.done = 0
	}
}

// fail counts a failed delivery. The message is forwarded as a dead letter, or
// delivered again, maybe after a pause.
func (s *subscription) fail(d *delivery, now time.Time) {
	s.release(d)
	d.failures++
	if d.counted {
		d.attempts++
		if d.attempts >= s.cfg.GetDeadLetterPolicy().GetMaxDeliveryAttempts() && s.deadLetterTopic() != nil {
			d.state = forwarding
			s.letters = append(s.letters, d)
			s.rewind(d)
			return
		}
	}
	pause := s.pause(d.failures)
	if pause == 0 {
		s.putBack(d)
		return
	}
	d.state = delayed
	s.wait(d, now.Add(pause))
	s.rewind(d)
}

// putBack makes a delivery ready again, before the messages that were never
// delivered.
func (s *subscription) putBack(d *delivery) {
	s.release(d)
	if d.key == nil {
		s.ready.PushFront(d)
		return
	}
	s.rewind(d)
	s.queue(d.key)
}

// rewind makes all deliveries of a key after d ready again, including those
// that were acknowledged. They are delivered again in order, after d.
func (s *subscription) rewind(d *delivery) {
	k := d.key
	if k == nil {
		return
	}
	i := k.place(d)
	for j := i + 1; j < k.hi; j++ {
		if later := k.entries.At(j); later.state == leased || later.state == acked {
			s.release(later)
		}
	}
	k.hi = min(k.hi, i)
}

// place returns the position of a delivery in its key.
func (k *keyQueue) place(d *delivery) int {
	return sort.Search(k.entries.Len(), func(i int) bool { return k.entries.At(i).message.id >= d.message.id })
}

// pause returns the delay of a message before its retry, after this many
// failures.
func (s *subscription) pause(failures int32) time.Duration {
	policy := s.cfg.GetRetryPolicy()
	if policy == nil {
		return 0
	}
	pause, longest := policy.GetMinimumBackoff().AsDuration(), policy.GetMaximumBackoff().AsDuration()
	for range failures - 1 {
		if pause >= longest {
			break
		}
		pause *= 2
	}
	return min(pause, longest)
}

// before orders by deadline, then by id. If a whole run expires at once, only its
// first message fails. [I13]
func (d *delivery) before(other *delivery) bool {
	if c := d.deadline.Compare(other.deadline); c != 0 {
		return c < 0
	}
	return d.message.id < other.message.id
}

func (d *delivery) moved(to int) { d.index = int32(to) } //nolint:gosec // fewer than 2^31 deliveries
