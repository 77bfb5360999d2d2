package outbox

import (
	"hash/fnv"
	"time"

	"example.com/videocatalog/internal/envelope"
)

// Lanes is the number of lanes. A lane is a shard of the pending events: it has the events
// of a fixed share of all aggregates.
const Lanes = 8

// AnyLane stands for no lane in particular.
const AnyLane int16 = -1

// Lane returns the lane of an aggregate, from 0 to Lanes-1. It must never change while
// events are pending: an aggregate in two lanes would have two publishers, which may
// publish its events out of order. Drain the outbox before a version that changes it.
func Lane(a envelope.Aggregate) int16 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(a.Type + "/" + a.ID)) // a hash returns no error
	return int16(h.Sum64() & (Lanes - 1))
}

// Claim is the result of one claim on the outbox: the lease of a lane, and the oldest
// events in it. The zero Claim means that there is no work.
type Claim struct {
	Lane int16
	// Token is the fence: the settlement takes effect only while the lane still has this
	// token. It is never 0 in a claim that holds a lease.
	Token int64
	// Events are in the order of Seq, in which they must be published.
	Events []Claimed
}

// Claimed is one event of a claim.
type Claimed struct {
	envelope.Message
	Seq int64
	// Deferred means that the event was deferred, because its aggregate is blocked, and is
	// now due.
	Deferred bool
	// Attempts is how often the event was refused since a person last retried or skipped.
	// Only the first deferred event of an aggregate can have attempts. If it has, the claim
	// has no other deferred event of that aggregate.
	Attempts int
	// Blocked means that the event must not be published, and is deferred at the
	// settlement: its aggregate is blocked, and not all of its deferred events are in this
	// claim.
	Blocked bool
}

// Settlement is the result of a claim. An event in none of its lists stays where it is,
// because it is unknown whether the broker has it.
type Settlement struct {
	Lane  int16
	Token int64
	// Published are pending events that the broker acknowledged: delete them.
	Published []int64
	// Defer are pending events to move to the deferred ones: refused events, the events of
	// their aggregates behind them, and the Blocked events.
	Defer []int64
	// Refused are aggregates whose first event was refused. Record them after Defer.
	Refused []Refusal
	// Resumed are blocked aggregates that go on, with their last acknowledged Seq. It is 0 if
	// the first deferred events are unknown and have no attempts. The deferred events up to it
	// are deleted. The next one becomes due, behind the aggregates that are due, with no
	// attempts. Without one, the block ends.
	Resumed map[envelope.Aggregate]int64
}

// Refusal is a refused event, the first of its aggregate. It does not count if a person has
// skipped the event meanwhile, or has retried an event that had attempts.
type Refusal struct {
	envelope.Aggregate
	Seq int64 // of the event
	// Attempts is how many attempts were made, including this one.
	Attempts int
	Error    string
	// RetryIn is the pause before the next attempt. If it is 0, the event is parked.
	RetryIn time.Duration
}

// Unblock lets pending events follow the deferred events of their aggregate, if the claim has
// all deferred events of the aggregate. Otherwise an aggregate with new events all the time
// would stay blocked. A claim with maxDeferred deferred events, or maxBytes of them, may lack some.
// If the aggregate was refused before, the claim has only its first deferred event.
func Unblock(events []Claimed, maxDeferred int, maxBytes int64) {
	whole := make(map[envelope.Aggregate]bool)
	rows, bytes := 0, int64(0)
	for _, e := range events {
		if e.Deferred {
			whole[e.Aggregate()] = e.Attempts == 0
			rows++
			bytes += int64(len(e.Payload))
		}
	}
	if rows >= maxDeferred || bytes >= maxBytes {
		return
	}
	for i := range events {
		events[i].Blocked = events[i].Blocked && !whole[events[i].Aggregate()]
	}
}
