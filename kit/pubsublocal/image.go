package pubsublocal

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"unique"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/gammazero/deque"
	"google.golang.org/protobuf/proto"
)

// image is the content of Config.File.
type image struct {
	Schemas       [][]byte // encoded; the revisions of a schema are oldest first
	Topics        []resourceImage
	Subscriptions []resourceImage
	Messages      map[uint64]messageImage // by id; each is stored once
}

type resourceImage struct {
	Config   []byte   // encoded Topic or Subscription
	Unacked  []uint64 // messages that a subscription must deliver, oldest first
	Retained []uint64 // messages that a topic retains, or acknowledged ones that a subscription retains
}

type messageImage struct {
	Time    int64
	Key     string
	Encoded []byte
}

// save writes the file. It is called when nothing can change any more.
func (s *Server) save() error {
	if s.file == "" {
		return nil
	}
	img := &image{Messages: map[uint64]messageImage{}}
	for _, schema := range s.schemas.dump() {
		encoded, err := proto.Marshal(schema)
		if err != nil {
			return fmt.Errorf("encode schema %s: %w", schema.GetName(), err)
		}
		img.Schemas = append(img.Schemas, encoded)
	}
	for _, t := range s.topics.all("") {
		saved, err := img.topic(t)
		if err != nil {
			return fmt.Errorf("encode topic %s: %w", t.name, err)
		}
		img.Topics = append(img.Topics, saved)
	}
	for _, sub := range s.subscriptions.all("") {
		saved, err := img.subscription(sub)
		if err != nil {
			return fmt.Errorf("encode subscription %s: %w", sub.name, err)
		}
		img.Subscriptions = append(img.Subscriptions, saved)
	}
	return img.write(s.file)
}

func (img *image) topic(t *topic) (saved resourceImage, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.retained() {
		saved.Retained = append(saved.Retained, img.keep(m))
	}
	saved.Config, err = proto.Marshal(t.cfg)
	return saved, err
}

func (img *image) subscription(sub *subscription) (saved resourceImage, err error) {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	for i := range sub.backlog.Len() {
		if d := sub.backlog.At(i); d.state <= acked { // an acknowledged one waits for earlier ones of its key
			saved.Unacked = append(saved.Unacked, img.keep(d.message))
		}
	}
	for i := range sub.acked.Len() {
		saved.Retained = append(saved.Retained, img.keep(sub.acked.At(i)))
	}
	cfg := proto.CloneOf(sub.cfg)
	cfg.Topic = sub.topic.shownName()
	saved.Config, err = proto.Marshal(cfg)
	return saved, err
}

// keep adds a message, and returns its id.
func (img *image) keep(m *message) uint64 {
	img.Messages[m.id] = messageImage{Time: m.time, Key: m.key.Value(), Encoded: m.encoded}
	return m.id
}

// write replaces the file as a whole: a crash leaves the old one.
func (img *image) write(file string) error {
	var encoded bytes.Buffer
	if err := gob.NewEncoder(&encoded).Encode(img); err != nil {
		return fmt.Errorf("encode %s: %w", file, err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", encoded.Bytes(), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// load restores what save wrote. It is called before the server is used.
func (s *Server) load() error {
	if s.file == "" {
		return nil
	}
	// Without a Close, the file does not have the newest ids. They must not be used again.
	s.lastID.Store(uint64(s.clock.Now().UnixMicro()))
	encoded, err := os.ReadFile(s.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var img image
	if err == nil {
		err = gob.NewDecoder(bytes.NewReader(encoded)).Decode(&img)
	}
	if err == nil {
		err = s.restore(&img)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w: delete it to start without its messages", s.file, err)
	}
	return nil
}

func (s *Server) restore(img *image) error {
	messages := map[uint64]*message{}
	for id, m := range img.Messages {
		messages[id] = &message{id: id, time: m.Time, key: unique.Make(m.Key), encoded: m.Encoded}
		s.lastID.Store(max(s.lastID.Load(), id)) // the clock may have gone back
	}
	for _, encoded := range img.Schemas {
		schema := &pubsubpb.Schema{}
		if err := errors.Join(proto.Unmarshal(encoded, schema), s.schemas.restore(schema)); err != nil {
			return err
		}
	}
	for _, saved := range img.Topics {
		cfg := &pubsubpb.Topic{}
		if err := proto.Unmarshal(saved.Config, cfg); err != nil {
			return err
		}
		t := newTopic(s, cfg)
		t.log = pick(saved.Retained, messages)
		s.topics.set(t.name, t)
		t.mu.Lock()
		t.trim(s.clock.Now())
		t.mu.Unlock()
	}
	for _, saved := range img.Subscriptions {
		if err := s.restoreSubscription(saved, messages); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) restoreSubscription(saved resourceImage, messages map[uint64]*message) error {
	cfg := &pubsubpb.Subscription{}
	if err := proto.Unmarshal(saved.Config, cfg); err != nil {
		return err
	}
	t := s.topics.get(cfg.GetTopic())
	if t == nil { // deleted before the restart
		t = newTopic(s, &pubsubpb.Topic{Name: cfg.GetTopic()})
		t.close()
	}
	sub := newSubscription(t, cfg)
	sub.mu.Lock()
	sub.acked = pick(saved.Retained, messages)
	for unacked := pick(saved.Unacked, messages); unacked.Len() > 0; {
		sub.push(unacked.PopFront())
	}
	sub.unlock()
	s.subscriptions.set(sub.name, sub)
	if !t.gone.Load() {
		t.attach(sub)
	}
	return nil
}

func pick(ids []uint64, messages map[uint64]*message) (picked deque.Deque[*message]) {
	for _, id := range ids {
		picked.PushBack(messages[id])
	}
	return picked
}
