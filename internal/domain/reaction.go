package domain

import (
	"time"

	"github.com/google/uuid"
)

// Reaction is how the aggregates of one type react to the events of another: A is the
// aggregate, D an event of it, and E the event to which it reacts. Both functions are pure.
type Reaction[E, A, D any] struct {
	// Concerns returns the ids of the aggregates that an event concerns. Each decides once.
	Concerns func(E) []uuid.UUID
	// Decide returns the next event of an aggregate, or nil if it does nothing. For an
	// aggregate that does not exist it gets the zero A, and may return its first event. A
	// *problem.Error is a refusal by the rules, and the same as nil. Any other error means that
	// this build cannot handle the event: it is tried again, and then goes to the quarantine.
	Decide func(aggregate A, event E, stamp Stamp) (*D, error)
}

// Alarm is what an aggregate does when one of its timers fires: its next event, or nil. It is
// pure. A *problem.Error is the same as nil. Any other error means that this build cannot do
// it: the timer is tried again later.
type Alarm[A, D any] func(aggregate A, timer string, stamp Stamp) (*D, error)

// Timer is set or cancelled together with an event.
type Timer struct {
	// Name is unique within the aggregate. A timer replaces the one with the same name.
	Name string
	// After is the time from the event until the timer fires; 0 cancels the timer.
	After time.Duration
}
