package pg

import (
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/envelope"
)

// Filter selects what is stuck, on both sides. A zero field matches everything.
type Filter struct {
	ID        string `json:"id,omitempty"`        // of the first event of an aggregate, or the number of a message
	Type      string `json:"type,omitempty"`      // of an aggregate
	Aggregate string `json:"aggregate,omitempty"` // its id
	Cause     string `json:"cause,omitempty"`     // of a Group, or a part of the error
	Parked    bool   `json:"-"`                   // leaves out the aggregates that are tried again by themselves
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
