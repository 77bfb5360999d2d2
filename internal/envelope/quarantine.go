package envelope

import "time"

// Quarantined is a message that cannot be projected, so that a person can see
// why and replay it.
type Quarantined struct {
	MessageID   string
	OrderingKey string
	Attributes  map[string]string
	Payload     []byte
	Reason      string
	PublishTime time.Time
}
