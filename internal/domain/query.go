package domain

import (
	"time"

	"github.com/google/uuid"
)

// VideoQuery asks for a page of videos.
type VideoQuery struct {
	// OldestFirst orders by create time upwards instead of downwards.
	OldestFirst bool
	// After is the last video of the page before; nil on the first page.
	After *VideoCursor
	// Limit is the most that is answered; at least 1.
	Limit int
	// MaxBytes ends the page behind the item with which its titles, descriptions and
	// tags have that many bytes; 0: any number.
	MaxBytes int
	// ShowDeleted includes the deleted ones.
	ShowDeleted bool
	// State and LanguageCode restrict the answer; empty: they do not.
	State        State
	LanguageCode string
}

// VideoCursor is a place in a list of videos.
type VideoCursor struct {
	CreateTime time.Time
	ID         uuid.UUID
}

// EntryQuery asks for a page of the catalog.
type EntryQuery struct {
	// ByTitle orders by the bytes of the title upwards instead of by publish
	// time downwards.
	ByTitle bool
	// After is the last entry of the page before; nil on the first page.
	After *EntryCursor
	// Limit is the most that is answered; at least 1.
	Limit int
	// MaxBytes ends the page behind the item with which its titles, descriptions and
	// tags have that many bytes; 0: any number.
	MaxBytes int
	// LanguageCode, ReleaseYear and Tags (all of them) restrict the answer;
	// empty: they do not.
	LanguageCode string
	ReleaseYear  int32
	Tags         []string
}

// EntryCursor is a place in a list of entries; what the order does not need is
// not looked at.
type EntryCursor struct {
	PublishTime time.Time
	Title       string
	VideoID     uuid.UUID
}

// SearchQuery asks for a page of the entries that match some words.
type SearchQuery struct {
	// Words in the form of a web search: or, -word, "a phrase". Without any
	// letter or digit they match nothing.
	Words string
	// After is the last match of the page before; nil on the first page.
	After *MatchCursor
	// Limit is the most that is answered; at least 1.
	Limit int
	// MaxBytes ends the page behind the item with which its titles, descriptions and
	// tags have that many bytes; 0: any number.
	MaxBytes int
}

// MatchCursor is a place in a list of matches.
type MatchCursor struct {
	Rank    float32
	VideoID uuid.UUID
}

// Match is an entry and how well it matches.
type Match struct {
	Entry
	Rank float32
}

// Position is a place in the sequence of the changes of the catalog. The zero
// Position is before all of them. It means nothing in another Database, which is
// a history of a database: see docs/decisions/0025.
type Position struct {
	Database    string
	Transaction uint64
	VideoID     uuid.UUID
}

// Change is an entry as a change left it, and the place of that change.
type Change struct {
	Entry
	Position Position
	// Rebuilt: a rebuild wrote it, which may take an entry back to any version.
	Rebuilt bool
}

// ChangePage is a part of the sequence of changes.
type ChangePage struct {
	Changes []Change
	// Next is where to go on: behind the last change, or where the page began.
	Next Position
	// More: there may be changes behind the page already.
	More bool
	// Restarted: the position that was asked for is not of this database, so the
	// page is the first of all.
	Restarted bool
}
