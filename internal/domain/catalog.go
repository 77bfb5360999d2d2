package domain

import (
	"time"

	"github.com/google/uuid"
)

// Entry is the state of a video in the catalog. Hidden and deleted videos have
// entries too: the version of an entry prevents a late event from restoring
// older state.
type Entry struct {
	VideoID uuid.UUID
	VideoDetails
	// Visible reports whether the video is published and not deleted.
	Visible bool
	Deleted bool
	// Version is the version of the newest applied event; 0: no event has arrived.
	Version     int64
	PublishTime time.Time // zero in a draft
	UpdateTime  time.Time
}

// EntryOf returns the entry for a state of a video. Every event of the video
// carries its full state.
func EntryOf(v Video) Entry {
	return Entry{
		VideoID:      v.ID,
		VideoDetails: v.VideoDetails,
		Visible:      v.State == VideoStatePublished && !v.Deleted(),
		Deleted:      v.Deleted(),
		Version:      v.Version,
		PublishTime:  v.PublishTime,
		UpdateTime:   v.UpdateTime,
	}
}
