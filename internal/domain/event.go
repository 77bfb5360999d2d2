package domain

import (
	"time"

	"github.com/google/uuid"
)

// EventType names a fact, in the past tense.
type EventType string

// The events of a video.
const (
	VideoCreated     EventType = "VideoCreated"
	VideoUpdated     EventType = "VideoUpdated"
	VideoPublished   EventType = "VideoPublished"
	VideoUnpublished EventType = "VideoUnpublished"
	VideoDeleted     EventType = "VideoDeleted"
	VideoUndeleted   EventType = "VideoUndeleted"
)

// Event is a fact about a video. It is never edited.
type Event struct {
	ID   uuid.UUID // UUIDv7
	Type EventType // empty: a type this build does not know, see event.Decode
	// Video is the full state after the event; its Version is the event's.
	Video         Video
	ChangedFields []string // of VideoUpdated only
	OccurredAt    time.Time
}
