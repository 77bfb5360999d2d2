package pubsublocal

import (
	"cmp"
	"hash/crc32"
	"slices"
	"sync"
	"time"
	"unique"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/gammazero/deque"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// subscription delivers the messages of a topic until they are acknowledged.
//
// Every change that makes a delivery possible ends with unlock, which delivers
// immediately. Such changes are a new message, an ack, or a stream with credit.
// There is no polling.
type subscription struct {
	server *Server
	name   string
	topic  *topic
	mark   uint32 // part of its ack ids: the checksum of its name, so that it is the same after a restart

	mu         sync.Mutex
	cfg        *pubsubpb.Subscription // the value is never changed, only replaced
	closed     error                  // why the subscription has ended; nil: it has not
	backlog    deque.Deque[*delivery] // unacknowledged messages in the order of publishing, and some that are done
	done       int                    // number of deliveries in backlog that are done
	lent       map[uint64]*delivery   // by lease; only the newest lease of each delivery
	lastLease  uint64                 // number of the newest lease
	ready      deque.Deque[*delivery] // deliveries that are ready and have no key
	keys       map[unique.Handle[string]]*keyQueue
	readyKeys  deque.Deque[*keyQueue] // keys that may have something to deliver, and some that have nothing left
	afterRun   bool                   // the last delivery had a key: the next one is from ready
	deadlines  queue[*delivery]       // of leases and retries
	acked      deque.Deque[*message]  // messages that retain_acked_messages retains, in the order of acks
	streams    []*stream              // open streams and waiting Pulls
	next       int                    // index of the stream whose turn it is
	duplicates int                    // how many more acknowledged messages are delivered again: a fault
	letters    []*delivery            // to be forwarded as dead letters when mu is unlocked
	timer      *timer
	armed      time.Time // when timer runs; zero: not set
}

func newSubscription(t *topic, cfg *pubsubpb.Subscription) *subscription {
	s := &subscription{
		server: t.server, name: cfg.GetName(), topic: t, mark: crc32.ChecksumIEEE([]byte(cfg.GetName())),
		cfg: cfg, lent: make(map[uint64]*delivery), keys: make(map[unique.Handle[string]]*keyQueue),
		// After a restart, the leases must be new, so that an old ack id does
		// not match.
		lastLease: uint64(t.server.clock.Now().UnixMicro()),
	}
	s.timer = t.server.clock.newTimer(s.settleNow)
	return s
}

// config returns the subscription in the form of the API.
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

// update replaces the configuration by the result of f.
func (s *subscription) update(f func(*pubsubpb.Subscription) (*pubsubpb.Subscription, error)) error {
	s.mu.Lock()
	defer s.unlock()
	cfg, err := f(s.cfg)
	if err != nil {
		return err
	}
	s.cfg = cfg
	if !cfg.GetRetainAckedMessages() {
		s.acked = deque.Deque[*message]{}
	}
	if cfg.GetDeadLetterPolicy() == nil {
		for i := range s.backlog.Len() {
			s.backlog.At(i).attempts, s.backlog.At(i).counted = 0, false
		}
	}
	s.settle(s.server.clock.Now())
	return nil
}

// settleNow handles everything that is due, also under a new retention of the topic. The timer calls it, too. [C6]
func (s *subscription) settleNow() {
	s.mu.Lock()
	defer s.unlock()
	s.settle(s.server.clock.Now())
}

// settle handles everything that is due under the present settings, before the next delivery.
func (s *subscription) settle(now time.Time) {
	s.armed = time.Time{}
	if s.closed == nil {
		s.expire(now)
	}
}

// offer adds the messages that were just published.
func (s *subscription) offer(messages []*message, now time.Time) {
	s.mu.Lock()
	for _, m := range messages {
		s.push(m)
	}
	// Not unlock, which may publish dead letters: the lock of the topic is
	// held. Nothing fails here, so there are none.
	s.pump(now)
	s.arm()
	s.mu.Unlock()
}

// unlock delivers what can be delivered, unlocks mu, and forwards dead letters.
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

// expire handles everything that is due: deadlines and retention.
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
	for s.backlog.Len() > 0 && !s.dropAt(s.backlog.At(0).message).After(now) {
		s.drop(s.backlog.At(0)) // the oldest message of all is also the first of its key
	}
	for s.acked.Len() > 0 && !s.forgetAt(s.acked.At(0)).After(now) {
		s.acked.PopFront()
	}
}

// retention returns how long an unacknowledged message is kept. [C5, D14]
func (s *subscription) retention() time.Duration {
	return max(s.cfg.GetMessageRetentionDuration().AsDuration(), time.Duration(s.topic.retention.Load()))
}

// dropAt returns when an unacknowledged message is dropped.
func (s *subscription) dropAt(m *message) time.Time {
	return m.publishTime().Add(s.retention() + time.Millisecond)
}

// forgetAt returns when an acknowledged message is dropped. Until then, a seek
// can bring it back. [D13]
func (s *subscription) forgetAt(m *message) time.Time {
	return m.publishTime().Add(s.cfg.GetMessageRetentionDuration().AsDuration() + time.Millisecond)
}

// arm sets the timer to the next time at which something is due. The timer may
// run too early, but never too late.
func (s *subscription) arm() {
	if s.closed != nil {
		s.timer.set(time.Time{})
		return
	}
	next := time.Unix(1<<40, 0)
	if len(s.deadlines) > 0 {
		next = earlier(next, s.deadlines[0].deadline)
	}
	if s.backlog.Len() > 0 {
		next = earlier(next, s.dropAt(s.backlog.At(0).message))
	}
	if s.acked.Len() > 0 {
		next = earlier(next, s.forgetAt(s.acked.At(0)))
	}
	if s.armed.IsZero() || next.Before(s.armed) {
		s.armed = next
		s.timer.set(next)
	}
}

// open adds a stream or a Pull.
func (s *subscription) open(st *stream) error {
	s.mu.Lock()
	defer s.unlock()
	if s.closed != nil {
		return s.closed
	}
	s.streams = append(s.streams, st)
	return nil
}

// shut removes a stream, and makes its deliveries ready again. That does not count
// as a failure.
func (s *subscription) shut(st *stream) {
	s.mu.Lock()
	defer s.unlock()
	st.ended = true
	s.streams = slices.DeleteFunc(s.streams, func(other *stream) bool { return other == st })
	st.out = nil // a delivery may refer to the stream for a long time
	if st.outstanding == 0 {
		return
	}
	var had []*delivery
	for _, d := range s.lent {
		if d.state == leased && d.stream == st {
			had = append(had, d)
		}
	}
	// Newest first, because putBack puts each before the others.
	slices.SortFunc(had, func(a, b *delivery) int { return cmp.Compare(b.message.id, a.message.id) })
	for _, d := range had {
		s.putBack(d)
	}
}

// close ends the subscription and drops its messages. Its streams end with the
// error why.
func (s *subscription) close(why error) {
	s.mu.Lock()
	defer s.unlock()
	s.closed = why
	s.clear()
	s.acked = deque.Deque[*message]{}
	for _, st := range s.streams {
		st.end(why)
	}
	s.streams = nil
}

// clear removes all deliveries.
func (s *subscription) clear() {
	for _, d := range s.lent {
		s.release(d)
	}
	s.backlog, s.done = deque.Deque[*delivery]{}, 0
	s.lent = make(map[uint64]*delivery)
	s.ready = deque.Deque[*delivery]{}
	s.keys = make(map[unique.Handle[string]]*keyQueue)
	s.readyKeys = deque.Deque[*keyQueue]{}
	s.deadlines = nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
