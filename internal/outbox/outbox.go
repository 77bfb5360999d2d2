// Package outbox sends: it moves events from the outbox to Pub/Sub.
//
// A [Publisher] makes passes. A pass claims a lane of the outbox, which is a
// share of all aggregates under a lease, publishes its oldest events, each with
// its aggregate as the ordering key, and settles: it deletes what the broker
// has acknowledged and releases the lane. [Topic] is the broker's side of it.
// The package reads and writes no table itself; what it needs of the store are
// two calls, and it never looks into a payload.
//
// # What it promises
//
//   - Every committed event is published at least once. What a crash leaves
//     unsettled is published again when its lease ends.
//   - First deliveries of an aggregate happen in the order of its versions,
//     with any number of publishers, also when they crash, hang, or wake up
//     after their lease: a pass begins at the oldest event of an aggregate that
//     is not known to be published, and stops at the first that is not
//     acknowledged; so whoever sends an event has sent all before it, or they
//     were acknowledged before.
//   - A message that the broker refuses for what it is (a poisonous event)
//     blocks its own aggregate only. It is tried again with growing pauses and
//     after Config.MaxAttempts is parked, until a person requeues or skips it.
//   - A broker that is away, or refuses everything (no such topic, no
//     permission), is an outage. However long it lasts, no attempt is counted
//     and nothing is parked; a breaker pauses all workers and lets an
//     event or two through at a time, as probes.
//
// # What it does not promise
//
// Order between aggregates, and exactly-once transport. An event comes twice
// after a crash between publish and settle, and when a lost answer makes the
// client repeat a request. A publisher that hung longer than its lease may even
// send an old event after a newer one. Consumers deduplicate by event id and
// compare versions.
package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/trace"

	"example.com/videocatalog/internal/envelope"
)

// Store is what a publisher needs of the outbox. Its methods are called
// concurrently.
type Store interface {
	// ClaimEvents takes the lease of a lane with work and returns its oldest
	// events in order: at most maxEvents, and none behind the one with which
	// their payloads have maxBytes; and as much again of what was set aside and
	// is due. The zero Claim when there is no work. With an aggregate (not the
	// zero one) it takes the lane of that or none, and may take none though
	// something is due there, or was committed late. A claim that fails may have
	// taken a lane all the same: later claims take it again, before its lease ends.
	ClaimEvents(ctx context.Context, maxEvents int, maxBytes int64, leaseFor time.Duration, of envelope.Aggregate) (Claim, error)
	// SettleClaim records what became of a claim and releases the lane; held is
	// false, and nothing is changed, when the lease was lost.
	SettleClaim(ctx context.Context, settlement Settlement) (held bool, err error)
}

// Broker is where events are published. Its methods are called concurrently,
// but those about one ordering key never are.
type Broker interface {
	// Publish hands over a message and does not wait for the answer. Messages
	// of one ordering key reach the broker in the order of the calls, and none
	// that follows one that failed, until the answers to all of them were waited
	// for. A pass hands over all that it has of a key before it waits for one.
	Publish(m envelope.Message) Receipt
}

// Receipt is the answer that a published message will have.
type Receipt interface {
	// Wait waits for the answer: nil when the broker has the message, a
	// *RefusedError when it never will. Any other error, also that of ctx,
	// means that nobody knows. An answer that is there counts, also when ctx is
	// done. It is called once for each message.
	Wait(ctx context.Context) error
}

// RefusedError says that the broker refused a message for what it is. Sending
// the same bytes again will hardly help.
type RefusedError struct{ Err error }

func (e *RefusedError) Error() string { return "broker refused the message: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *RefusedError) Unwrap() error { return e.Err }

// Config says how a publisher works. The zero value of a field means its
// default.
type Config struct {
	// Workers is how many lanes this process publishes at a time; default 4.
	// More hide a slow broker and compete with the writers for the database.
	Workers int
	// Batch is how many events a pass takes at most, and as many again that were
	// set aside and are due; default 2000.
	Batch int
	// BatchBytes is how many bytes of payload a pass takes at most, and one
	// event more, and as many again of blocked aggregates that are due; default
	// 8 MiB. Each worker holds that, and the client of the broker once more.
	BatchBytes int64
	// Lease is how long a lane is ours after a claim; default 30 s. After a
	// crash its events wait that long. Longer than 2 × PublishTimeout.
	Lease time.Duration
	// PublishTimeout is how long a pass waits for the broker; default 12 s. What
	// is not answered by then is unknown, and published again.
	PublishTimeout time.Duration
	// RequestTimeout is how long NewTopic tries one publish request; default a third
	// of PublishTimeout, at most half of it.
	RequestTimeout time.Duration
	// PollInterval is the longest pause between two polls of all lanes;
	// default 1 s. In the process that writes, Wake makes a pass of the lane of the
	// event come at once; PollInterval bounds the delay of events that other
	// processes write, and of retries and takeovers.
	PollInterval time.Duration
	// MaxAttempts is how often a refused message is tried before it is parked,
	// and not before it was tried alone; default 10.
	MaxAttempts int
	// RetryMin is the longest first pause after a refusal; default 1 s. It doubles
	// with every attempt up to RetryMax, default 10 min. Each pause is drawn from
	// the upper half.
	RetryMin, RetryMax time.Duration
	// ProbeInterval is the longest pause between two probes of a broker that is
	// away; default 1 s.
	ProbeInterval time.Duration
	// StopTimeout is how long Run still waits for the broker once its context has
	// ended; default 1.5 s. It begins passes for half of that time.
	StopTimeout time.Duration
	// SettleTimeout bounds the first attempt to settle, and the one at shutdown;
	// default 1 s. Each attempt after the first has as long again.
	SettleTimeout time.Duration
	// Tracing makes the spans of events whose trace is sampled; nil: none.
	Tracing trace.TracerProvider
}

// WithDefaults returns the Config that New makes of this one.
func (c Config) WithDefaults() Config {
	c.Workers = cmp.Or(c.Workers, 4)
	c.Batch = cmp.Or(c.Batch, 2000)
	c.BatchBytes = cmp.Or(c.BatchBytes, 8<<20)
	c.Lease = cmp.Or(c.Lease, 30*time.Second)
	c.PublishTimeout = cmp.Or(c.PublishTimeout, 12*time.Second)
	c.RequestTimeout = cmp.Or(c.RequestTimeout, c.PublishTimeout/3)
	c.PollInterval = cmp.Or(c.PollInterval, time.Second)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 10)
	c.RetryMin = cmp.Or(c.RetryMin, time.Second)
	c.RetryMax = cmp.Or(c.RetryMax, 10*time.Minute)
	c.ProbeInterval = cmp.Or(c.ProbeInterval, time.Second)
	c.StopTimeout = cmp.Or(c.StopTimeout, 1500*time.Millisecond)
	c.SettleTimeout = cmp.Or(c.SettleTimeout, time.Second)
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
		{"Workers", int64(c.Workers)}, {"Batch", int64(c.Batch)}, {"BatchBytes", c.BatchBytes}, {"Lease", int64(c.Lease)},
		{"PublishTimeout", int64(c.PublishTimeout)}, {"RequestTimeout", int64(c.RequestTimeout)}, {"PollInterval", int64(c.PollInterval)},
		{"MaxAttempts", int64(c.MaxAttempts)}, {"RetryMin", int64(c.RetryMin)}, {"RetryMax", int64(c.RetryMax)},
		{"ProbeInterval", int64(c.ProbeInterval)}, {"StopTimeout", int64(c.StopTimeout)}, {"SettleTimeout", int64(c.SettleTimeout)},
	} {
		if f.value < 0 {
			errs = append(errs, fmt.Errorf("%s must not be negative", f.name))
		}
	}
	if c.PublishTimeout >= c.Lease/2 {
		errs = append(errs, fmt.Errorf("PublishTimeout (%s) must be less than half of Lease (%s)", c.PublishTimeout, c.Lease))
	}
	if c.RequestTimeout > c.PublishTimeout/2 {
		errs = append(errs, fmt.Errorf("RequestTimeout (%s) must be at most half of PublishTimeout (%s)", c.RequestTimeout, c.PublishTimeout))
	}
	if c.RetryMin > c.RetryMax {
		errs = append(errs, fmt.Errorf("RetryMin (%s) must not exceed RetryMax (%s)", c.RetryMin, c.RetryMax))
	}
	return errors.Join(errs...)
}
