package outbox

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/googleapis/gax-go/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"example.com/videocatalog/internal/envelope"
)

// Topic is a Pub/Sub topic as a Broker. Every message goes out with its
// aggregate as the ordering key.
//
// The client pauses an ordering key when a message of it failed: whatever it
// still holds of the key fails too, until the key is resumed. Resuming is safe
// only when nothing of the key is held any longer, or old messages would go out
// behind newer ones; so Topic resumes a key when the answers to all its messages
// have been read. A pass hands over all that it has before it reads one: what
// comes then is of a later pass, which has read the events of the key anew.
type Topic struct {
	publisher *pubsub.Publisher
	waiters   sync.WaitGroup // for answers of abandoned messages, and in flush
	handed    atomic.Bool    // something was handed over since the last flush

	mu   sync.Mutex
	keys map[string]*key // guarded by mu; those with answers to come
}

// key is what Topic knows of an ordering key; guarded by Topic.mu.
type key struct {
	outstanding int  // messages whose answer nobody has read
	abandoned   int  // those of them that no pass waits for any longer
	paused      bool // a message failed: nothing is sent until all answers are read
}

// NewTopic makes a Topic of a publisher of the client, whose settings it sets:
// ordering on; a request is tried for at most timeout, which must be well below
// Config.PublishTimeout; inFlight requests at a time, at least as many as
// ordering keys in all passes of this process, because what waits for its turn
// cannot be taken back.
func NewTopic(publisher *pubsub.Publisher, timeout time.Duration, inFlight int) *Topic {
	publisher.EnableMessageOrdering = true
	settings := &publisher.PublishSettings
	settings.Timeout = timeout
	settings.NumGoroutines = inFlight
	// A key with many events should go out in few requests. For how long one waits
	// for more (DelayThreshold) matters only to a pass that takes longer to hand over
	// what it has: see flush.
	settings.CountThreshold = pubsub.MaxPublishRequestCount
	return &Topic{publisher: publisher, keys: map[string]*key{}}
}

// RetrySoon bounds the pauses of a client between two attempts at a publish
// request by a second. Its own grow fourfold up to a minute, so a request would
// sleep on when the broker is back. What is retried, and for how long in all,
// stays as it was. Call it before anything is published.
func RetrySoon(client *pubsub.Client) {
	options := client.TopicAdminClient.CallOptions
	options.Publish = append(options.Publish, gax.WithRetry(func() gax.Retryer {
		return gax.OnCodes([]codes.Code{ // those of the client
			codes.Aborted, codes.Canceled, codes.Internal, codes.ResourceExhausted, codes.Unknown, codes.Unavailable, codes.DeadlineExceeded,
		}, gax.Backoff{Initial: 100 * time.Millisecond, Max: time.Second, Multiplier: 2})
	}))
}

// Stop waits for what was handed over and ends the client's goroutines.
func (t *Topic) Stop() {
	t.waiters.Wait() // first: Flush and Stop of the client must not meet
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

// flush has the client send what it holds: who reads an answer has handed over
// all of a pass, and nothing is won by waiting for more.
func (t *Topic) flush() {
	if t.handed.CompareAndSwap(true, false) {
		t.waiters.Go(t.publisher.Flush) // which waits until all is answered
	}
}

// maxMessageBytes is a little less than the client takes, as event.Encode has
// it. The client would refuse a larger message before those of the key that it
// still holds are sent, and fail them all.
const maxMessageBytes = pubsub.MaxPublishRequestBytes - 1000

func size(m *pubsub.Message) int {
	size := len(m.Data) + len(m.OrderingKey)
	for name, value := range m.Attributes {
		size += len(name) + len(value)
	}
	return size
}

var errNotSent = errors.New("not sent: the ordering key waits for the answer to an earlier message")

// begin notes one more message of a key, or returns why it is not sent. What
// is not sent counts as a message that failed: when the key becomes fit in the
// middle of a pass, the rest of the pass must not go out without it.
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
	case size > maxMessageBytes:
		k.paused, err = true, pubsub.ErrOversizedMessage
	}
	k.outstanding++
	return err
}

// answered notes that the answer to a message of a key was read.
func (t *Topic) answered(name string, abandoned bool, err error) {
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
	delete(t.keys, name) // or every key that an outage has met would stay
}

// abandon lets go of a message whose answer did not come in time. It may still
// be sent.
func (t *Topic) abandon(name string, result *pubsub.PublishResult) {
	t.mu.Lock()
	t.keys[name].abandoned++
	t.mu.Unlock()
	t.waiters.Go(func() {
		_, err := result.Get(context.Background()) // the client's timeout ends it
		t.answered(name, true, err)
	})
}

type receipt struct {
	topic  *Topic
	key    string
	err    error                 // why the message was not sent
	result *pubsub.PublishResult // when it was
}

func (r *receipt) Wait(ctx context.Context) error {
	err := r.err
	if r.result != nil {
		r.topic.flush()
		select {
		case <-r.result.Ready():
		case <-ctx.Done():
			select {
			case <-r.result.Ready(): // an answer that is there counts
			default:
				r.topic.abandon(r.key, r.result)
				return ctx.Err()
			}
		}
		_, err = r.result.Get(context.Background()) // it is there
	}
	r.topic.answered(r.key, false, err)
	if errors.Is(err, pubsub.ErrOversizedMessage) || status.Code(err) == codes.InvalidArgument {
		return &RefusedError{err}
	}
	return err
}
