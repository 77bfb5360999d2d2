// Package envelope describes a message on its way: what it is about, without
// what is in it. The outbox and the consumer work with envelopes, and so with
// events of any aggregate.
//
// An envelope is the attributes of a Pub/Sub message, and its payload as bytes
// that only the codec of the aggregate reads. [Message.Attributes] writes the
// attributes, [Parse] reads them. The bytes and the attributes are a contract
// with every consumer; they never change.
package envelope

import (
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// MaxVersion is the largest version of an aggregate. No aggregate reaches it, and
// no event of its owner could follow a larger one of a stranger.
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
}

// Aggregate identifies an aggregate.
type Aggregate struct{ Type, ID string }

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
)

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
	return attributes
}

// DecodeError says why a message cannot be read. Reading it again will not
// help; a newer build may.
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

// Undecodable returns a *DecodeError with a reason.
func Undecodable(format string, args ...any) error {
	return &DecodeError{Reason: fmt.Sprintf(format, args...)}
}
