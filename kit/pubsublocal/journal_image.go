package pubsublocal

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
	"unique"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// image is the content of a journal, without the data of messages.
type image struct {
	lastID        uint64
	lastMark      uint32
	starts        uint64
	schemas       map[string][]*pubsubpb.Schema
	topics        map[uint64]*topicImage
	subscriptions map[uint32]*subscriptionImage
	snapshots     map[string]*snapshotImage
	topicNames    map[string]*topicImage        // by name, without deleted topics
	names         map[string]*subscriptionImage // subscriptions by name
}

// Records of concurrent events may be in either order. So a record may refer to
// a resource whose own record comes later. Until then cfg is nil.
type (
	topicImage struct {
		number        uint64
		cfg           *pubsubpb.Topic
		gone          bool
		lastTime      int64
		messages      []messageImage // all in the file, ordered by id
		subscriptions []*subscriptionImage
		snapshots     []*snapshotImage
	}
	messageImage struct {
		id       uint64
		time     int64
		retained bool // retained by the topic
		released bool // no longer needed by its topic or a snapshot; a seek that started before may still use it
		live     bool // set by prune
	}
	subscriptionImage struct {
		mark     uint32
		topic    *topicImage
		cfg      *pubsubpb.Subscription
		filter   filter
		until    int64 // as subscription.retainedUntil
		unacked  idSet
		retained idSet // acknowledged messages
	}
	snapshotImage struct {
		topic *topicImage
		cfg   *pubsubpb.Snapshot
		ids   []uint64
	}
	idSet map[uint64]struct{}
)

func newIDSet(ids []uint64) idSet {
	set := idSet{}
	for _, id := range ids {
		set[id] = struct{}{}
	}
	return set
}

func (s idSet) sorted() []uint64 { return slices.Sorted(maps.Keys(s)) }

func newImage() *image {
	return &image{
		schemas: map[string][]*pubsubpb.Schema{}, topics: map[uint64]*topicImage{},
		subscriptions: map[uint32]*subscriptionImage{}, snapshots: map[string]*snapshotImage{},
		topicNames: map[string]*topicImage{}, names: map[string]*subscriptionImage{},
	}
}

func (t *topicImage) find(id uint64) *messageImage {
	i, ok := slices.BinarySearchFunc(t.messages, id, func(m messageImage, id uint64) int { return cmp.Compare(m.id, id) })
	if !ok {
		return nil
	}
	return &t.messages[i]
}

// release ends the retention of a message by its topic.
func (m *messageImage) release() {
	m.released = m.released || m.retained
	m.retained = false
}

func (img *image) topic(number uint64) *topicImage {
	t := img.topics[number]
	if t == nil {
		t = &topicImage{number: number}
		img.topics[number] = t
	}
	return t
}

func (img *image) subscription(mark uint32) *subscriptionImage {
	s := img.subscriptions[mark]
	if s == nil {
		s = &subscriptionImage{mark: mark, unacked: idSet{}, retained: idSet{}}
		img.subscriptions[mark] = s
	}
	return s
}

// apply applies the records of a frame.
func (img *image) apply(records []byte) error {
	return eachRecord(records, func(kind byte, f *fields) error {
		switch kind {
		case recordCounters:
			img.noteID(f.number())
			img.lastMark = max(img.lastMark, f.mark())
			img.starts = f.number()
		case recordTopic:
			img.applyTopic(f)
		case recordSubscription:
			return img.applySubscription(f)
		case recordSnapshot:
			img.applySnapshot(f)
		case recordSchema:
			img.applySchema(f)
		case recordDeleted:
			img.applyDeleted(f.text())
		case recordPublished:
			return img.applyPublished(f)
		case recordAcknowledged:
			img.applyAcknowledged(f)
		case recordReset:
			s := img.subscription(f.mark())
			s.topic, s.until = img.topic(f.number()), f.time()
			s.unacked, s.retained = newIDSet(f.ids()), newIDSet(f.ids())
		default:
			return errBadRecord
		}
		return nil
	})
}

func (img *image) noteID(id uint64) { img.lastID = max(img.lastID, id) }

func (img *image) applyTopic(f *fields) {
	img.noteID(f.number())
	t := img.topic(f.number())
	t.gone, t.lastTime = f.flag(), max(t.lastTime, f.time())
	retained := f.number()
	t.cfg = &pubsubpb.Topic{}
	f.message(t.cfg)
	for i := range t.messages {
		if t.messages[i].id < retained {
			t.messages[i].release()
		}
	}
	if !t.gone {
		img.topicNames[t.cfg.GetName()] = t
	}
}

func (img *image) applySubscription(f *fields) error {
	img.noteID(f.number())
	s := img.subscription(f.mark())
	img.lastMark = max(img.lastMark, s.mark)
	t, first := img.topic(f.number()), s.cfg == nil
	s.cfg = &pubsubpb.Subscription{}
	f.message(s.cfg)
	if first {
		s.topic = t
		img.names[s.cfg.GetName()] = s
		if !t.gone {
			t.subscriptions = append(t.subscriptions, s)
		}
		var err error
		if s.filter, err = parseFilter(s.cfg.GetFilter()); err != nil {
			return fmt.Errorf("filter of %s: %w", s.cfg.GetName(), err)
		}
	}
	if s.cfg.GetDetached() {
		s.unacked, s.retained = idSet{}, idSet{}
		t.subscriptions = slices.DeleteFunc(t.subscriptions, func(other *subscriptionImage) bool { return other == s })
	}
	if !s.cfg.GetRetainAckedMessages() {
		s.retained = idSet{}
	}
	return nil
}

func (img *image) applySnapshot(f *fields) {
	img.noteID(f.number())
	s := &snapshotImage{topic: img.topic(f.number()), cfg: &pubsubpb.Snapshot{}}
	f.message(s.cfg)
	s.ids = f.ids()
	img.dropSnapshot(s.cfg.GetName())
	img.snapshots[s.cfg.GetName()] = s
	if !s.topic.gone {
		s.topic.snapshots = append(s.topic.snapshots, s)
	}
}

func (img *image) dropSnapshot(name string) {
	if s := img.snapshots[name]; s != nil {
		delete(img.snapshots, name)
		for _, id := range s.ids {
			if m := s.topic.find(id); m != nil {
				m.released = true
			}
		}
		s.topic.snapshots = slices.DeleteFunc(s.topic.snapshots, func(other *snapshotImage) bool { return other == s })
	}
}

func (img *image) applySchema(f *fields) {
	name := f.text()
	delete(img.schemas, name)
	for f.more() {
		s := &pubsubpb.Schema{}
		f.message(s)
		img.schemas[name] = append(img.schemas[name], s)
	}
	if len(img.schemas[name]) > 0 {
		return
	}
	for _, t := range img.topicNames { // as topic.forgetSchema does
		if t.cfg.GetSchemaSettings().GetSchema() == name {
			t.cfg.SchemaSettings.Schema = deletedSchema
		}
	}
}

func (img *image) applyDeleted(name string) {
	if t := img.topicNames[name]; t != nil {
		delete(img.topicNames, name)
		t.gone, t.subscriptions, t.snapshots = true, nil, nil
		for i := range t.messages {
			t.messages[i].release()
		}
	}
	if s := img.names[name]; s != nil {
		delete(img.names, name)
		delete(img.subscriptions, s.mark)
		s.topic.subscriptions = slices.DeleteFunc(s.topic.subscriptions, func(other *subscriptionImage) bool { return other == s })
	}
	img.dropSnapshot(name)
}

func (img *image) applyPublished(f *fields) error {
	t := img.topic(f.number())
	filtered := slices.ContainsFunc(t.subscriptions, func(s *subscriptionImage) bool { return s.filter != nil })
	for f.more() {
		m, encoded := f.next()
		if n := len(t.messages); n > 0 && t.messages[n-1].id >= m.id {
			return errBadRecord
		}
		var decoded pubsubpb.PubsubMessage
		if filtered {
			if err := proto.Unmarshal(encoded, &decoded); err != nil {
				return fmt.Errorf("message %d: %w", m.id, err)
			}
		}
		img.noteID(m.id)
		t.lastTime = max(t.lastTime, m.time)
		t.messages = append(t.messages, m)
		for _, s := range t.subscriptions {
			if s.filter.match(decoded.GetAttributes()) {
				s.unacked[m.id] = struct{}{}
			}
		}
		for _, s := range t.snapshots {
			s.ids = append(s.ids, m.id)
		}
	}
	return nil
}

func (img *image) applyAcknowledged(f *fields) {
	s, retained := img.subscriptions[f.mark()], f.flag()
	for _, id := range f.ids() {
		if s == nil {
			continue // the subscription was deleted
		}
		if _, ok := s.unacked[id]; ok && retained {
			s.retained[id] = struct{}{}
		}
		delete(s.unacked, id)
	}
}

// dropUnfinished removes the resources whose own record was not written before
// the file ended.
func (img *image) dropUnfinished() {
	maps.DeleteFunc(img.topics, func(_ uint64, t *topicImage) bool { return t.cfg == nil })
	maps.DeleteFunc(img.subscriptions, func(_ uint32, s *subscriptionImage) bool { return s.cfg == nil })
}

// prune removes what is no longer retained, and marks the live messages.
func (img *image) prune(now time.Time) {
	for _, t := range img.topics {
		oldest := now.Add(-t.cfg.GetMessageRetentionDuration().AsDuration()).UnixMilli()
		for i := range t.messages {
			m := &t.messages[i]
			m.retained = m.retained && (t.cfg == nil || m.time >= oldest)
			m.live = m.retained || m.released
		}
	}
	needed := map[*topicImage]bool{}
	for _, s := range img.subscriptions {
		needed[s.topic] = true
		forgotten := now.Add(-s.cfg.GetMessageRetentionDuration().AsDuration()).UnixMilli()
		maps.DeleteFunc(s.retained, func(id uint64, _ struct{}) bool {
			m := s.topic.find(id)
			return m == nil || s.cfg != nil && m.time < forgotten
		})
		for _, set := range []idSet{s.unacked, s.retained} {
			for id := range set {
				s.topic.need(id)
			}
		}
	}
	for _, s := range img.snapshots {
		needed[s.topic] = true
		for _, id := range s.ids {
			s.topic.need(id)
		}
	}
	maps.DeleteFunc(img.topics, func(_ uint64, t *topicImage) bool { return t.gone && !needed[t] })
}

func (t *topicImage) need(id uint64) {
	if m := t.find(id); m != nil {
		m.live = true
	}
}

// writeResources writes the records that come before messages. Subscriptions
// come after them, so that old messages are not added to a backlog as new ones.
func (img *image) writeResources(w *frameWriter) {
	w.add(recordCounters, func(b []byte) []byte {
		b = appendNumber(b, img.lastID)
		b = appendNumber(b, uint64(img.lastMark))
		return appendNumber(b, img.starts)
	})
	for _, name := range slices.Sorted(maps.Keys(img.schemas)) {
		if revisions := img.schemas[name]; len(revisions) > 0 {
			w.add(recordSchema, func(b []byte) []byte { return appendSchema(b, name, revisions) })
		}
	}
	for _, number := range slices.Sorted(maps.Keys(img.topics)) {
		if t := img.topics[number]; t.cfg != nil {
			w.add(recordTopic, func(b []byte) []byte {
				return appendTopic(b, img.lastID, t.number, t.gone, t.lastTime, 0, t.cfg)
			})
		}
	}
}

// copyLive copies the live messages of a frame.
func (img *image) copyLive(w *frameWriter, records []byte, keep func(*message)) error {
	return eachRecord(records, func(kind byte, f *fields) error {
		if kind != recordPublished {
			return nil
		}
		t := img.topics[f.number()]
		if t == nil {
			return nil
		}
		body := appendNumber(w.scratch[:0], t.number)
		none := len(body)
		for f.more() {
			m, encoded := f.next()
			known := t.find(m.id)
			if known == nil || !known.live {
				continue
			}
			body = appendMessage(body, m.id, m.time, known.retained, encoded)
			if keep != nil {
				keep(&message{id: m.id, time: m.time, key: unique.Make(orderingKey(encoded)), encoded: bytes.Clone(encoded)})
			}
		}
		w.scratch = body
		if len(body) > none {
			w.add(recordPublished, func(b []byte) []byte { return append(b, body...) })
		}
		return w.err
	})
}

// orderingKey returns the ordering key of an encoded message.
func orderingKey(encoded []byte) string {
	const field = 5
	var key []byte
	for len(encoded) > 0 {
		number, kind, n := protowire.ConsumeTag(encoded)
		if n < 0 {
			break
		}
		size := protowire.ConsumeFieldValue(number, kind, encoded[n:])
		if size < 0 {
			break
		}
		if number == field && kind == protowire.BytesType {
			key, _ = protowire.ConsumeBytes(encoded[n:])
		}
		encoded = encoded[n+size:]
	}
	return string(key)
}

// writeBacklogs writes the records that refer to messages.
func (img *image) writeBacklogs(w *frameWriter) {
	for _, mark := range slices.Sorted(maps.Keys(img.subscriptions)) {
		s := img.subscriptions[mark]
		if s.cfg != nil {
			w.add(recordSubscription, func(b []byte) []byte {
				return appendSubscription(b, img.lastID, s.mark, s.topic.number, s.cfg)
			})
		}
		w.add(recordReset, func(b []byte) []byte {
			return appendReset(b, s.mark, s.topic.number, s.until, s.unacked.sorted(), s.retained.sorted())
		})
	}
	for _, name := range slices.Sorted(maps.Keys(img.snapshots)) {
		s := img.snapshots[name]
		w.add(recordSnapshot, func(b []byte) []byte { return appendSnapshot(b, img.lastID, s.topic.number, s.cfg, s.ids) })
	}
}
