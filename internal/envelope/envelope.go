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
	"errors"
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
	Traceparent   string    // W3C trace context; may be empty
	Repeat        string    // RepeatSnapshot, or empty for an event that was recorded
	Causation     Causation // zero for the event of a command
	Caller        string    // who called the command; it is no attribute
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
	AttrCausationID   = "causation_id"   // of an event that another one led to
	AttrCorrelationID = "correlation_id" // the same
)

// RepeatSnapshot is the value of Message.Repeat of a message that has the current state of its
// aggregate, for consumers that lack events. It has the version of the last event, and its
// payload says nothing about what happened.
const RepeatSnapshot = "snapshot"

// IsSnapshot reports whether an event is a snapshot, by its id: a UUIDv8 that begins with 48 zero bits, where
// the UUIDv7 of another event has its time. So of two events with one version a snapshot has the lower id.
func IsSnapshot(eventID uuid.UUID) bool {
	return eventID.Version() == 8 && [6]byte(eventID[:6]) == [6]byte{}
}

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
	if m.Causation != (Causation{}) {
		attributes[AttrCausationID] = m.Causation.CausationID.String()
		attributes[AttrCorrelationID] = m.Causation.CorrelationID.String()
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

// Causation says which event led to another one, through a reaction or a timer.
type Causation struct {
	// CausationID is the id of the event that directly led to this one.
	CausationID uuid.UUID
	// CorrelationID is the id of the first event of the chain. All events of a chain have
	// it, except the first.
	CorrelationID uuid.UUID
}

// causationOf reads a causation from the attributes of a message. A malformed id counts as absent,
// because no event must be lost for it.
func causationOf(attributes map[string]string) Causation {
	var causation Causation
	var err error
	if causation.CausationID, err = uuid.Parse(attributes[AttrCausationID]); err != nil {
		return Causation{}
	}
	if causation.CorrelationID, err = uuid.Parse(attributes[AttrCorrelationID]); err != nil {
		return Causation{}
	}
	return causation
}

// Parse reads the envelope of a Pub/Sub message from its attributes. data is the payload,
// which Parse does not read. If an attribute is missing or malformed, it returns a
// *DecodeError that names the attribute. Only traceparent, repeat, causation_id and
// correlation_id may be missing or wrong: no event must be lost because of them. Other
// attributes are ignored.
func Parse(attributes map[string]string, data []byte) (Message, error) {
	for _, name := range []string{AttrEventID, AttrEventType, AttrAggregateType, AttrAggregateID, AttrVersion, AttrSchemaVersion, AttrOccurredAt} {
		if attributes[name] == "" {
			return Message{}, Undecodable("attribute %s is missing", name)
		}
	}
	m := Message{
		AggregateType: attributes[AttrAggregateType], AggregateID: attributes[AttrAggregateID], Type: attributes[AttrEventType],
		Payload: data, Traceparent: attributes[AttrTraceparent], Repeat: attributes[AttrRepeat], Causation: causationOf(attributes),
	}
	var err error
	if m.ID, err = uuid.Parse(attributes[AttrEventID]); err != nil {
		return Message{}, malformed(attributes, AttrEventID, "a UUID")
	}
	if m.Version, err = strconv.ParseInt(attributes[AttrVersion], 10, 64); err != nil || m.Version < 1 || m.Version > MaxVersion {
		return Message{}, malformed(attributes, AttrVersion, "a number from 1 to "+strconv.FormatInt(MaxVersion, 10))
	}
	schema, err := strconv.ParseInt(attributes[AttrSchemaVersion], 10, 32)
	if err != nil || schema < 1 {
		return Message{}, malformed(attributes, AttrSchemaVersion, "a number from 1")
	}
	m.SchemaVersion = int32(schema)
	if m.OccurredAt, err = time.Parse(time.RFC3339Nano, attributes[AttrOccurredAt]); err != nil {
		return Message{}, malformed(attributes, AttrOccurredAt, "an RFC 3339 time")
	}
	m.OccurredAt = m.OccurredAt.UTC()
	return m, nil
}

func malformed(attributes map[string]string, name, want string) error {
	return Undecodable("attribute %s is %q, want %s", name, attributes[name], want)
}

// The limits of Pub/Sub (https://cloud.google.com/pubsub/quotas#resource_limits). An event
// beyond them would stay in the outbox and block its aggregate for ever. So it is refused
// before it is committed.
const (
	// MaxMessageBytes is the largest size of a message, with its ordering key and attributes.
	// A publish request with one message may have 10,000,000 bytes. A thousand of them are
	// for the name of the topic and the framing.
	MaxMessageBytes        = 10_000_000 - 1_000
	maxOrderingKeyBytes    = 1024
	maxAttributeValueBytes = 1024
)

// CheckLimits returns an error if Pub/Sub, or every consumer, would refuse the message. The
// error is meant for the caller of the command.
func (m Message) CheckLimits() error {
	if len(m.AggregateID) > maxOrderingKeyBytes {
		return fmt.Errorf("the event's ordering key has %d bytes, at most %d can be published", len(m.AggregateID), maxOrderingKeyBytes)
	}
	if m.Version > MaxVersion {
		return fmt.Errorf("the event has version %d, at most %d can be published", m.Version, int64(MaxVersion))
	}
	size := len(m.Payload) + len(m.AggregateID)
	if m.Traceparent == "" { // the publisher may add one
		size += len(AttrTraceparent) + traceparentBytes
	}
	if m.Repeat == "" { // it may be published again
		size += len(AttrRepeat) + len(RepeatSnapshot)
	}
	for name, value := range m.Attributes() {
		if len(value) > maxAttributeValueBytes {
			return fmt.Errorf("the event's attribute %s has %d bytes, at most %d can be published", name, len(value), maxAttributeValueBytes)
		}
		size += len(name) + len(value)
	}
	if size > MaxMessageBytes {
		return fmt.Errorf("the event has %d bytes, at most %d can be published", size, MaxMessageBytes)
	}
	return nil
}

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
