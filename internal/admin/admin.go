// Package admin is what operators see and do: list what the broker or this service refused,
// and requeue, skip, replay or delete it, one by one or all that match a filter.
//
// An action is counted first (Request.DryRun), has a reason, and leaves rows in the table
// audit, in the same transactions as its effect. The commands of the server and
// the console use this package, so that they check and do the same.
//
// It has no SQL: internal/store implements [Outbox] and [Quarantine]. All methods are safe for
// concurrent use, also by several operators: each item is changed once.
package admin

import (
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/problem"
)

// The actions, as the table audit names them.
const (
	ActionRequeue = "outbox.requeue"
	ActionSkip    = "outbox.skip"
	ActionReplay  = "quarantine.replay"
	ActionDelete  = "quarantine.delete"
)

// Actor is who does an action.
type Actor struct {
	// Name is a person, or the operating-system user and host: 1 to 200 bytes.
	Name string `json:"actor"`
	// Via is how it came here: command or console.
	Via string `json:"via"`
}

// Filter selects what an action changes. A zero field matches everything.
type Filter struct {
	// Type is an aggregate type.
	Type string `json:"type,omitempty"`
	// ID is the id of an aggregate. In quarantine it is the number of a message.
	ID string `json:"id,omitempty"`
	// Cause is the cause that a Group has.
	Cause string `json:"cause,omitempty"`
	// Age matches what has waited for longer than that. In JSON it is in nanoseconds.
	Age time.Duration `json:"age,omitempty"`
}

// Request describes an action.
type Request struct {
	Filter Filter
	// All allows an empty filter, which matches everything that waits for a person.
	All bool
	// EventID restricts a skip to that event. uuid.Nil: it does not.
	EventID uuid.UUID
	// DryRun counts what matches, and changes nothing.
	DryRun bool
	// Confirmed is the count of a dry run. If more match now, the action is refused. 0: any
	// number may match.
	Confirmed int64
	// Reason says why, for those who read the audit: 1 to 500 bytes. A dry run needs none.
	Reason string
	Actor  Actor
	// Progress is called after each transaction with the number of items that are done. It
	// may be nil.
	Progress func(done, matched int64)
}

// Result is what an action did. If an action fails in the middle, what is done stays done,
// and the result says how much that is.
type Result struct {
	// ActionID is the action_id of its rows in the table audit. uuid.Nil after a dry run.
	ActionID uuid.UUID `json:"action_id,omitzero"`
	// Matched is how many items matched when it began. Others may have been faster for
	// some.
	Matched int64 `json:"matched"`
	// Done is how many items it changed.
	Done int64 `json:"done"`
	// Failed are the items that it could not change, at most maxFailures, and Failures is
	// their number.
	Failed   []Failure `json:"failed,omitempty"`
	Failures int64     `json:"failures"`
}

// Failure is an item that an action could not change.
type Failure struct {
	ID    string `json:"id"`
	Cause string `json:"cause"`
}

// maxFailures is how many failures a result names.
const maxFailures = 100

// Group is what has failed for one cause.
type Group struct {
	// Cause identifies it: messages that differ only in numbers, ids and quoted words have
	// the same cause.
	Cause string `json:"cause"`
	// Sample is the message of one item.
	Sample string `json:"sample"`
	// Items is how many items there are, and Waiting how many of them wait for a person.
	Items   int64 `json:"items"`
	Waiting int64 `json:"waiting"`
	// First and Last are when the first and the last of those began to wait; zero if none
	// waits.
	First time.Time `json:"first_time,omitzero"`
	Last  time.Time `json:"last_time,omitzero"`
}

// Blocked is an aggregate with an event that the broker refused, until all its events that
// are deferred are published.
type Blocked struct {
	envelope.Aggregate
	EventID   uuid.UUID `json:"event_id,omitzero"` // the first deferred event; uuid.Nil if none is, for example after a skip
	EventType string    `json:"event_type"`
	EventTime time.Time `json:"event_time,omitzero"` // when it happened
	Version   int64     `json:"version"`
	Attempts  int       `json:"attempts"`            // of that event, since a person last requeued or skipped
	LastError string    `json:"last_error"`          // of that event; empty if an earlier event was refused
	Cause     string    `json:"cause"`               // of LastError: see Group
	NextRetry time.Time `json:"retry_time,omitzero"` // zero if parked
	ParkedAt  time.Time `json:"park_time,omitzero"`  // zero if not parked
}

// Quarantined is a message in quarantine. Lists leave out the payload: see
// Quarantine.QuarantinedPayload.
type Quarantined struct {
	ID       int64  `json:"id"`       // grows with every message
	Consumer string `json:"consumer"` // of the subscription that it came from
	envelope.Quarantined
	Cause      string    `json:"cause"`        // of Reason: see Group
	ReceivedAt time.Time `json:"receive_time"` // when it was set aside
	// If the payload is not kept, PayloadSize is its size in bytes and PayloadSHA256 its
	// hash in hexadecimal, and attributes and reason are shortened. Otherwise both are zero.
	PayloadSize   int64  `json:"payload_size,omitempty"`
	PayloadSHA256 string `json:"payload_sha256,omitempty"`
}

// Entry is a row of the table audit: one transaction of an action.
type Entry struct {
	ID         int64     `json:"id"` // of its side
	ActionID   uuid.UUID `json:"action_id"`
	CreateTime time.Time `json:"create_time"`
	Actor
	DatabaseUser string          `json:"database_user"` // as PostgreSQL has it; empty in an entry that is to be appended
	Action       string          `json:"action"`
	Filter       json.RawMessage `json:"filter"` // a Filter, and what else says what the action is about
	Reason       string          `json:"reason"`
	Items        int64           `json:"items"` // how many it changed
	// Before is an array of the items as they were before; of a backfill, the
	// first and last id. After has the items as they were after it. It is empty if action and
	// Before say that.
	Before json.RawMessage `json:"before"`
	After  json.RawMessage `json:"after"`
}

// check returns problem.Invalid, with the name of the field, if the request lacks what an
// action needs.
func (r Request) check() error {
	switch {
	case r.Filter == Filter{} && !r.All:
		return problem.InvalidField("filter", "must name a type, an id, a cause or an age, unless all is set")
	case r.Filter != Filter{} && r.All:
		return problem.InvalidField("all", "must not be set with a filter")
	case r.Filter.Age < 0:
		return problem.InvalidField("filter.age", "must not be negative")
	case r.DryRun:
		return nil
	}
	return checkWhy(r.Reason, r.Actor)
}

// checkWhy checks what every entry of the audit must have.
func checkWhy(reason string, actor Actor) error {
	switch {
	case !isText(reason, maxReason):
		return problem.InvalidField("reason", "must say why, in 1 to %d bytes of text", maxReason)
	case !isText(actor.Name, maxActor):
		return problem.InvalidField("actor", "must say who, in 1 to %d bytes of text", maxActor)
	}
	return nil
}

const (
	maxReason = 500 // bytes
	maxActor  = 200 // bytes
)

// isText reports whether PostgreSQL can store a text, and it is neither blank nor longer
// than maxBytes.
func isText(text string, maxBytes int) bool {
	return strings.TrimSpace(text) != "" && len(text) <= maxBytes && utf8.ValidString(text) && !strings.ContainsRune(text, 0)
}
