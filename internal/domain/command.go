package domain

import (
	"time"

	"github.com/google/uuid"
)

// EventType is the type of an event, in the past tense.
type EventType string

// Stamp is the id of the next event, a UUIDv7, and its time in UTC. Decisions
// get it from outside, so that they stay pure.
type Stamp struct {
	EventID uuid.UUID
	Time    time.Time
}

// AnyVersion as the expected version of a command matches every version.
const AnyVersion int64 = 0
