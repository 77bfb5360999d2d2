package domain

import (
	"time"

	"github.com/google/uuid"
)

// VideoQuery selects a page of videos, the newest first.
type VideoQuery struct {
	// OldestFirst orders by create time, ascending instead of descending.
	OldestFirst bool
	// After is the last video of the previous page; nil on the first page.
	After *VideoCursor
	// Limit is the largest number of results; at least 1.
	Limit int
	// ShowDeleted includes deleted videos, but no purged ones.
	ShowDeleted bool
	// ShowPurged includes deleted and purged videos.
	ShowPurged bool
	// State and LanguageCode filter the results; empty: no filter.
	State        VideoState
	LanguageCode string
}

// VideoCursor is a position in a list of videos.
type VideoCursor struct {
	CreateTime time.Time
	ID         uuid.UUID
}

// EntryQuery selects a page of the catalog.
type EntryQuery struct {
	// ByTitle orders by the bytes of the title, ascending, instead of by
	// publish time, descending.
	ByTitle bool
	// After is the last entry of the previous page; nil on the first page.
	After *EntryCursor
	// Limit is the largest number of results; at least 1.
	Limit int
	// LanguageCode, ReleaseYear and Tags filter the results; an entry must have
	// all Tags. Empty: no filter.
	LanguageCode string
	ReleaseYear  int32
	Tags         []string
}

// EntryCursor is a position in a list of entries. PublishTime or Title is
// ignored if the list is not ordered by it.
type EntryCursor struct {
	PublishTime time.Time
	Title       string
	VideoID     uuid.UUID
}

// SearchQuery selects a page of the entries that match Words, best match first.
type SearchQuery struct {
	// Words are a web search: or, -word, "a phrase". Without any letter or
	// digit they match nothing.
	Words string
	// After is the last match of the previous page; nil on the first page.
	After *MatchCursor
	// Limit is the largest number of results; at least 1.
	Limit int
}

// MatchCursor is a position in a list of matches.
type MatchCursor struct {
	Rank    float32
	VideoID uuid.UUID
}

// Match is an entry and its rank; a higher rank matches better.
type Match struct {
	Entry
	Rank float32
}
