// Package consumer receives: it takes events from a subscription and lets the handler of
// their aggregate type apply them.
//
// A [Receiver] receives the messages of one [Source]. The [Handler] of its aggregate type
// decodes a message, which then waits for its batch. A free worker collects a batch, and the
// handler applies it in one transaction. After the commit the source acknowledges the
// messages. The receiver reads the envelope of a message and never the payload. It does not
// access any table itself.
//
// # What it promises
//
//   - A message is acknowledged only after the commit of the transaction that applied it
//     or quarantined it. After a crash at any point, the broker delivers it again.
//   - An event takes effect once, however often it comes. An old event never undoes a
//     newer one. The store ensures both, and reports an outcome of each event.
//   - Messages of one key are handled in order. One that fails holds back the later ones,
//     until it is applied or quarantined.
//   - A message whose aggregate type has no handler here is acknowledged, counted as
//     unhandled, and never decoded. So a subscription may carry more types than this
//     process handles.
//   - While the database is unavailable, messages wait, with [PubSub] up to 7 days. None is
//     given back, because the broker would count a failed delivery. None is quarantined.
//   - A bad message harms only itself. A message that cannot be decoded (broken bytes, a
//     newer schema version, a missing attribute) goes to the quarantine, because giving it
//     back would block its key. An event that the store refuses Config.MaxAttempts times,
//     alone, goes there too. A panic then counts as a refusal.
//   - After a stop, Run finishes the messages in hand within Config.StopTimeout, and gives
//     the rest back.
//
// A Receiver has no readiness check, does not create the subscription, and does not replay the
// quarantine.
package consumer

import (
	"cmp"
	"context"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/semaphore"

	"example.com/videocatalog/internal/envelope"
)

// Source is a subscription of a broker. PubSub makes one.
type Source interface {
	// Receive calls handle for each message, until ctx ends or the broker refuses for good.
	// It acknowledges a message if handle returns true. Otherwise it gives the message back,
	// and the broker delivers it again. Calls are concurrent, except for messages of one key:
	// they come one after the other, in order, and none comes after one that was given back.
	// The context of handle ends when nothing more is received. Receive returns after all
	// calls have returned.
	Receive(ctx context.Context, handle func(context.Context, Message) (ack bool)) error
	// String returns the name, for logs and spans.
	String() string
}

// Message is a message of a Source.
type Message struct {
	ID          string
	Key         string // orders the messages that have the same; empty if there is no order
	Attributes  map[string]string
	Data        []byte
	PublishTime time.Time
	Defect      string // why the source found that no handler may have it: it goes to the quarantine; else empty
}

// Quarantine stores the messages that a receiver cannot apply.
type Quarantine interface {
	// Quarantine stores a message, whatever it contains, once per consumer and message id.
	// If the stored bytes have reached the limit, it stores the message without its
	// payload. It is called concurrently. If the database is unavailable, the error wraps
	// envelope.ErrUnavailable.
	Quarantine(ctx context.Context, consumer string, m envelope.Quarantined) error
}

// Config configures a receiver. A field with the zero value gets its default.
type Config struct {
	// BatchSize is the largest number of messages in a transaction; default 100.
	BatchSize int
	// Workers is how many transactions run at the same time; default 4. Each uses one
	// connection of the pool.
	Workers int
	// Permits limits the transactions of all receivers that share it: each takes a permit for
	// its time, and the next one goes to the worker that waits longest. Nil: no limit.
	Permits *semaphore.Weighted
	// TransactionTimeout limits one call of the store; default 10 s, a thousand times what
	// a batch takes. A batch that exceeds it is applied one by one. A single event that
	// exceeds it is tried again without a limit, and the later events of its key wait; all
	// others too, if those fill the messages in hand.
	TransactionTimeout time.Duration
	// MaxAttempts is how often the store may refuse an event, alone, before the event is
	// quarantined; default 5.
	MaxAttempts int
	// StopTimeout is how long Run may go on after its context has ended; default 2.5 s.
	// After four fifths of it, messages that are not committed are given back.
	StopTimeout time.Duration
	// Tracing makes the spans of messages whose trace is sampled. If it is nil, there are
	// no spans.
	Tracing trace.TracerProvider
}

// WithDefaults returns the Config with every default filled in, as New uses it.
func (c Config) WithDefaults() Config {
	c.BatchSize = cmp.Or(c.BatchSize, 100)
	c.Workers = cmp.Or(c.Workers, 4)
	c.TransactionTimeout = cmp.Or(c.TransactionTimeout, 10*time.Second)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 5)
	c.StopTimeout = cmp.Or(c.StopTimeout, 2500*time.Millisecond)
	return c
}

const (
	// batchDelay is how long the first message of a batch waits for others. While no worker
	// is free, the others wait longer, and the next batch is larger.
	batchDelay   = 2 * time.Millisecond
	firstPause   = 50 * time.Millisecond // the longest pause after the first failure
	longestPause = 5 * time.Second       // the longest pause while the database or the broker is unavailable
	// longestEventPause is the longest pause after failures of a single event. It is longer, so
	// that events that time out do not occupy all workers.
	longestEventPause = time.Minute
)
