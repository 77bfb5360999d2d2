package outbox

import (
	"time"

	"example.com/videocatalog/internal/envelope"
)

// Claim is the result of one claim on the outbox: the lease of a lane, and the oldest
// events in it. The zero Claim means that there is no work.
type Claim struct {
	Lane int16
	// Token is the fence: the settlement takes effect only while the lane still has this
	// token. It is never 0 in a claim that holds a lease.
	Token int64
	// Events are in the order in which they must be published.
	Events []Claimed
	// Recovered are blocked aggregates that have no event left to retry.
	Recovered []envelope.Aggregate
}

// Claimed is one pending event.
type Claimed struct {
	envelope.Message
	Seq int64
	// Retry means that the event was set aside, because its aggregate is blocked, and is
	// now due.
	Retry bool
	// Attempts is how often the event was refused since a person last requeued or skipped.
	// Only the first event of a blocked aggregate can have attempts. If it has, the claim
	// contains no other event of that aggregate for a Retry.
	Attempts int
	// Blocked means that the event must not be published, and is set aside. Either an event
	// in front of it was refused. Or events in front of it are set aside, and not all of
	// them are in this claim.
	Blocked bool
}

// Settlement is the result of a claim. An event in none of its lists stays pending, because
// it is unknown whether the broker has it.
type Settlement struct {
	Lane  int16
	Token int64
	// Done are events that the broker acknowledged: delete them.
	Done []int64
	// Retried are events that had been set aside and were now acknowledged: delete them.
	Retried []int64
	// Failed are aggregates with a refused event. An aggregate that was blocked before is
	// here only if the refused event is its first one set aside.
	Failed []Failure
	// Aside are events that leave the lane: the refused event of an aggregate that was not
	// blocked before, the events behind it, and the Blocked events.
	Aside []int64
	// Recovered are the recovered aggregates of the claim, and blocked aggregates whose
	// first event was acknowledged. Blocked aggregates whose first event has no attempts
	// and got no answer are here too. If nothing of such an aggregate is set aside, its
	// block ends. Otherwise it is due immediately, behind the others that are due, and its
	// next event starts with no attempts.
	Recovered []envelope.Aggregate
	// Head and Tail are the first and last Seq of the claim's events that are not a Retry,
	// whatever their result. So the events of Done and Aside are between them. Both are 0
	// if there were none.
	Head, Tail int64
}

// Failure is a refused event, the first of its aggregate. It does not count if a person has
// skipped the event meanwhile. It does not count either if a person has requeued an event
// that had attempts.
type Failure struct {
	envelope.Aggregate
	Seq int64 // of the event
	// Attempts is how many attempts were made, including this one.
	Attempts int
	Error    string
	// RetryIn is the pause before the next attempt. With Park there is none: the event
	// waits for a person.
	RetryIn time.Duration
	Park    bool
}
