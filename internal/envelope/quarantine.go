package envelope

import "time"

// Quarantined is a message that cannot be projected, with all that a person needs to see
// why and to replay it.
type Quarantined struct {
	MessageID   string
	OrderingKey string
	Attributes  map[string]string
	Payload     []byte
	Reason      string
	PublishTime time.Time
}
