// Package consumer receives: it has events that come from Pub/Sub applied, each
// by the handler of its aggregate type.
//
// A [Projector] pulls messages from its sources, has them decoded, collects them
// into small batches, has a handler apply each batch in one transaction, and
// acknowledges what was committed. It reads the envelope of a message, and never
// its payload; it reads and writes no table itself.
//
// # What it promises
//
//   - A message is acknowledged after the transaction that applied it, or set
//     it aside, was committed, never before. A crash at any point leaves it with
//     the broker, which delivers it again.
//   - An event takes effect once, however often it comes, and an old one never
//     undoes a newer one. The store sees to that; duplicate, stale, and applied
//     after a gap are told apart and counted.
//   - A message of an aggregate type that has no handler here is acknowledged,
//     counted as unhandled, and never decoded: a subscription may carry more than
//     this process is for. The log has each such type once a minute.
//   - While the database is unavailable, messages wait in their callbacks, for as long
//     as it takes. None is given back to the broker, which would count it as a
//     failed delivery, and none is set aside.
//   - A message that harms, harms only itself. What cannot be decoded (broken
//     bytes, a newer schema version, a missing attribute) goes to the quarantine and is
//     acknowledged: giving it back would block its ordering key. So does an
//     event that the store refused Config.MaxAttempts times, alone.
//   - A panic while a message is handled is a failure like any other.
//   - When it is stopped it finishes what it has in hand, within
//     Config.StopTimeout, and gives the rest back.
//
// # What it does not promise
//
// It does not need events in order, and does not establish one: an event
// carries the full state of its aggregate. It does not answer whether it is ready,
// does not create the subscription, and does not replay the quarantine.
package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"go.opentelemetry.io/otel/trace"

	"example.com/videocatalog/internal/envelope"
)

// Quarantine is where a projector sets messages aside.
type Quarantine interface {
	// Quarantine stores a message, whatever it contains, once per consumer and
	// message id; without its payload when there are too many bytes already. It is
	// called concurrently. An unavailable database is an ErrUnavailable.
	Quarantine(ctx context.Context, consumer string, m envelope.Quarantined) error
}

// Config says how a projector works. The zero value of a field means its
// default.
type Config struct {
	// BatchSize is how many messages a transaction applies at most; default 100.
	BatchSize int
	// BatchDelay is how long the first message of a batch waits for others;
	// default 2 ms. A batch that no worker is free for goes on filling.
	BatchDelay time.Duration
	// Workers is how many transactions run at the same time, each with one
	// connection of the pool; default 4.
	Workers int
	// MaxOutstandingMessages is how many messages of a source are in hand at most;
	// default 4000. Acks leave every 100 ms, so that it also bounds the rate: ten
	// times as many a second. The limit is 1200 × Workers × BatchSize: the broker
	// lends a message for a minute, and a transaction takes about 10 ms.
	MaxOutstandingMessages int
	// MaxOutstandingBytes is how many bytes of messages of a source are in hand at
	// most; default 64 MiB.
	MaxOutstandingBytes int
	// Streams is how many streams pull the messages of a source; default 1.
	Streams int
	// MaxExtension is how long a message may stay in hand; default 7 days, after
	// which the broker drops it anyway. Less than an outage of the database
	// lasts, and healthy messages count as failed deliveries.
	MaxExtension time.Duration
	// TransactionTimeout bounds a call of the store; default 10 s, a thousand times
	// what a batch takes. One that takes longer counts as an unavailable database; a
	// batch that does three times is applied one by one, and an event that does alone
	// is tried again, before what has its key. So long a worker is held up by a
	// connection that was lost without a word.
	TransactionTimeout time.Duration
	// MaxAttempts is how often the store may refuse an event, alone, before it
	// is quarantined; default 5.
	MaxAttempts int
	// RetryMin and RetryMax bound the pauses after a failure, which double and
	// are drawn at random; default 50 ms and 5 s.
	RetryMin, RetryMax time.Duration
	// StopTimeout is how long Run goes on after its context has ended; default
	// 2.5 s. At four fifths of it, what is still not committed is given back.
	StopTimeout time.Duration
	// Tracing makes the spans of messages whose trace is sampled; nil: none.
	Tracing trace.TracerProvider
}

// WithDefaults returns the Config that New makes of this one.
func (c Config) WithDefaults() Config {
	c.BatchSize = cmp.Or(c.BatchSize, 100)
	c.BatchDelay = cmp.Or(c.BatchDelay, 2*time.Millisecond)
	c.Workers = cmp.Or(c.Workers, 4)
	c.MaxOutstandingMessages = cmp.Or(c.MaxOutstandingMessages, min(4000, c.inTime()))
	c.MaxOutstandingBytes = cmp.Or(c.MaxOutstandingBytes, 64<<20)
	c.Streams = cmp.Or(c.Streams, 1)
	c.MaxExtension = cmp.Or(c.MaxExtension, 7*24*time.Hour)
	c.TransactionTimeout = cmp.Or(c.TransactionTimeout, 10*time.Second)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 5)
	c.RetryMin = cmp.Or(c.RetryMin, 50*time.Millisecond)
	c.RetryMax = cmp.Or(c.RetryMax, 5*time.Second)
	c.StopTimeout = cmp.Or(c.StopTimeout, 2500*time.Millisecond)
	return c
}

// Validate tells everything that is wrong with a Config, with its defaults
// filled in.
func (c Config) Validate() error {
	c = c.WithDefaults()
	var errs []error
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"BatchSize", int64(c.BatchSize)}, {"BatchDelay", int64(c.BatchDelay)}, {"Workers", int64(c.Workers)},
		{"MaxOutstandingMessages", int64(c.MaxOutstandingMessages)}, {"MaxOutstandingBytes", int64(c.MaxOutstandingBytes)},
		{"Streams", int64(c.Streams)}, {"MaxExtension", int64(c.MaxExtension)},
		{"TransactionTimeout", int64(c.TransactionTimeout)}, {"MaxAttempts", int64(c.MaxAttempts)},
		{"RetryMin", int64(c.RetryMin)}, {"RetryMax", int64(c.RetryMax)}, {"StopTimeout", int64(c.StopTimeout)},
	} {
		if f.value < 0 {
			errs = append(errs, fmt.Errorf("%s must not be negative", f.name))
		}
	}
	if c.RetryMin > c.RetryMax {
		errs = append(errs, fmt.Errorf("RetryMin (%s) must not exceed RetryMax (%s)", c.RetryMin, c.RetryMax))
	}
	if c.MaxOutstandingMessages > c.inTime() {
		errs = append(errs, fmt.Errorf("MaxOutstandingMessages (%d) must be at most 1200 × Workers × BatchSize (%d)", c.MaxOutstandingMessages, c.inTime()))
	}
	return errors.Join(errs...)
}

// inTime returns how many messages the workers can apply in a fifth of leaseTime,
// at 10 ms a transaction.
func (c Config) inTime() int { return 1200 * max(1, c.Workers) * max(1, c.BatchSize) }

// leaseTime is how long the client asks the broker to lend a message, again
// and again. By default it learns that from how long messages took; after an
// outage of the database it would ask for ten minutes, which is then how long
// the messages of a crashed instance wait.
const leaseTime = time.Minute

// receiveSettings are what the client must know.
func (c Config) receiveSettings() pubsub.ReceiveSettings {
	return pubsub.ReceiveSettings{
		MaxExtension:               c.MaxExtension,
		MaxDurationPerAckExtension: leaseTime,
		MaxOutstandingMessages:     c.MaxOutstandingMessages,
		MaxOutstandingBytes:        c.MaxOutstandingBytes,
		NumGoroutines:              c.Streams,
		// Without a timeout, because with one the client (v2.8.1) breaks the stream as soon as it is stopped, which
		// ends the goroutine that sends acks: what is committed while stopping would never be acknowledged. Without,
		// it waits for the callbacks and sends their acks. That this ends in time is seen to by Run, where every
		// callback returns within StopTimeout and a client that hangs is left behind.
		ShutdownOptions: &pubsub.ShutdownOptions{Timeout: -1, Behavior: pubsub.ShutdownBehaviorWaitForProcessing},
	}
}
