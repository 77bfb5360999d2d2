package domain

import (
	"bytes"
	"time"

	"github.com/google/uuid"
)

// Entry is what the catalog knows of a video. Entries of hidden and deleted
// videos exist too: their version keeps a late event from bringing them back.
type Entry struct {
	VideoID uuid.UUID
	Details
	// Visible: published and not deleted, so people find it.
	Visible bool
	Deleted bool
	// Version is that of the event the entry was built from; 0: nothing seen yet.
	Version int64
	// EventID is that event. It is zero when a rebuild wrote the entry, and where
	// an entry is read for a caller.
	EventID     uuid.UUID
	PublishTime time.Time // zero while it is a draft
	UpdateTime  time.Time
}

// Outcome is what an event meant for the catalog.
type Outcome int

// The outcomes.
const (
	// Applied: it was the next event of its video.
	Applied Outcome = iota + 1
	// AppliedAfterGap: at least one event before it was not seen. Nothing is
	// missing, because an event carries the full state; but in order and
	// without loss this does not happen, so somebody should look.
	AppliedAfterGap
	// Stale: the catalog is at this version or a later one. The event came late.
	Stale
	// Conflicting: another event claims the version that the catalog has. The owner
	// lost a transaction in a failover, after its event was published.
	Conflicting
)

// Fold returns the entry after an event. It cannot fail. An event that is not
// newer than the entry changes nothing. Of two events of one version the one with
// the later id wins, in whatever order they come: ids are UUIDs of version 7.
func Fold(entry Entry, event Event) (Entry, Outcome) {
	after := EntryOf(event.Video)
	after.EventID = event.ID
	switch {
	case after.Version > entry.Version+1:
		return after, AppliedAfterGap
	case after.Version > entry.Version:
		return after, Applied
	case after.Version < entry.Version, entry.EventID == uuid.Nil, entry.EventID == event.ID:
		return entry, Stale
	case bytes.Compare(event.ID[:], entry.EventID[:]) > 0:
		return after, Conflicting
	default:
		return entry, Conflicting
	}
}

// EntryOf returns the entry of a video as it is: the state that all its events
// together would have led to.
func EntryOf(v Video) Entry {
	return Entry{
		VideoID:     v.ID,
		Details:     v.Details,
		Visible:     v.State == Published && !v.Deleted(),
		Deleted:     v.Deleted(),
		Version:     v.Version,
		PublishTime: v.PublishTime,
		UpdateTime:  v.UpdateTime,
	}
}
