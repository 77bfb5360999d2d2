package pubsublocal

import (
	"cmp"
	"container/heap"
	"slices"
	"sync"
	"time"
	"unique"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// subscription delivers the messages of a topic until they are acknowledged.
//
// Whatever makes a delivery possible, such as a message, an ack or a stream
// with room, ends with unlock, which delivers at once; nothing polls.
type subscription struct {
	server *Server
	name   string
	topic  *topic
	mark   uint32 // of its ack ids: those of others are told from it

	mu            sync.Mutex
	cfg           *pubsubpb.Subscription // the value is never changed, only replaced
	filter        filter
	closed        error                    // why there is nothing to receive any more; nil: there is
	backlog       deque[*delivery]         // what is not acknowledged, in the order of publishing, and some that is done
	done          int                      // how many of backlog
	lent          table[uint64, *delivery] // by lease, the last one of each that was ever delivered
	lastLease     uint64                   // the number of the newest lease
	ready         deque[*delivery]         // what no key holds back
	keys          table[unique.Handle[string], *keyQueue]
	readyKeys     deque[*keyQueue] // those that may have something to deliver
	deadlines     deadlines        // of leases, and of retries
	acked         deque[*message]  // what retain_acked_messages retains, in the order of acks
	retainedUntil time.Time        // nothing of backlog is too old before that
	confirmed     confirmed        // exactly-once: acks that may be repeated
	streams       []*stream        // open ones; a Pull that waits is one, too
	next          int              // the stream whose turn it is
	duplicates    int              // how many acknowledged messages come again: a fault
	letters       []*delivery      // to be forwarded as dead letters as soon as mu is free
	used          time.Time        // when somebody last used it
	timer         *timer
	armed         time.Time // when timer runs; zero: never
}

// state says where a delivery is.
type state uint8

const (
	ready      state = iota // waits for a stream, or for its turn in its key
	leased                  // somebody has it, until its deadline
	delayed                 // waits for its retry, until its deadline
	forwarding              // on its way to the dead-letter topic
	acked                   // waits for earlier ones of its key
	done                    // nothing will become of it
)

// delivery is a message in a subscription.
type delivery struct {
	message  *message
	key      *keyQueue // nil: it has no order
	stream   *stream   // that has it, or had it last; nil: none, or a Pull has it
	lease    uint64    // the last one; 0: never delivered
	deadline time.Time // while leased or delayed
	index    int32     // in deadlines; -1: not there
	attempts int32     // failed ones, counted while there was a dead-letter policy
	failures int32     // failed ones
	state    state
	counted  bool // a failure of this delivery counts [K12]
}

// keyQueue holds the deliveries of an ordering key, from the first one that is
// not acknowledged. The first hi of them are the run that is outstanding.
type keyQueue struct {
	key     unique.Handle[string]
	entries deque[*delivery]
	hi      int
	owner   *stream // of the last run
	queued  bool    // is in readyKeys
}

func newSubscription(t *topic, cfg *pubsubpb.Subscription, f filter) *subscription {
	now := t.server.clock.Now()
	s := &subscription{
		server: t.server, name: cfg.GetName(), topic: t, mark: t.server.lastMark.Add(1),
		cfg: cfg, filter: f,
		// A subscription that comes back after a restart must not take an ack id of before for one of its own.
		lastLease: uint64(now.UnixMicro()),
		used:      now,
	}
	s.timer = t.server.clock.newTimer(s.tick)
	s.mu.Lock()
	s.unlock()
	return s
}

// config answers the subscription as the API shows it.
func (s *subscription) config() *pubsubpb.Subscription {
	s.mu.Lock()
	cfg := proto.CloneOf(s.cfg)
	s.mu.Unlock()
	cfg.Topic = s.topic.shownName()
	cfg.State = pubsubpb.Subscription_ACTIVE
	if retention := s.topic.retention.Load(); retention > 0 && !s.topic.gone.Load() {
		cfg.TopicMessageRetentionDuration = durationpb.New(time.Duration(retention))
	}
	return cfg
}

// update replaces the configuration by what f makes of it.
func (s *subscription) update(f func(*pubsubpb.Subscription) (*pubsubpb.Subscription, error)) error {
	s.mu.Lock()
	defer s.unlock()
	cfg, err := f(s.cfg)
	if err != nil {
		return err
	}
	s.cfg = cfg
	s.used = s.server.clock.Now()
	if !cfg.GetRetainAckedMessages() {
		s.acked = deque[*message]{}
	}
	if cfg.GetDeadLetterPolicy() == nil {
		for i := range s.backlog.len() {
			s.backlog.at(i).attempts, s.backlog.at(i).counted = 0, false
		}
	}
	s.armed = time.Time{}
	return nil
}

// offer takes what was just published.
func (s *subscription) offer(drafts []draft, messages []*message, now time.Time) {
	s.mu.Lock()
	for i, m := range messages {
		if s.filter.match(drafts[i].attributes) {
			s.push(m)
		}
	}
	// Nothing fails here, so there are no dead letters, for which the topic, whose lock is held, would be needed.
	s.pump(now)
	s.arm()
	s.mu.Unlock()
}

// unlock delivers what can be delivered, and gives mu back.
func (s *subscription) unlock() {
	s.pump(s.server.clock.Now())
	s.arm()
	letters := s.letters
	s.letters = nil
	s.mu.Unlock()
	for _, d := range letters {
		s.forward(d)
	}
}

// push appends a message to the backlog. All that follow are called with mu held.
func (s *subscription) push(m *message) {
	if s.closed != nil {
		return
	}
	d := &delivery{message: m, index: -1}
	s.backlog.pushBack(d)
	if m.key == noKey || !s.cfg.GetEnableMessageOrdering() {
		s.ready.pushBack(d)
		return
	}
	k := s.keys.m[m.key]
	if k == nil {
		k = &keyQueue{key: m.key}
		s.keys.set(m.key, k)
	}
	d.key = k
	k.entries.pushBack(d)
	if k.hi == 0 {
		s.queue(k)
	}
}

func (s *subscription) queue(k *keyQueue) {
	if !k.queued && k.entries.len() > k.hi {
		k.queued = true
		s.readyKeys.pushBack(k)
	}
}

// pump delivers to streams with credit what is ready. It is all that delivers.
func (s *subscription) pump(now time.Time) {
	for n := s.readyKeys.len(); n > 0 && s.pick() != nil; n-- {
		k := s.readyKeys.popFront()
		k.queued = false
		if s.keys.m[k.key] == k && s.deliverRun(k, now) {
			s.queue(k)
		}
	}
	for s.ready.len() > 0 {
		if s.ready.at(0).state != ready { // acknowledged late
			s.ready.popFront()
			continue
		}
		st := s.successor(s.ready.at(0).stream)
		if st == nil {
			if st = s.pick(); st == nil {
				break
			}
			s.next++
		}
		s.deliver(s.ready.popFront(), st, now)
	}
	// A Pull is answered with what there is.
	s.streams = slices.DeleteFunc(s.streams, func(st *stream) bool { return st.pull && len(st.out) > 0 })
}

// pick answers a stream with credit, nil if there is none. It prefers that
// whose turn it is.
func (s *subscription) pick() *stream {
	for i := range s.streams {
		if st := s.streams[(s.next+i)%len(s.streams)]; st.hasCredit() {
			return st
		}
	}
	return nil
}

// deliverRun delivers the run of a key, or what was delivered of it before and
// is to come again. It answers whether the key waits for nothing but credit.
func (s *subscription) deliverRun(k *keyQueue, now time.Time) (waiting bool) {
	const maxRun = 1000
	again := k.hi > 0 // while an earlier one is outstanding, only what was delivered before may go
	st := s.streamFor(k)
	for n := 0; n < maxRun && k.hi < k.entries.len(); {
		d := k.entries.at(k.hi)
		if d.state == acked {
			k.hi++
			continue
		}
		if d.state != ready || again && d.lease == 0 {
			return false
		}
		if st == nil || !st.hasCredit() {
			return k.hi == 0 || d.lease != 0 // else the run ends here
		}
		k.hi++
		n++
		s.deliver(d, st, now)
		if k.owner != st {
			k.owner = st
			s.next++
		}
	}
	return k.hi < k.entries.len() && k.entries.at(k.hi).lease != 0
}

// streamFor answers the stream that the next deliveries of a key go to; nil:
// there is none now.
func (s *subscription) streamFor(k *keyQueue) *stream {
	if k.owner != nil {
		if !k.owner.ended && (k.hi > 0 || k.owner.hasCredit()) {
			return k.owner
		}
		if st := s.successor(k.owner); st != nil {
			return st
		}
	}
	return s.pick()
}

// successor answers the stream with credit that its client opened in place of
// one that has ended; nil: there is none. [G21]
func (s *subscription) successor(old *stream) *stream {
	if old == nil || !old.ended || old.clientID == "" {
		return nil
	}
	for _, st := range s.streams {
		if st.clientID == old.clientID && st.hasCredit() {
			return st
		}
	}
	return nil
}

// deliver lends a message to a stream.
func (s *subscription) deliver(d *delivery, st *stream, now time.Time) {
	s.lent.remove(d.lease)
	s.lastLease++
	d.lease = s.lastLease
	s.lent.set(d.lease, d)
	d.state = leased
	d.counted = s.cfg.GetDeadLetterPolicy() != nil && !s.server.noDeadLetters.Load()
	s.server.observe(s, Delivered, d.message)
	d.stream = st
	st.outstanding++
	st.bytes += len(d.message.encoded)
	s.wait(d, now.Add(st.ackDeadline))
	st.out = append(st.out, posted{delivery: d, lease: d.lease})
	st.notify()
}

// attempt answers what delivery_attempt is for a delivery.
func (s *subscription) attempt(d *delivery) int32 {
	if s.cfg.GetDeadLetterPolicy() == nil {
		return 0
	}
	return d.attempts + 1
}

// wait gives a delivery a deadline, at which expire is called with it.
func (s *subscription) wait(d *delivery, deadline time.Time) {
	d.deadline = deadline
	if d.index >= 0 {
		heap.Fix(&s.deadlines, int(d.index))
	} else {
		heap.Push(&s.deadlines, d)
	}
}

// release ends the lease or the waiting of a delivery, which is ready then, and
// in no queue.
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

// acknowledge is the end of a delivery, but for what its key needs of it: when
// an earlier message of the key fails, this one is delivered again after it.
func (s *subscription) acknowledge(d *delivery) {
	if d.state == leased && s.duplicates > 0 && !s.cfg.GetEnableExactlyOnceDelivery() {
		s.duplicates--
		s.putBack(d)
		return
	}
	s.drop(d)
	if s.cfg.GetRetainAckedMessages() {
		s.acked.pushBack(d.message)
	}
}

// drop is acknowledge without retaining.
func (s *subscription) drop(d *delivery) {
	s.release(d)
	s.lent.remove(d.lease)
	if d.key == nil {
		s.finish(d)
		return
	}
	d.state = acked
	k := d.key
	for k.entries.len() > 0 && k.entries.at(0).state == acked {
		s.finish(k.entries.popFront())
		k.hi = max(0, k.hi-1)
	}
	switch {
	case k.entries.len() == 0:
		s.keys.remove(k.key)
	case k.hi == 0 || k.hi < k.entries.len() && k.entries.at(k.hi).lease != 0:
		s.queue(k)
	}
}

// finish marks a delivery as done. What is done leaves the backlog in time that
// is constant on average.
func (s *subscription) finish(d *delivery) {
	s.server.journal.acknowledged(s, d)
	d.state = done
	s.done++
	for s.backlog.len() > 0 && s.backlog.at(0).state == done {
		s.backlog.popFront()
		s.done--
	}
	if s.done > 64 && s.done > s.backlog.len()/2 {
		s.backlog.keep(func(d *delivery) bool { return d.state != done })
		s.done = 0
	}
}

// fail counts a failed delivery, and decides what becomes of it.
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

// putBack makes a delivery ready again, before all that never were delivered.
func (s *subscription) putBack(d *delivery) {
	s.release(d)
	if d.key == nil {
		s.ready.pushFront(d)
		return
	}
	s.rewind(d)
	s.queue(d.key)
}

// rewind ends what was delivered of a key after d, also what was acknowledged:
// it comes again, in order, after d.
func (s *subscription) rewind(d *delivery) {
	k := d.key
	if k == nil {
		return
	}
	i := k.place(d)
	for j := i + 1; j < k.hi; j++ {
		if later := k.entries.at(j); later.state == leased || later.state == acked {
			s.release(later)
		}
	}
	k.hi = min(k.hi, i)
}

// place answers where in its key a delivery is.
func (k *keyQueue) place(d *delivery) int {
	lo, hi := 0, k.entries.len()
	for lo < hi {
		mid := (lo + hi) / 2
		if k.entries.at(mid).message.id < d.message.id {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// pause answers how long a message waits after so many failures in a row.
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

// tick is what the timer calls.
func (s *subscription) tick() {
	now := s.server.clock.Now()
	s.mu.Lock()
	s.armed = time.Time{}
	if s.closed == nil {
		s.expire(now)
	}
	idle := s.closed == nil && s.idleUntil().Before(now.Add(time.Nanosecond)) && !s.inUse()
	s.unlock()
	if idle {
		s.server.expireSubscription(s)
	}
}

// expire ends what is due.
func (s *subscription) expire(now time.Time) {
	for len(s.deadlines) > 0 && !s.deadlines[0].deadline.After(now) {
		d := s.deadlines[0]
		if d.state == delayed {
			s.putBack(d)
			continue
		}
		s.server.observe(s, Expired, d.message)
		s.fail(d, now)
	}
	for s.backlog.len() > 0 && !s.dropAt(s.backlog.at(0).message).After(now) {
		s.drop(s.backlog.at(0)) // the oldest of all is the first of its key
	}
	for s.acked.len() > 0 && !s.forgetAt(s.acked.at(0)).After(now) {
		s.acked.popFront()
	}
}

// retention answers for how long a message is kept that is not acknowledged. [C5, D14]
func (s *subscription) retention() time.Duration {
	return max(s.cfg.GetMessageRetentionDuration().AsDuration(), time.Duration(s.topic.retention.Load()))
}

// dropAt answers when a message is dropped though nobody acknowledged it.
func (s *subscription) dropAt(m *message) time.Time {
	at := m.publishTime().Add(s.retention() + time.Millisecond)
	if at.Before(s.retainedUntil) {
		return s.retainedUntil
	}
	return at
}

// forgetAt answers until when an acknowledged message can come back. [D13]
func (s *subscription) forgetAt(m *message) time.Time {
	return m.publishTime().Add(s.cfg.GetMessageRetentionDuration().AsDuration() + time.Millisecond)
}

func (s *subscription) inUse() bool { return len(s.streams) > 0 }

// idleUntil answers when the subscription expires if nobody uses it.
func (s *subscription) idleUntil() time.Time {
	if ttl := s.cfg.GetExpirationPolicy().GetTtl(); ttl != nil {
		return s.used.Add(ttl.AsDuration())
	}
	return time.Unix(1<<40, 0)
}

// arm sets the timer for what comes first. It may run too early, which costs
// little, and never too late.
func (s *subscription) arm() {
	if s.closed != nil {
		s.timer.set(time.Time{})
		return
	}
	next := s.idleUntil()
	if s.inUse() {
		next = next.Add(24 * time.Hour)
	}
	if len(s.deadlines) > 0 {
		next = earlier(next, s.deadlines[0].deadline)
	}
	if s.backlog.len() > 0 {
		next = earlier(next, s.dropAt(s.backlog.at(0).message))
	}
	if s.acked.len() > 0 {
		next = earlier(next, s.forgetAt(s.acked.at(0)))
	}
	if s.armed.IsZero() || next.Before(s.armed) {
		s.armed = next
		s.timer.set(next)
	}
}

// use notes that somebody uses the subscription, and answers why that is not possible.
func (s *subscription) use() error {
	if s.closed != nil {
		return s.closed
	}
	s.used = s.server.clock.Now()
	return nil
}

// open admits a stream, or a Pull.
func (s *subscription) open(st *stream) error {
	s.mu.Lock()
	defer s.unlock()
	if err := s.use(); err != nil {
		return err
	}
	if s.cfg.GetPushConfig().GetPushEndpoint() != "" {
		return status.Error(codes.FailedPrecondition, "This method is not supported for push subscriptions.")
	}
	s.streams = append(s.streams, st)
	return nil
}

// shut takes back what a stream has, which is no failure; with exactly-once
// delivery the leases go on.
func (s *subscription) shut(st *stream) {
	s.mu.Lock()
	defer s.unlock()
	s.used = s.server.clock.Now()
	st.ended = true
	s.streams = slices.DeleteFunc(s.streams, func(other *stream) bool { return other == st })
	if st.outstanding == 0 {
		return
	}
	if s.cfg.GetEnableExactlyOnceDelivery() {
		return // [G19]
	}
	var had []*delivery
	for _, d := range s.lent.m {
		if d.state == leased && d.stream == st {
			had = append(had, d)
		}
	}
	// The last one first, so that the first one is the first to go again.
	slices.SortFunc(had, func(a, b *delivery) int { return cmp.Compare(b.message.id, a.message.id) })
	for _, d := range had {
		s.putBack(d)
	}
}

// close ends the subscription: everything it has is dropped, and whoever
// receives from it is told why.
func (s *subscription) close(why error) {
	s.mu.Lock()
	defer s.unlock()
	s.closed = why
	s.clear()
	s.acked = deque[*message]{}
	s.confirmed = confirmed{}
	for _, st := range s.streams {
		st.end(why)
	}
	s.streams = nil
}

// clear forgets the backlog.
func (s *subscription) clear() {
	for _, d := range s.lent.m {
		s.release(d)
	}
	s.backlog, s.done = deque[*delivery]{}, 0
	s.lent = table[uint64, *delivery]{}
	s.ready = deque[*delivery]{}
	s.keys = table[unique.Handle[string], *keyQueue]{}
	s.readyKeys = deque[*keyQueue]{}
	s.deadlines = nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// deadlines is a heap of deliveries that are leased or delayed.
type deadlines []*delivery

func (h deadlines) Len() int           { return len(h) }
func (h deadlines) Less(i, j int) bool { return h[i].deadline.Before(h[j].deadline) }
func (h deadlines) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = int32(i), int32(j) //nolint:gosec // fewer than 2^31 deliveries
}

// Push implements heap.Interface.
func (h *deadlines) Push(x any) {
	d, _ := x.(*delivery)
	d.index = int32(len(*h)) //nolint:gosec // fewer than 2^31 deliveries
	*h = append(*h, d)
}

// Pop implements heap.Interface.
func (h *deadlines) Pop() any {
	last := len(*h) - 1
	d := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	d.index = -1
	if cap(*h) > 1024 && len(*h) < cap(*h)/4 {
		*h = slices.Clone(*h)
	}
	return d
}
