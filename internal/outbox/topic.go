package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"example.com/videocatalog/internal/envelope"
)

// Topic publishes to one Pub/Sub topic; it implements Broker. Every message has its
// aggregate as the ordering key.
//
// The client pauses an ordering key after one of its messages failed. The messages of the
// key that the client still holds fail too, until the key is resumed. Resuming it earlier
// could send old messages behind newer ones. So Topic resumes a key only after the responses
// to all its messages have been read. A pass hands over all its messages before it reads a
// response. So a message that comes after the resume belongs to a later pass, which has read
// the events of the key again.
type Topic struct {
	publisher *pubsub.Publisher
	waiters   sync.WaitGroup // goroutines that wait for abandoned messages, or flush
	handed    atomic.Bool    // something was handed over since the last flush

	mu   sync.Mutex
	keys map[string]*key // guarded by mu; keys with unread responses
}

// key is the state of an ordering key; guarded by Topic.mu.
type key struct {
	outstanding int  // messages whose response was not read yet
	abandoned   int  // of these, messages that no pass waits for any longer
	paused      bool // a message failed: nothing is sent until all responses are read
}

// NewTopic makes a Topic from a publisher of the client, and sets the publisher's settings.
// Message ordering is on. timeout limits the tries of one request; it must be well below
// Config.PublishTimeout. inFlight is how many requests may run at a time. A message that
// waits for its turn cannot be taken back, so inFlight must be at least the number of
// ordering keys in all passes of this process.
func NewTopic(publisher *pubsub.Publisher, timeout time.Duration, inFlight int) *Topic {
	publisher.EnableMessageOrdering = true
	settings := &publisher.PublishSettings
	settings.Timeout = timeout
	settings.NumGoroutines = inFlight
	// A key with many events should need few requests. DelayThreshold, the wait for more
	// messages, matters only to a pass that takes longer than that to hand over its events:
	// see flush.
	settings.CountThreshold = pubsub.MaxPublishRequestCount
	return &Topic{publisher: publisher, keys: map[string]*key{}}
}

// Stop waits for the messages that were handed over, and ends the goroutines of the client.
func (t *Topic) Stop() {
	t.waiters.Wait() // first, because Flush and Stop of the client must not run at the same time
	t.publisher.Stop()
}

// Publish implements Broker.
func (t *Topic) Publish(m envelope.Message) Receipt {
	message := &pubsub.Message{Data: m.Payload, Attributes: m.Attributes(), OrderingKey: m.AggregateID}
	r := &receipt{topic: t, key: m.AggregateID}
	if r.err = t.begin(r.key, size(message)); r.err == nil {
		r.result = t.publisher.Publish(context.Background(), message)
		t.handed.Store(true)
	}
	return r
}

// flush makes the client send its buffered messages now. A pass reads responses only after it
// has handed over all of its messages, so the client need not wait for more.
func (t *Topic) flush() {
	if t.handed.CompareAndSwap(true, false) {
		t.waiters.Go(t.publisher.Flush) // Flush waits for all responses
	}
}

func size(m *pubsub.Message) int {
	size := len(m.Data) + len(m.OrderingKey)
	for name, value := range m.Attributes {
		size += len(name) + len(value)
	}
	return size
}

var errNotSent = errors.New("not sent: the ordering key waits for the response to an earlier message")

// begin counts one more message of a key, and returns an error if the message must not be sent.
// A message that is not sent counts as failed. Otherwise the key could be resumed in the middle
// of a pass, and the rest of the pass would go out without that message.
func (t *Topic) begin(name string, size int) (err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.keys[name]
	if k == nil {
		k = &key{}
		t.keys[name] = k
	}
	switch {
	case k.abandoned > 0 || k.paused:
		k.paused, err = true, errNotSent
	case size > envelope.MaxMessageBytes: // the client would fail the earlier messages of the key, too
		k.paused, err = true, pubsub.ErrOversizedMessage
	}
	k.outstanding++
	return err
}

// responded records that the response to a message of a key was read.
func (t *Topic) responded(name string, abandoned bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.keys[name]
	k.outstanding--
	if abandoned {
		k.abandoned--
	}
	if err != nil {
		k.paused = true
	}
	if k.outstanding > 0 {
		return
	}
	if k.paused {
		t.publisher.ResumePublish(name)
	}
	delete(t.keys, name) // so that the map does not grow with every key
}

// abandon stops waiting for a message whose response did not come in time. The client may
// still send it.
func (t *Topic) abandon(name string, result *pubsub.PublishResult) {
	t.mu.Lock()
	t.keys[name].abandoned++
	t.mu.Unlock()
	t.waiters.Go(func() {
		_, err := result.Get(context.Background()) // the client's timeout ends it
		t.responded(name, true, err)
	})
}

type receipt struct {
	topic  *Topic
	key    string
	err    error                 // why the message was not sent
	result *pubsub.PublishResult // nil if it was not sent
}

func (r *receipt) Wait(ctx context.Context) error {
	err := r.err
	if r.result != nil {
		r.topic.flush()
		select {
		case <-r.result.Ready():
		case <-ctx.Done():
			select {
			case <-r.result.Ready(): // a response that has come counts
			default:
				r.topic.abandon(r.key, r.result)
				return ctx.Err()
			}
		}
		_, err = r.result.Get(context.Background()) // does not wait
	}
	r.topic.responded(r.key, false, err)
	if errors.Is(err, pubsub.ErrOversizedMessage) || status.Code(err) == codes.InvalidArgument {
		return &RefusedError{err}
	}
	return err
}

// Topics is a Broker that publishes a message to the topic of its aggregate
// type. Several types may share a topic. Do not change it while it is in use.
type Topics map[string]Broker

// Publish implements Broker. It refuses a message whose aggregate type has no topic. The
// event then blocks its aggregate only, and is parked after Config.MaxAttempts.
func (t Topics) Publish(m envelope.Message) Receipt {
	topic := t[m.AggregateType]
	if topic == nil {
		return &RefusedError{fmt.Errorf("no topic has the aggregate type %q", m.AggregateType)}
	}
	return topic.Publish(m)
}
