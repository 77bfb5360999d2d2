// Package event encodes. It owns the durable form of an event. The form is made once, in
// the transaction that records the event, and a consumer reads it. The outbox row and the
// Pub/Sub message carry the same bytes.
//
// The Encode functions make an [envelope.Message] from a domain event. They refuse an event that the
// broker would refuse, so that such an event is never committed. The Decode functions read the bytes,
// of this version of the contract and of older ones. If they cannot be read, they return a
// [*envelope.DecodeError].
package event

import (
	"fmt"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/problem"
)

// bytesOf returns the bytes of a payload. They are deterministic: the same event always has
// the same bytes, and the golden samples stay valid.
func bytesOf(payload proto.Message) ([]byte, error) {
	content, err := proto.MarshalOptions{Deterministic: true}.Marshal(payload)
	if err != nil {
		return nil, fmt.Errorf("encode event: %w", err)
	}
	return content, nil
}

// withinLimits returns a message, or problem.Invalid if it exceeds the limits of the broker.
func withinLimits(m envelope.Message) (envelope.Message, error) {
	if err := m.CheckLimits(); err != nil {
		return envelope.Message{}, &problem.Error{Kind: problem.Invalid, Message: err.Error()}
	}
	return m, nil
}

// checkContract returns a DecodeError for another aggregate type, and for a newer version of
// the contract than this build reads.
func checkContract(m envelope.Message, aggregateType string, newest int32) error {
	if m.AggregateType != aggregateType {
		return envelope.Undecodable("attribute %s is %q, want %q", envelope.AttrAggregateType, m.AggregateType, aggregateType)
	}
	if m.SchemaVersion > newest {
		return envelope.Undecodable("schema version %d is newer than %d, the newest this build reads", m.SchemaVersion, newest)
	}
	return nil
}

// checkEnvelope returns a DecodeError for an envelope that contradicts its payload. A reader that
// routes, filters or deduplicates by attributes would take the event for another one.
func checkEnvelope(m envelope.Message, id, aggregateID uuid.UUID, version int64) error {
	switch {
	case m.ID != id:
		return envelope.Undecodable("attribute %s is %s, but the payload has %s", envelope.AttrEventID, m.ID, id)
	case m.AggregateID != aggregateID.String():
		return envelope.Undecodable("attribute %s is %q, but the payload has %s", envelope.AttrAggregateID, m.AggregateID, aggregateID)
	case m.Version != version:
		return envelope.Undecodable("attribute %s is %d, but the payload has %d", envelope.AttrVersion, m.Version, version)
	}
	return nil
}

// typeOf returns the type of an event: the name of the message in the oneof type of its payload.
// It is empty for a snapshot, and for a type that this build does not know.
func typeOf(payload proto.Message) domain.EventType {
	m := payload.ProtoReflect()
	field := m.WhichOneof(m.Descriptor().Oneofs().ByName("type"))
	if field == nil {
		return ""
	}
	return domain.EventType(field.Message().Name())
}

// unixMilli writes the zero time as 0. envelope.Reader.Time reads it back.
func unixMilli(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}
