// Package envelope describes a message on its way: what the message is about, without its
// content. The outbox and the consumer work with envelopes, so they can handle events of
// any aggregate.
//
// An envelope is the attributes of a Pub/Sub message, and its payload as bytes. Only the
// codec of the aggregate reads the bytes. [Message.Attributes] writes the attributes, and
// [Parse] reads them. The bytes and the attributes are a contract with every consumer, so
// they never change.
package envelope

import (
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// MaxVersion is the largest version of an aggregate; no aggregate reaches it in practice.
// If a foreign event with a larger version were applied, no event of the owner could follow
// it.
const MaxVersion = 1 << 40

// Message is an event in its durable form.
type Message struct {
	ID            uuid.UUID
	AggregateType string
	AggregateID   string // also the ordering key
	Type          string
	Version       int64
	SchemaVersion int32
	Payload       []byte
	OccurredAt    time.Time
	Traceparent   string // W3C trace context; may be empty
	Repeat        string // RepeatSnapshot, or empty for an event that was recorded
	Cause         Cause  // zero for the event of a command
	Caller        string // who called the command; it is no attribute: consumers do not learn it
}

// Aggregate identifies an aggregate.
type Aggregate struct {
	Type string `json:"aggregate_type"`
	ID   string `json:"aggregate_id"`
}

// Aggregate returns the aggregate of a message.
func (m Message) Aggregate() Aggregate { return Aggregate{m.AggregateType, m.AggregateID} }

// The names of the attributes of a Pub/Sub message.
const (
	AttrEventID       = "event_id"
	AttrEventType     = "event_type"
	AttrAggregateType = "aggregate_type"
	AttrAggregateID   = "aggregate_id"
	AttrVersion       = "version"
	AttrSchemaVersion = "schema_version"
	AttrOccurredAt    = "occurred_at" // RFC 3339 with nanoseconds, UTC
	AttrTraceparent   = "traceparent"
	AttrRepeat        = "repeat"         // of a message that an operator published
	AttrCausationID   = "causation_id"   // of an event that has a cause
	AttrCorrelationID = "correlation_id" // the same
)

// RepeatSnapshot is the value of Message.Repeat of a message that has the current state of its
// aggregate, for consumers that lack events. It has the version of the last event, and its
// payload says nothing about what happened.
const RepeatSnapshot = "snapshot"

// Attributes returns the attributes of the Pub/Sub message.
func (m Message) Attributes() map[string]string {
	attributes := map[string]string{
		AttrEventID:       m.ID.String(),
		AttrEventType:     m.Type,
		AttrAggregateType: m.AggregateType,
		AttrAggregateID:   m.AggregateID,
		AttrVersion:       strconv.FormatInt(m.Version, 10),
		AttrSchemaVersion: strconv.FormatInt(int64(m.SchemaVersion), 10),
		AttrOccurredAt:    m.OccurredAt.UTC().Format(time.RFC3339Nano),
	}
	if m.Traceparent != "" {
		attributes[AttrTraceparent] = m.Traceparent
	}
	if m.Repeat != "" {
		attributes[AttrRepeat] = m.Repeat
	}
	if m.Cause != (Cause{}) {
		attributes[AttrCausationID] = m.Cause.CausationID.String()
		attributes[AttrCorrelationID] = m.Cause.CorrelationID.String()
	}
	return attributes
}

// DecodeError means that a message cannot be read. Reading it again does not help, but a
// newer build may be able to read it.
type DecodeError struct {
	Reason string
	Err    error // may be nil
}

func (e *DecodeError) Error() string {
	if e.Err != nil {
		return "decode event: " + e.Reason + ": " + e.Err.Error()
	}
	return "decode event: " + e.Reason
}

// Unwrap returns the cause.
func (e *DecodeError) Unwrap() error { return e.Err }

// Undecodable returns a *DecodeError with a formatted reason.
func Undecodable(format string, args ...any) error {
	return &DecodeError{Reason: fmt.Sprintf(format, args...)}
}
