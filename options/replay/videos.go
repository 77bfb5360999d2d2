package replay

import (
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/options/replay/internal/sqlcgen"
)

// videos returns the videos as aggregates.
func videos() aggregates {
	return snapshotsOf(event.AggregateVideo, (*sqlcgen.Queries).ListVideoIDs, new(store.Videos).Lock, videoSnapshot)
}

func videoSnapshot(v domain.Video) (envelope.Message, error) {
	return event.EncodeVideo(&domain.VideoEvent{
		ID: snapshotID(event.AggregateVideo, v.ID, v.Version), Type: domain.Snapshot, Video: v, OccurredAt: v.UpdateTime,
	})
}
