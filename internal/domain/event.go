package domain

import (
	"time"

	"github.com/google/uuid"
)

// The events of a video.
const (
	VideoCreated     EventType = "VideoCreated"
	VideoUpdated     EventType = "VideoUpdated"
	VideoPublished   EventType = "VideoPublished"
	VideoUnpublished EventType = "VideoUnpublished"
	VideoDeleted     EventType = "VideoDeleted"
	VideoUndeleted   EventType = "VideoUndeleted"
	VideoPurged      EventType = "VideoPurged"
)

// Event is a fact about a video. It is immutable.
type Event struct {
	ID   uuid.UUID // UUIDv7; for a snapshot see SnapshotID
	Type EventType // empty: a snapshot, or a type that this build does not know; see event.Decode
	// Video is the full state after the event; its Version is the event's.
	Video         Video
	ChangedFields []string // only in VideoUpdated
	OccurredAt    time.Time
	// Caller and Cause are of the Stamp. No consumer sees them.
	Caller string
	Cause  Cause
}
