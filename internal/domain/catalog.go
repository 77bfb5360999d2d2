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
	CreateUser  string // of the video
	UpdateUser  string
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
		CreateUser:   v.CreateUser,
		UpdateUser:   v.UpdateUser,
	}
}

// Position is a position in the sequence of catalog changes. The zero Position
// is before all changes. A Position is valid only in its Database, which
// identifies a database and its history.
type Position struct {
	Database    string
	Transaction uint64
	VideoID     uuid.UUID
}

// Change is an entry after a change, with the position of that change.
type Change struct {
	Entry
	Position Position
	// Rebuilt reports whether a repair wrote the entry. A repair may lower its
	// version.
	Rebuilt bool
}

// ChangePage is a page of the sequence of changes.
type ChangePage struct {
	Changes []Change
	// Next is the position to continue after: the last change, or, without one,
	// the start of the page.
	Next Position
	// More reports whether more changes may be available already.
	More bool
	// Held reports that a change is held back, until an older transaction ends.
	Held bool
	// Restarted reports that the requested position is not valid in this
	// database, so this is the first page.
	Restarted bool
}
