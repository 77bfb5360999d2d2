// Package outbox sends: it moves events from the outbox to Pub/Sub.
//
// A [Publisher] makes passes. A lane is a shard of the pending events: they belong to a
// fixed share of all aggregates. A pass claims lanes under a lease. It publishes their oldest
// events, with the aggregate as the ordering key. Then it settles: it deletes the events that
// the broker acknowledged and releases the lanes. [Topic] sends to the broker. The package does not
// access any table itself: it calls two methods of the store. It never reads a payload.
//
// # What it promises
//
//   - Every committed event is published at least once. If a crash leaves events
//     unsettled, they are published again when the lease ends.
//   - The first deliveries of an aggregate are in the order of its versions. This holds
//     with any number of publishers, even if they crash, hang, or continue after their
//     lease. For each aggregate, a pass begins at the oldest event that is not known to be
//     published. It stops at the first event that is not acknowledged. So every event
//     before a sent event was sent in the same pass, or acknowledged before.
//   - If the broker refuses a message because of its content, only its own aggregate is
//     blocked. The message is tried again with growing pauses. After Config.MaxAttempts it
//     is parked, until a person retries or skips it.
//   - A broker that is unavailable, or refuses all events of a topic (there is none, no permission),
//     is an outage. However long it lasts, no attempt is counted and nothing is parked. A breaker
//     pauses all workers, also for other topics, and lets one or two events through at a time, as probes.
//
// # What it does not promise
//
// There is no order between aggregates, and no exactly-once transport. An event comes twice
// after a crash between publish and settle, and when the client repeats a request whose
// response was lost. A publisher that hangs longer than its lease may even send an old event
// after a newer one. Consumers must deduplicate by event id and compare versions.
package outbox

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/trace"

	"example.com/videocatalog/internal/envelope"
)

// Store is the part of the outbox that a publisher uses. Its methods are called
// concurrently.
type Store interface {
	// ClaimEvents takes the lease of free lanes with work, those that were served longest ago, and returns
	// their oldest events in order, within limits. If there is no work, it returns the zero Claim. A
	// claim that fails may still have taken lanes, whose events then wait for the lease.
	ClaimEvents(ctx context.Context, limits Limits) (Claim, error)
	// SettleClaim records the result of a claim and releases its lanes. In a lane whose lease was
	// lost it changes nothing; held is false if there is such a lane.
	SettleClaim(ctx context.Context, settlement Settlement) (held bool, err error)
}

// Broker is where events are published. Its methods are called concurrently, but never for
// the same ordering key.
type Broker interface {
	// Publish hands over a message and does not wait for the response. Messages of one
	// ordering key reach the broker in the order of the calls. After one of them fails, no
	// later message of the key is sent until all responses of the key have been waited for. A
	// pass hands over all its messages of a key before it waits for one.
	Publish(m envelope.Message) Receipt
}

// Receipt gives the broker's response to a published message.
type Receipt interface {
	// Wait waits for the response. It returns nil if the broker has the message, and a
	// *RefusedError if the broker will never take it. After any other error, also the error
	// of ctx, the result is unknown. A response that has already come counts even if ctx is
	// done. Wait is called once per message.
	Wait(ctx context.Context) error
}

// RefusedError means that the broker refused a message because of its content. Sending the
// same bytes again will probably fail again.
type RefusedError struct{ Err error }

func (e *RefusedError) Error() string { return "broker refused the message: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *RefusedError) Unwrap() error { return e.Err }

// Wait implements Receipt, for a message that is refused before it is sent.
func (e *RefusedError) Wait(context.Context) error { return e }

// Config configures a publisher. A field with the zero value gets its default.
type Config struct {
	// Workers is how many passes this process makes at a time; default 4. More workers
	// help with a slow broker, but compete with the writers for the database.
	Workers int
	// Batch is how many pending events a pass takes at most; default 2000. It takes half as
	// many deferred events that are due. A backlog begins with an eighth of it: see the pace.
	Batch int
	// BatchBytes limits the payloads of the pending events of a pass; default 8 MiB. The event
	// that reaches the limit is the last. The same limit applies again to deferred events that
	// are due. Each worker holds up to both, and the client of the broker holds them once more.
	BatchBytes int64
	// Lease is how long a claim holds a lane; default 15 s. After a crash, or a claim whose
	// response was lost, the events of the lane wait that long. It must be longer than
	// 2 × PublishTimeout, and the same in all processes.
	Lease time.Duration
	// PublishTimeout is how long a pass waits for the broker; default 6 s. Events without
	// a response by then are published again.
	PublishTimeout time.Duration
	// PollInterval is the longest pause between two polls of all lanes; default 1 s. In the
	// process that writes an event, Wake makes a claim due immediately.
	// PollInterval limits the delay of all other work: events of other processes, retries,
	// and lanes of crashed publishers.
	PollInterval time.Duration
	// MaxAttempts is how often a refused message is tried before it is parked; default 10.
	// A message is parked only after it was refused alone.
	MaxAttempts int
	// Tracing makes the spans of events whose trace is sampled. If it is nil, there are no
	// spans.
	Tracing trace.TracerProvider
	System  string // messaging.system of the spans
}

// WithDefaults returns the Config with every default filled in, as New uses it.
func (c Config) WithDefaults() Config {
	c.Workers = cmp.Or(c.Workers, 4)
	c.Batch = cmp.Or(c.Batch, 2000)
	c.BatchBytes = cmp.Or(c.BatchBytes, 8<<20)
	c.Lease = cmp.Or(c.Lease, 15*time.Second)
	c.PublishTimeout = cmp.Or(c.PublishTimeout, 6*time.Second)
	c.PollInterval = cmp.Or(c.PollInterval, time.Second)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 10)
	return c
}

// Validate returns an error that names a mistake in a Config, after the defaults are filled in.
func (c Config) Validate() error {
	c = c.WithDefaults()
	if c.PublishTimeout >= c.Lease/2 {
		return fmt.Errorf("PublishTimeout (%s) must be less than half of Lease (%s)", c.PublishTimeout, c.Lease)
	}
	return nil
}

// RequestTimeout returns how long a Topic tries one publish request.
func (c Config) RequestTimeout() time.Duration { return c.WithDefaults().PublishTimeout / 3 }

const (
	// StopTimeout is how long Run may publish after its context has ended. Claims start only in the
	// first half. Settling may take SettleTimeout longer.
	StopTimeout = 1500 * time.Millisecond
	// SettleTimeout limits the first attempt to settle, and the attempt at shutdown. Each later
	// attempt may take one SettleTimeout longer than the one before.
	SettleTimeout = time.Second
)

// The longest pause after a refusal doubles with every attempt, from firstRetry up to lastRetry. Each pause is random, at
// least half of its limit.
const (
	firstRetry = time.Second
	lastRetry  = 10 * time.Minute
)
