package outbox

import (
	"cmp"
	"hash/fnv"
	"slices"
	"time"

	"example.com/videocatalog/internal/envelope"
)

// Lanes is the number of lanes. A lane is a shard of the pending events: it has the events
// of a fixed share of all aggregates.
const Lanes = 8

// Lane returns the lane of an aggregate, from 0 to Lanes-1. It must never change while
// events are pending: an aggregate in two lanes would have two publishers, which may
// publish its events out of order. Empty the outbox, also of blocked aggregates, before a version
// that changes it.
func Lane(a envelope.Aggregate) int16 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(a.Type + "/" + a.ID)) // a hash returns no error
	return int16(h.Sum64() & (Lanes - 1))
}

// Limits are the limits of a claim.
type Limits struct {
	Lanes  int           // the most lanes that it takes
	Events int           // the most pending events; it has at most half as many deferred events
	Bytes  int64         // of the payloads of the pending events, and again of the deferred events
	Lease  time.Duration // how long it holds its lanes
}

// Share returns the limits of each lane of a claim of some lanes. So no lane waits behind another.
func (l Limits) Share(lanes int) Limits {
	return Limits{Lanes: 1, Events: max(1, l.Events/lanes), Bytes: max(1, l.Bytes/int64(lanes)), Lease: l.Lease}
}

// Deferred returns the most deferred events.
func (l Limits) Deferred() int { return (l.Events + 1) / 2 }

// Claim is the result of one claim on the outbox: leased lanes, and the oldest events in
// them. The zero Claim means that there is no work.
type Claim struct {
	Lease
	// Events are in the order of Seq, in which they must be published.
	Events []Claimed
	// Full means that a limit has left out events: there is more work now.
	Full bool
}

// Lease is the right to settle a claim. A publisher returns it in the settlement.
type Lease struct {
	// Token is the fence: a settlement takes effect only in lanes that still have this token. It is 0
	// only in the zero Claim.
	Token int64
	Spans []Span // one for each lane
}

// Span is a lane, and the first and last Seq of its pending events in a claim: both are 0 without one.
type Span struct {
	Lane       int16
	Head, Tail int64
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
	// Blocked means that the event is pending, and its aggregate is blocked.
	Blocked bool
	// Behind means that the event must not be published, and is deferred at the settlement:
	// its aggregate is blocked, and the claim lacks some of the deferred events before it.
	Behind bool
}

// Add adds a lane to a claim, with the events that were read of it within its share.
//
// It lets pending events follow the deferred events of their aggregate, if the claim has all
// of these. Otherwise an aggregate with new events all the time would stay blocked. A lane that
// has used its share of deferred events may lack some. If the aggregate was refused before, the
// claim has only its first deferred event.
func (c *Claim) Add(lane int16, deferred, pending []Claimed, share Limits) {
	whole := make(map[envelope.Aggregate]bool) // the claim has all deferred events of the aggregate
	for i, e := range deferred {
		deferred[i].Deferred = true
		whole[e.Aggregate()] = e.Attempts == 0
	}
	lacks := reaches(deferred, share.Deferred(), share.Bytes)
	span := Span{Lane: lane}
	for i, e := range pending {
		pending[i].Behind = e.Blocked && (lacks || !whole[e.Aggregate()])
		span.Head, span.Tail = pending[0].Seq, e.Seq
	}
	c.Full = c.Full || lacks || reaches(pending, share.Events, share.Bytes)
	c.Spans = append(c.Spans, span)
	c.Events = slices.Concat(c.Events, deferred, pending)
	slices.SortFunc(c.Events, func(a, b Claimed) int { return cmp.Compare(a.Seq, b.Seq) })
}

// reaches reports whether a limit may have left out some events.
func reaches(events []Claimed, most int, mostBytes int64) bool {
	var bytes int64
	for _, e := range events {
		bytes += int64(len(e.Payload))
	}
	return len(events) >= most || bytes >= mostBytes
}

// Settlement is the result of a claim. An event in none of its lists stays where it is,
// because it is unknown whether the broker has it.
type Settlement struct {
	Lease
	// Published are pending events that the broker acknowledged: delete them.
	Published []int64
	// Defer are pending events to move to the deferred ones: refused events, the events of
	// their aggregates behind them, and the events with Behind.
	Defer []int64
	// Refused are aggregates whose first event was refused. Record them after Defer.
	Refused []Refusal
	// Resumed are blocked aggregates that go on, with the Seq of their last acknowledged deferred
	// event, or 0 if the first is unknown and has no attempts. Deferred events up to it are deleted. If
	// one is left, the aggregate becomes due with no attempts, behind those that are due. Otherwise its
	// block ends.
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
