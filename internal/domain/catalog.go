package domain

import (
	"bytes"
	"time"

	"github.com/google/uuid"
)

// Entry is the state of a video in the catalog. Hidden and deleted videos have
// entries too: the version of an entry prevents a late event from restoring
// older state.
type Entry struct {
	VideoID uuid.UUID
	Details
	// Visible reports whether the video is published and not deleted.
	Visible bool
	Deleted bool
	// Version is that of the last applied event; 0: none has arrived.
	Version int64
	// EventID is the id of that event. It is zero if a repair wrote the entry,
	// and in entries that are read for clients.
	EventID     uuid.UUID
	PublishTime time.Time // zero in a draft
	UpdateTime  time.Time
}

// Outcome is the effect of an event on the catalog.
type Outcome int

// The outcomes.
const (
	// Applied: it was the next event of the video.
	Applied Outcome = iota + 1
	// AppliedAfterGap: it was applied, but an earlier event has not arrived. No
	// state is missing, because an event carries the full state. This never
	// happens with ordered delivery without loss, so it should be investigated.
	// A purge is no such case: it erases events that are not published yet.
	AppliedAfterGap
	// Stale: it came late; the catalog has this version or a later one.
	Stale
	// Conflict: another event claims the version that the catalog has. The owner
	// lost a transaction in a failover, after its event was published.
	Conflict
)

// Fold returns the entry after an event, and the effect of the event. An event
// that is not newer than the entry changes nothing. Of two events with the same
// version the one with the later id (UUIDv7) wins, in whatever order they
// arrive. A snapshot stands for all events until its version: it leaves no gap,
// and does not contradict the event of its version.
func Fold(entry Entry, event Event) (Entry, Outcome) {
	after := EntryOf(event.Video)
	after.EventID = event.ID
	switch {
	case after.Version > entry.Version+1 && !event.Video.Purged() && !IsSnapshot(event.ID):
		return after, AppliedAfterGap
	case after.Version > entry.Version:
		return after, Applied
	case after.Version < entry.Version, entry.EventID == uuid.Nil, entry.EventID == event.ID, IsSnapshot(event.ID), IsSnapshot(entry.EventID):
		return entry, Stale
	case bytes.Compare(event.ID[:], entry.EventID[:]) > 0:
		return after, Conflict
	default:
		return entry, Conflict
	}
}

// EntryOf returns the entry for the current state of a video, which is the
// result of folding all its events.
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
