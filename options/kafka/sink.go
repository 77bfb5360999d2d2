package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
)

const (
	// maxBatchBytes is the largest batch of records, which is what max.message.bytes of a topic limits. A message
	// of envelope.MaxMessageBytes fits with its framing.
	maxBatchBytes = envelope.MaxMessageBytes + 1_000
	// flushBytes is about how much a round sends before it waits for the responses, so that one batch stays below the
	// limit that topics have by default.
	flushBytes = 900_000
	// mostAlone is how many keys a sink remembers of which a message was refused.
	mostAlone = 10_000
)

// Sink publishes to one topic; it implements outbox.Broker. The aggregate is the key of a record, and so decides its
// partition. A record has the same attributes and bytes as a message of Pub/Sub.
//
// It sends in rounds: Publish only queues, and a round takes the queue, leaves out the keys that have failed, sends
// the rest, and ends with the last response. So no message can follow one whose failure is not known yet. A client
// that sends while responses come reports a failure after it has taken the next message of the key.
//
// If the broker refuses one message, it refuses all messages of the same partition in the request. If there are several,
// the round sends them again, one at a time, with all later ones of their keys. The key that is then refused goes alone until
// the broker takes one of its messages.
type Sink struct {
	options []kgo.Opt
	client  *kgo.Client // only the loop uses it
	err     error       // why there is no client
	topic   string
	limit   time.Duration
	ring    chan struct{}      // has a place for a pass that waits
	life    context.Context    //nolint:containedctx // ends when Stop does not wait any longer
	giveUp  context.CancelFunc // of life
	stop    chan struct{}
	ended   chan struct{} // when the loop has ended

	mu    sync.Mutex
	queue []*receipt
	keys  map[string]*key // with unread responses
	alone map[string]bool // of which a message was refused
}

// key is the state of a key; guarded by Sink.mu.
type key struct {
	outstanding int  // messages whose response was not read yet
	failed      bool // nothing is sent until all responses are read
	alone       bool // one message is sent at a time, until all responses are read
}

// NewSink makes the Sink of a topic. limit is how long the client tries to send a message; it must be well below
// outbox.Config.PublishTimeout. A message that was sent stays in flight until the broker's response is known, however
// long that takes: otherwise it could come behind a newer one. cluster are the options of Settings.Options. If the
// client refuses them, no message is sent.
func NewSink(cluster []kgo.Opt, topic string, limit time.Duration) *Sink {
	s := &Sink{
		topic: topic, limit: limit, keys: map[string]*key{}, alone: map[string]bool{},
		ring: make(chan struct{}, 1), stop: make(chan struct{}), ended: make(chan struct{}),
	}
	s.life, s.giveUp = context.WithCancel(context.Background())
	s.options = append([]kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()), // the client is idempotent unless it is told otherwise
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
		kgo.ManualFlushing(), kgo.MaxBufferedRecords(1 << 30), // a pass limits both
		kgo.ProducerBatchMaxBytes(maxBatchBytes),
		kgo.RecordDeliveryTimeout(max(limit, time.Second)), kgo.ProduceRequestTimeout(limit), // the client takes no less than a second
	}, cluster...)
	s.client, s.err = kgo.NewClient(s.options...)
	go s.run()
	return s
}

// Stop waits for the messages that were handed over, at most as long as NewSink's limit, and closes the client.
func (s *Sink) Stop() {
	close(s.stop)
	patience := time.AfterFunc(s.limit, s.giveUp)
	<-s.ended
	patience.Stop()
	s.giveUp()
	if s.err == nil {
		s.client.Close()
	}
}

var errNotSent = errors.New("not sent: the key waits for the response to an earlier message")

// Publish implements outbox.Broker.
func (s *Sink) Publish(m envelope.Message) outbox.Receipt {
	r := &receipt{sink: s, key: m.AggregateID, record: s.record(m), done: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.keys[r.key]
	if k == nil {
		k = &key{alone: s.alone[r.key]}
		s.keys[r.key] = k
	}
	k.outstanding++
	switch r.size = size(r.record); {
	case k.failed:
		s.respond(r, errNotSent)
	case r.size > envelope.MaxMessageBytes: // the client would fail the other messages of its partition, too
		s.respond(r, &outbox.RefusedError{Err: fmt.Errorf("%w: %d bytes, at most %d can be published", kerr.MessageTooLarge, r.size, envelope.MaxMessageBytes)})
	default:
		s.queue = append(s.queue, r)
	}
	return r
}

// record returns the record of a message. Its headers are in the order of their names.
func (s *Sink) record(m envelope.Message) *kgo.Record {
	r := &kgo.Record{Topic: s.topic, Key: []byte(m.AggregateID), Value: m.Payload}
	if r.Value == nil {
		r.Value = []byte{} // nil would be a tombstone, which compaction deletes
	}
	attributes := m.Attributes()
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(attributes[name])})
	}
	return r
}

func size(r *kgo.Record) int {
	size := len(r.Key) + len(r.Value)
	for _, header := range r.Headers {
		size += len(header.Key) + len(header.Value)
	}
	return size
}

// receipt is a message on its way; guarded by Sink.mu.
type receipt struct {
	sink    *Sink
	key     string
	record  *kgo.Record // nil if it was given up before it was sent
	size    int         // in bytes
	taken   bool        // it was sent, and not refused with others, or has its response
	gone    bool        // no pass waits for it any longer
	failure error       // of the client, until the round has ended; only the loop reads it
	err     error
	done    chan struct{} // closed when err is known
}

// Wait implements outbox.Receipt.
func (r *receipt) Wait(ctx context.Context) error {
	s := r.sink
	select {
	case <-r.done:
	default:
		select {
		case s.ring <- struct{}{}: // a pass waits only after it has handed over all of its messages
		default: // a round is due already
		}
		select {
		case <-r.done:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-r.done: // a response that has come counts
		s.read(r)
		return r.err
	default:
	}
	s.keys[r.key].failed, r.gone = true, true
	if !r.taken { // it is never sent
		r.record = nil
		s.read(r)
	}
	return ctx.Err()
}

// read counts a response as read.
func (s *Sink) read(r *receipt) {
	k := s.keys[r.key]
	if k.outstanding--; k.outstanding == 0 {
		delete(s.keys, r.key) // so that the map does not grow with every key
	}
}

// respond ends a message. A failed one that no pass waits for counts as read, and its key stays failed until the
// others are read, too.
func (s *Sink) respond(r *receipt, err error) {
	r.err, r.taken, r.record = err, true, nil
	if err == nil {
		delete(s.alone, r.key)
	} else {
		s.keys[r.key].failed = true
	}
	close(r.done)
	if r.gone {
		s.read(r)
	}
}

// run makes rounds until Stop is called. It is the only goroutine that sends.
func (s *Sink) run() {
	defer close(s.ended)
	for {
		select {
		case <-s.ring:
			s.round()
		case <-s.stop:
			s.round()
			return
		}
	}
}

// round sends what is queued: first the keys that may share a request, then the others, one message at a time.
func (s *Sink) round() {
	s.mu.Lock()
	queue := s.queue
	s.queue = nil
	s.mu.Unlock()
	for rest := queue; len(rest) > 0; {
		n, bytes := 0, 0
		for ; n < len(rest) && bytes < flushBytes; n++ {
			bytes += rest[n].size
		}
		s.send(s.admit(rest[:n], false))
		rest = rest[n:]
	}
	for i := range queue {
		s.send(s.admit(queue[i:i+1], true))
	}
}

// admit returns the messages that may be sent now, of keys that go alone, or of those that do not.
func (s *Sink) admit(queue []*receipt, alone bool) (admitted []*receipt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range queue {
		switch {
		case r.taken || r.record == nil || s.keys[r.key].alone != alone:
		case s.keys[r.key].failed:
			s.respond(r, errNotSent)
		case s.err != nil:
			s.respond(r, s.err)
		default:
			r.taken = true
			admitted = append(admitted, r)
		}
	}
	return admitted
}

// send sends messages, and returns after the last response. A pass gets an acknowledgement at once, and a failure only
// then.
func (s *Sink) send(messages []*receipt) {
	if len(messages) == 0 {
		return
	}
	// First the producer id. If the cluster refuses it while the client loads the topic, a message can stay in the buffer for ever.
	asked, cancel := context.WithTimeout(s.life, s.limit)
	defer cancel()
	if _, _, err := s.client.ProducerID(asked); err != nil {
		for _, r := range messages {
			r.failure = err
		}
		s.end(messages, asked.Err() == nil) // the client keeps what the cluster has answered
		return
	}
	start := time.Now()
	for _, r := range messages {
		s.client.TryProduce(s.life, r.record, func(_ *kgo.Record, err error) {
			if r.failure = err; err == nil {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.respond(r, nil)
			}
		})
	}
	// The client gives up messages after the limit. If this process was frozen in the loop above for that long, the client
	// has given up the first ones, and would send the later ones. Nothing was sent yet: give up all.
	if time.Since(start) > s.limit/4 {
		_ = s.client.AbortBufferedRecords(s.life)
	}
	// A crash before the response leaves events that are still pending, and may be in the topic.
	if s.client.Flush(s.life) != nil {
		return // Stop has given up
	}
	s.end(messages, false)
}

// end ends messages that have failed. If some were refused together, it leaves them to the round, which sends each alone. A client
// that is stuck does not recover.
func (s *Sink) end(messages []*receipt, stuck bool) {
	refused := make(map[int32]int) // by partition
	for _, r := range messages {
		if isRefusal(r.failure) {
			refused[r.record.Partition]++
		}
		stuck = stuck || isRefused(r.failure) // it lacked a right, or its topic was deleted
	}
	if stuck {
		s.client.Close()
		s.client, s.err = kgo.NewClient(s.options...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range messages {
		switch {
		case r.failure == nil:
		case !isRefusal(r.failure):
			s.respond(r, r.failure)
		case refused[r.record.Partition] == 1:
			if len(s.alone) == mostAlone {
				clear(s.alone) // they are found again
			}
			s.alone[r.key] = true
			s.respond(r, &outbox.RefusedError{Err: r.failure})
		default: // none of them is in the topic; the client would give up a record whose time is long ago
			s.keys[r.key].alone, r.taken, r.record.Timestamp = true, false, time.Time{}
		}
	}
}

// isRefusal reports whether the broker refused a record because of its content.
func isRefusal(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge) || errors.Is(err, kerr.InvalidRecord)
}
