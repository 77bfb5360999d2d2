package envelope

import (
	"errors"
	"time"
)

// Outcome is how a handler treated an event. Its value is the label in metrics.
type Outcome string

// The outcomes.
const (
	// Applied means that this was the next event of its aggregate.
	Applied Outcome = "applied"
	// AppliedAfterGap means that at least one event before this one was not seen.
	AppliedAfterGap Outcome = "applied_after_gap"
	// Stale means that this version or a later one was applied before.
	Stale Outcome = "stale"
	// Duplicate means that this same event was applied before.
	Duplicate Outcome = "duplicate"
	// Conflict means that an event with the same version, but another id, was applied
	// before, and neither is a snapshot.
	Conflict Outcome = "conflict"
)

// ErrUnavailable is wrapped by the errors of a store whose database is unavailable or not
// working. The same call may succeed later.
var ErrUnavailable = errors.New("unavailable")

// Quarantined is a message that cannot be projected, with all that a person needs to see
// why and to replay it.
type Quarantined struct {
	MessageID   string            `json:"message_id"`
	OrderingKey string            `json:"ordering_key"`
	Attributes  map[string]string `json:"attributes"`
	Payload     []byte            `json:"payload,omitempty"`
	Reason      string            `json:"reason"`
	PublishTime time.Time         `json:"publish_time"`
}
