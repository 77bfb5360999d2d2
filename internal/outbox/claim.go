package outbox

import (
	"time"

	"example.com/videocatalog/internal/envelope"
)

// Claim is what one claim on the outbox answered: the lease of a lane and the
// oldest events in it. The zero Claim says that there is nothing to do.
type Claim struct {
	Lane int16
	// Token is the fence: the settlement takes effect only while it is the
	// lane's. Never 0 in a claim that holds a lease.
	Token int64
	// Events in the order they must be published in.
	Events []Claimed
	// Recovered are blocked aggregates that have no event left to retry.
	Recovered []envelope.Aggregate
}

// Claimed is one pending event.
type Claimed struct {
	envelope.Message
	Seq int64
	// Retry: the event was set aside, because its aggregate is blocked, and its
	// time has come.
	Retry bool
	// Attempts is how often it was refused, if it is the first event of a blocked
	// aggregate, since a person has last requeued or skipped. When it is not 0, the
	// claim has no other event of that aggregate for a Retry.
	Attempts int
	// Blocked: what is in front of it is set aside, and not all in this claim,
	// or an event that was refused. It must not be published, and goes aside.
	Blocked bool
}

// Settlement is what became of a claim. An event in none of its lists stays
// pending: nobody knows whether the broker has it.
type Settlement struct {
	Lane  int16
	Token int64
	// Done were acknowledged by the broker: delete them.
	Done []int64
	// Retried were acknowledged and had been set aside: delete them.
	Retried []int64
	// Failed aggregates had an event refused. One that was blocked is among them
	// only when it is the first that was set aside.
	Failed []Failure
	// Aside are the refused event of an aggregate that was not blocked before,
	// those behind it, and those that were Blocked: they leave the lane.
	Aside []int64
	// Recovered are those of the claim; blocked aggregates whose first event was
	// acknowledged; and those without attempts of which it was not answered. One of
	// which nothing is set aside is blocked no longer; one that has more is due at
	// once, behind the others that are due, and no attempt is counted of its next
	// event.
	Recovered []envelope.Aggregate
	// Head and Tail are the first and last Seq of the events of the claim but
	// those that are Retry, whatever became of them, so those of Done and Aside
	// are between them; 0 when there were none.
	Head, Tail int64
}

// Failure is a refused event, the first of its aggregate. It does not count when
// a person has skipped the event meanwhile, nor when one has requeued it and it
// had attempts.
type Failure struct {
	envelope.Aggregate
	Seq int64 // of the event
	// Attempts that were made, with this one.
	Attempts int
	Error    string
	// RetryIn is how long to wait before the next attempt, unless Park, which
	// waits for a person.
	RetryIn time.Duration
	Park    bool
}
