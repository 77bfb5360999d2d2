package pubsublocal

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/gammazero/deque"
	"google.golang.org/protobuf/proto"
)

// topic assigns ids to messages and passes them to its subscriptions.
//
// Locks are taken in the order registry, topic, subscription. Publishing and delivery do
// not take the lock of the registry.
type topic struct {
	server    *Server
	name      string
	gone      atomic.Bool  // deleted, but subscriptions may still refer to it
	retention atomic.Int64 // message_retention_duration; 0: none

	mu            sync.Mutex
	cfg           *pubsubpb.Topic       // guarded by mu: the value is never changed, only replaced
	lastTime      int64                 // guarded by mu
	subscriptions []*subscription       // guarded by mu
	log           deque.Deque[*message] // guarded by mu: messages that message_retention_duration of the topic retains
	trimming      *timer
}

func newTopic(s *Server, cfg *pubsubpb.Topic) *topic {
	t := &topic{server: s, name: cfg.GetName(), cfg: cfg}
	t.retention.Store(int64(cfg.GetMessageRetentionDuration().AsDuration()))
	t.trimming = s.clock.newTimer(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.trim(s.clock.Now())
	})
	return t
}

// shownName returns the name of the topic in the resources that refer to it.
func (t *topic) shownName() string {
	if t.gone.Load() {
		return deletedTopic
	}
	return t.name
}

// config returns the topic in the form of the API.
func (t *topic) config() *pubsubpb.Topic {
	t.mu.Lock()
	cfg := proto.CloneOf(t.cfg)
	t.mu.Unlock()
	cfg.State = pubsubpb.Topic_ACTIVE
	return cfg
}

// publish assigns ids to drafts and passes the messages to all subscriptions. It holds
// the lock throughout, so every subscription gets the messages in the order of
// their ids.
func (t *topic) publish(drafts []draft) ([]*message, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone.Load() {
		return nil, notFound(t.name)
	}
	now := t.server.clock.Now()
	t.lastTime = max(t.lastTime, now.UnixMilli())
	last := t.server.lastID.Add(uint64(len(drafts)))
	messages := make([]*message, len(drafts))
	for i := range drafts {
		messages[i] = drafts[i].stamp(last-uint64(len(drafts)-1-i), t.lastTime) //nolint:gosec // i is an index of drafts
	}
	t.server.observePublished(t, messages)
	if t.retention.Load() > 0 {
		for _, m := range messages {
			t.log.PushBack(m)
		}
		t.trim(now)
	}
	for _, s := range t.subscriptions {
		s.offer(messages, now)
	}
	return messages, nil
}

// trim drops the messages that the topic no longer retains. It is called with mu held.
func (t *topic) trim(now time.Time) {
	retention := time.Duration(t.retention.Load())
	oldest := now.Add(-retention).UnixMilli()
	for t.log.Len() > 0 && (retention == 0 || t.log.At(0).time < oldest) {
		t.log.PopFront()
	}
	var next time.Time
	if t.log.Len() > 0 {
		next = t.log.At(0).publishTime().Add(retention + time.Millisecond)
	}
	t.trimming.set(next)
}

// retained returns the messages that the topic retains, oldest first. It is called
// with mu held.
func (t *topic) retained() []*message {
	t.trim(t.server.clock.Now())
	return t.log.AppendToSlice(nil)
}

func (t *topic) setConfig(cfg *pubsubpb.Topic) {
	t.mu.Lock()
	t.cfg = cfg
	t.retention.Store(int64(cfg.GetMessageRetentionDuration().AsDuration()))
	t.trim(t.server.clock.Now())
	attached := slices.Clone(t.subscriptions)
	t.mu.Unlock() // the calls below may publish dead letters, which locks a topic
	for _, s := range attached {
		s.settleNow()
	}
}

// forgetSchema removes a deleted schema from the settings. A new schema of the same
// name is not used. [M18]
func (t *topic) forgetSchema(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cfg.GetSchemaSettings().GetSchema() == name {
		t.cfg = proto.CloneOf(t.cfg)
		t.cfg.SchemaSettings.Schema = deletedSchema
	}
}

func (t *topic) attach(s *subscription) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.subscriptions = append(t.subscriptions, s)
}

func (t *topic) remove(s *subscription) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.subscriptions = slices.DeleteFunc(t.subscriptions, func(other *subscription) bool { return other == s })
}

// close ends the topic. Its subscriptions keep their messages.
func (t *topic) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gone.Store(true)
	t.subscriptions = nil
	t.log = deque.Deque[*message]{}
	t.trimming.set(time.Time{})
}
