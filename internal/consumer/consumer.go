// Package consumer receives: it takes events from Pub/Sub and lets the handler of their
// aggregate type apply them.
//
// A [Projector] pulls messages from its sources and collects them into small batches. The
// handler decodes each message, and applies each batch in one transaction. The projector
// acknowledges a message after the commit. It reads the envelope of a message and never the
// payload. It does not access any table itself.
//
// # What it promises
//
//   - A message is acknowledged only after the commit of the transaction that applied it
//     or set it aside. After a crash at any point, the broker delivers it again.
//   - An event takes effect once, however often it comes. An old event never undoes a
//     newer one. The store ensures both, and reports each event as applied, applied after
//     a gap, duplicate or stale. These are counted.
//   - A message whose aggregate type has no handler here is acknowledged, counted as
//     unhandled, and never decoded. So a subscription may carry more types than this
//     process handles. Each such type is logged once a minute.
//   - While the database is unavailable, messages wait in their callbacks without a limit.
//     None is given back to the broker, which would count it as a failed delivery. None is
//     set aside.
//   - A bad message harms only itself. A message that cannot be decoded (broken bytes, a
//     newer schema version, a missing attribute) goes to the quarantine and is
//     acknowledged. Giving it back would block its ordering key. An event that the store
//     refuses Config.MaxAttempts times, alone, goes there too.
//   - A panic while a message is handled counts as any other failure.
//   - After a stop, Run finishes the messages in hand within Config.StopTimeout, and gives
//     the rest back.
//
// # What it does not promise
//
// It does not need events in order and does not establish an order: each event carries the
// full state of its aggregate. It has no readiness check. It does not create the
// subscription and does not replay the quarantine.
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
	"example.com/videocatalog/internal/fields"
)

// Quarantine stores the messages that a projector sets aside.
type Quarantine interface {
	// Quarantine stores a message, whatever it contains, once per consumer and message id.
	// If the stored bytes have reached the limit, it stores the message without its
	// payload. It is called concurrently. If the database is unavailable, the error wraps
	// envelope.ErrUnavailable.
	Quarantine(ctx context.Context, consumer string, m envelope.Quarantined) error
}

// Config configures a projector. A field with the zero value gets its default.
type Config struct {
	// BatchSize is the largest number of messages in a transaction; default 100.
	BatchSize int
	// BatchDelay is how long the first message of a batch waits for others; default 2 ms.
	// If no worker is free then, the batch keeps filling.
	BatchDelay time.Duration
	// Workers is how many transactions run at the same time; default 4, and at least one per
	// source. Each uses one connection of the pool.
	Workers int
	// MaxOutstandingMessages is how many messages of one source may be in hand; default
	// 4000. It also limits the rate to ten times as many per second, because the client
	// sends acks every 100 ms. It must be at most 1200 × Workers × BatchSize: the broker
	// leases a message for a minute, and a transaction takes about 10 ms.
	MaxOutstandingMessages int
	// MaxOutstandingBytes is how many bytes of messages of one source may be in hand;
	// default 64 MiB.
	MaxOutstandingBytes int
	// Streams is how many streams pull the messages of a source; default 1.
	Streams int
	// MaxExtension is how long a message may stay in hand; default 7 days, after which the
	// broker drops it anyway. If an outage of the database lasts longer than this, healthy
	// messages count as failed deliveries.
	MaxExtension time.Duration
	// TransactionTimeout limits one call of the store; default 10 s, a thousand times what
	// a batch takes. A timeout counts as an unavailable database. A batch with three
	// timeouts in a row is applied one by one. A single event that times out is tried
	// again, and the later events of its key wait. A worker also hangs this long on a
	// connection that was lost without notice.
	TransactionTimeout time.Duration
	// MaxAttempts is how often the store may refuse an event, alone, before the event is
	// quarantined; default 5.
	MaxAttempts int
	// RetryMin and RetryMax limit the random pauses after a failure. The limit of a pause
	// doubles with each failure; default from 50 ms to 5 s.
	RetryMin, RetryMax time.Duration
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

// Validate returns an error that names every mistake in a Config, after the defaults are
// filled in.
func (c Config) Validate() error {
	c = c.WithDefaults()
	errs := []error{fields.NotNegative(c)}
	if c.RetryMin > c.RetryMax {
		errs = append(errs, fmt.Errorf("RetryMin (%s) must not exceed RetryMax (%s)", c.RetryMin, c.RetryMax))
	}
	if c.MaxOutstandingMessages > c.inTime() {
		errs = append(errs, fmt.Errorf("MaxOutstandingMessages (%d) must be at most 1200 × Workers × BatchSize (%d)", c.MaxOutstandingMessages, c.inTime()))
	}
	return errors.Join(errs...)
}

// inTime returns how many messages the workers can apply in a fifth of leaseTime, if a
// transaction takes 10 ms.
func (c Config) inTime() int { return 1200 * max(1, c.Workers) * max(1, c.BatchSize) }

// leaseTime is how long each lease of a message lasts; the client renews it. By default,
// the client derives this time from how long earlier messages took. After an outage of the
// database it would then be ten minutes, and the messages of a crashed instance would wait
// that long.
const leaseTime = time.Minute

// receiveSettings returns the settings of the Pub/Sub client.
func (c Config) receiveSettings() pubsub.ReceiveSettings {
	return pubsub.ReceiveSettings{
		MaxExtension:               c.MaxExtension,
		MaxDurationPerAckExtension: leaseTime,
		MaxOutstandingMessages:     c.MaxOutstandingMessages,
		MaxOutstandingBytes:        c.MaxOutstandingBytes,
		NumGoroutines:              c.Streams,
		// No timeout: with one, the client (v2.8.1) breaks the stream as soon as it is
		// stopped. That ends the goroutine that sends acks, so messages committed during
		// the stop would never be acknowledged. Without one, the client waits for the
		// callbacks and sends their acks. Run still ends in time: every callback returns
		// within StopTimeout, and Run does not wait longer for the client.
		ShutdownOptions: &pubsub.ShutdownOptions{Timeout: -1, Behavior: pubsub.ShutdownBehaviorWaitForProcessing},
	}
}
