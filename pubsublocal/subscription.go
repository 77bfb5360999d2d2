package pubsublocal

import (
	"cmp"
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
	readyKeys     deque[*keyQueue] // those that may have something to deliver, and some that have nothing left
	afterRun      bool             // the last delivery was that of a key: now it is the turn of ready
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

// config returns the subscription as the API shows it.
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
	now := s.server.clock.Now()
	s.used = now
	if !cfg.GetRetainAckedMessages() {
		s.acked = deque[*message]{}
	}
	if cfg.GetDeadLetterPolicy() == nil {
		for i := range s.backlog.len() {
			s.backlog.at(i).attempts, s.backlog.at(i).counted = 0, false
		}
	}
	s.settle(now)
	return nil
}

// retentionChanged is called when the topic retains messages longer, or not so long. [C6]
func (s *subscription) retentionChanged() {
	s.mu.Lock()
	defer s.unlock()
	s.settle(s.server.clock.Now())
}

// settle does what is due by new settings, before anything is delivered by them.
func (s *subscription) settle(now time.Time) {
	s.armed = time.Time{}
	if s.closed == nil {
		s.expire(now)
	}
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
	s.confirmed.forget(now)
}

// retention returns for how long a message is kept that is not acknowledged. [C5, D14]
func (s *subscription) retention() time.Duration {
	return max(s.cfg.GetMessageRetentionDuration().AsDuration(), time.Duration(s.topic.retention.Load()))
}

// dropAt returns when a message is dropped though nobody acknowledged it.
func (s *subscription) dropAt(m *message) time.Time {
	at := m.publishTime().Add(s.retention() + time.Millisecond)
	if at.Before(s.retainedUntil) {
		return s.retainedUntil
	}
	return at
}

// forgetAt returns until when an acknowledged message can come back. [D13]
func (s *subscription) forgetAt(m *message) time.Time {
	return m.publishTime().Add(s.cfg.GetMessageRetentionDuration().AsDuration() + time.Millisecond)
}

func (s *subscription) inUse() bool { return len(s.streams) > 0 }

// idleUntil returns when the subscription expires if nobody uses it.
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
	next := time.Unix(1<<40, 0)
	if !s.inUse() { // else shut comes before it expires
		next = s.idleUntil()
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
	if deadline, ok := s.confirmed.next(); ok {
		next = earlier(next, deadline)
	}
	if s.armed.IsZero() || next.Before(s.armed) {
		s.armed = next
		s.timer.set(next)
	}
}

// use notes that somebody uses the subscription, and returns why that is not possible.
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
	st.out, st.confirmations = nil, nil // a delivery may remember the stream for long
	if st.outstanding == 0 {
		return
	}
	if s.cfg.GetEnableExactlyOnceDelivery() && !st.pull { // what a Pull did not answer nobody has [F7]
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
