package envelope

import "errors"

// Outcome is what an event meant for its handler, under the name that metrics
// have for it.
type Outcome string

// The outcomes.
const (
	// Applied: it was the next event of its aggregate.
	Applied Outcome = "applied"
	// AppliedAfterGap: at least one event before it was not seen.
	AppliedAfterGap Outcome = "applied_after_gap"
	// Stale: this version or a later one was applied before.
	Stale Outcome = "stale"
	// Duplicate: this very event was applied before.
	Duplicate Outcome = "duplicate"
	// Conflict: another event claims the version that was applied before.
	Conflict Outcome = "conflict"
)

// ErrUnavailable is in the error of a store whose database is unavailable, or
// does not do its work: the same call may succeed later.
var ErrUnavailable = errors.New("unavailable")
