package replay

import (
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/options/replay/internal/sqlcgen"
)

// videos returns the videos as aggregates.
func videos() aggregates {
	return snapshotsOf(event.AggregateVideo, (*sqlcgen.Queries).ListVideoIDs, new(store.Videos).Lock, event.EncodeVideoSnapshot)
}
