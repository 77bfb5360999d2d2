package domain

import (
	"time"

	"github.com/google/uuid"
)

// EventType is the type of an event, in the past tense.
type EventType string

// Stamp is what a decision gets from outside, so that it stays pure: the id of the
// next event, a UUIDv7, its time in UTC, and what led to it.
type Stamp struct {
	EventID uuid.UUID
	Time    time.Time
	Caller  string // of a command
	Cause   Cause  // of a reaction or a timer
}

// Cause says which event led to another one: see envelope.Cause.
type Cause struct{ CausationID, CorrelationID uuid.UUID }

// AnyVersion as the expected version of a command matches every version.
const AnyVersion int64 = 0
