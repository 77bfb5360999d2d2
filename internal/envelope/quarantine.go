package envelope

import "time"

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
