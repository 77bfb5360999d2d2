package pg

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/problem"
)

// Filter selects what is stuck, on both sides. A zero field matches everything.
type Filter struct {
	ID        string `json:"id,omitempty"`        // of the first event of an aggregate, or the number of a message
	Type      string `json:"type,omitempty"`      // of an aggregate
	Aggregate string `json:"aggregate,omitempty"` // its id
	Cause     string `json:"cause,omitempty"`     // of a Group, or a part of the error
	// Until leaves out what began to wait for a person later.
	Until time.Time `json:"until,omitzero"`
	// Action leaves out the aggregates that it would not change: retry those that are due, skip those that are tried
	// again by themselves.
	Action string `json:"-"`
}

// Group counts the stuck items of one cause.
type Group struct {
	Cause   string    `json:"cause"`               // errors that differ only in numbers, ids and quoted words have the same one
	Sample  string    `json:"sample"`              // the error of one item
	Items   int64     `json:"items"`               // how many there are
	Waiting int64     `json:"waiting"`             // how many of them wait for a person
	Since   time.Time `json:"since_time,omitzero"` // when the first of the waiting items began to wait; zero if none waits
}

// Blocked is an aggregate with an event that the broker refused, until all its events that
// are deferred are published.
type Blocked struct {
	envelope.Aggregate
	EventID   uuid.UUID `json:"event_id,omitzero"` // the first deferred event; uuid.Nil without one, for example after a skip
	EventType string    `json:"event_type"`
	EventTime time.Time `json:"event_time,omitzero"` // when it happened
	Version   int64     `json:"version"`
	Attempts  int       `json:"attempts"`            // of that event, since a person last retried or skipped
	LastError string    `json:"last_error"`          // of that event; empty if an earlier event was refused
	Cause     string    `json:"cause"`               // of LastError: see Group
	NextRetry time.Time `json:"retry_time,omitzero"` // zero if parked
	ParkedAt  time.Time `json:"park_time,omitzero"`  // zero if not parked
}

// Quarantined is a message in quarantine. Lists leave out the payload.
type Quarantined struct {
	ID       int64  `json:"id"`       // grows with every message
	Consumer string `json:"consumer"` // of the subscription that it came from
	envelope.Quarantined
	Cause      string    `json:"cause"`        // of Reason: see Group
	ReceivedAt time.Time `json:"receive_time"` // when it was quarantined
	// If the payload is not kept, PayloadSize is its size in bytes and PayloadSHA256 its
	// hash in hexadecimal, and attributes and reason are shortened. Otherwise both are zero.
	PayloadSize   int64  `json:"payload_size,omitempty"`
	PayloadSHA256 string `json:"payload_sha256,omitempty"`
}

// Aggregate returns the aggregate that the message's attributes name.
func (m Quarantined) Aggregate() envelope.Aggregate {
	return envelope.Aggregate{Type: m.Attributes[envelope.AttrAggregateType], ID: m.Attributes[envelope.AttrAggregateID]}
}

// Actor is who does an action.
type Actor struct {
	Name string // a person, or the operating-system user and host: 1 to 200 characters; empty if neither is known
	Via  string // command or console
}

// Entry is an action as the table audit has it, without the items.
type Entry struct {
	Actor

	ActionID uuid.UUID
	Action   string
	Filter   json.RawMessage // what the action is about
	Reason   string
}

// NewEntry returns the entry of an action. selected says what the action is about, and becomes
// JSON. For a wrong reason or actor the error is problem.Invalid, and names the flag.
func NewEntry(action string, selected any, actor Actor, reason string) (e Entry, err error) {
	e = Entry{Actor: actor, Action: action, Reason: strings.TrimSpace(reason)}
	if !isText(e.Reason, MaxReason) {
		return e, problem.InvalidField("--why", "must say why, in 1 to %d characters", MaxReason)
	}
	if !isText(actor.Name, maxActor) {
		return e, problem.InvalidField("--by", "must say who, as --by NAME, in 1 to %d characters", maxActor)
	}
	if e.Filter, err = json.Marshal(selected); err != nil {
		return e, fmt.Errorf("%s: %w", action, err)
	}
	e.ActionID, err = uuid.NewV7()
	return e, err
}

// The limits of a text in the audit, in characters.
const (
	MaxReason = 500
	maxActor  = 200
)

// isText reports whether PostgreSQL can store a text, and it is neither blank nor longer than most
// characters.
func isText(text string, most int) bool {
	return strings.TrimSpace(text) != "" && utf8.RuneCountInString(text) <= most && utf8.ValidString(text) && !strings.ContainsRune(text, 0)
}

// PruneAudit deletes at most maxRows entries that are older than olderThan, by the clock of
// the database, and returns how many. It never deletes an entry of the last 30 days.
func (o *Outbox) PruneAudit(ctx context.Context, olderThan time.Duration, maxRows int) (int64, error) {
	n, err := o.queries.PruneCommandAudit(ctx, olderThan, Limit(maxRows))
	return n, Wrap(err, "prune audit")
}

// PruneAudit deletes old entries of the query side. See [Outbox.PruneAudit].
func (b *Inbox) PruneAudit(ctx context.Context, olderThan time.Duration, maxRows int) (int64, error) {
	n, err := b.queries.PruneQueryAudit(ctx, olderThan, Limit(maxRows))
	return n, Wrap(err, "prune audit")
}
