package envelope

import (
	"strconv"
	"time"

	"github.com/google/uuid"
)

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
		Payload: data, Traceparent: attributes[AttrTraceparent], Repeat: attributes[AttrRepeat], Cause: causeOf(attributes),
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
