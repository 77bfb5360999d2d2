package envelope

import "fmt"

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
