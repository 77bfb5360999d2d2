package store

import (
	"cmp"
	"context"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// FindVideos returns the existing videos among ids, deleted and purged ones too.
func (s *Videos) FindVideos(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]domain.Video, error) {
	rows, err := s.queries.FindVideos(ctx, ids)
	if err != nil {
		return nil, pg.Wrap(err, "find %d videos", len(ids))
	}
	found := make(map[uuid.UUID]domain.Video, len(rows))
	for _, row := range rows {
		found[row.ID] = videoOf(row)
	}
	return found, nil
}

// listOldestFirst is ListVideos with the oldest video first.
func (s *Videos) listOldestFirst(ctx context.Context, query domain.VideoQuery) (page []domain.Video, more bool, err error) {
	after, p := cmp.Or(query.After, &domain.VideoCursor{}), pg.NewPage(s.pool, query.Limit)
	rows, err := sqlcgen.New(p).ListVideosOldestFirst(ctx, sqlcgen.ListVideosOldestFirstParams{
		AfterTime: after.CreateTime, AfterID: after.ID, ShowDeleted: query.ShowDeleted, ShowPurged: query.ShowPurged,
		State:        pg.Optional(string(query.State)),
		LanguageCode: pg.Optional(query.LanguageCode),
		MaxRows:      p.MaxRows(),
	})
	return pg.MapSlice(rows, videoOf), p.More, pg.Wrap(err, "list videos")
}
