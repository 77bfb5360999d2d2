package store

import (
	"cmp"
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// Videos is the command side of videos.
type Videos struct {
	pg.CommandSide

	pool    *pgxpool.Pool
	queries *sqlcgen.Queries
}

// NewVideos returns the command side of a pool. onCommit may be nil. It is called after each
// commit of an event. It may also be called after a failure. It must not block.
func NewVideos(pool *pgxpool.Pool, onCommit func()) *Videos {
	return &Videos{CommandSide: pg.NewCommandSide(pool, event.AggregateVideo, onCommit), pool: pool, queries: sqlcgen.New(pg.Autocommit(pool))}
}

// CreateVideo stores the first event of a video. With a requestID other than uuid.Nil it is
// idempotent: a repeated call with the same fingerprint returns the current state of the
// video created first. With another fingerprint it returns problem.Exists.
func (s *Videos) CreateVideo(ctx context.Context, requestID uuid.UUID, fingerprint []byte, created *domain.VideoEvent) (domain.Video, error) {
	write := func(ctx context.Context, tx *pg.Tx) error { return recordVideo(ctx, tx, created) }
	id, err := s.Create(ctx, "store.CreateVideo", requestID, fingerprint, created.Video.ID, write)
	if err != nil {
		return domain.Video{}, err
	}
	if id != created.Video.ID {
		return s.GetVideo(ctx, id)
	}
	return created.Video, nil
}

// CreateVideos is CreateVideo for several videos in one transaction: it stores all of them, or none. The slices have
// an item for each; a request id other than uuid.Nil is there once. item is the index of the item that an error is about, or -1.
func (s *Videos) CreateVideos(ctx context.Context, requestIDs []uuid.UUID, fingerprints [][]byte, created []*domain.VideoEvent) (all []domain.Video, item int, err error) {
	return batch[domain.Video]{
		name: "store.CreateVideos", aggregateType: event.AggregateVideo, requestIDs: requestIDs, fingerprints: fingerprints,
		ids: pg.MapSlice(created, func(e *domain.VideoEvent) uuid.UUID { return e.Video.ID }),
		find: func(ctx context.Context, tx *pg.Tx, ids []uuid.UUID) (map[uuid.UUID]domain.Video, error) {
			p := pg.NewPage(s.pool, len(ids))
			p.DB = tx
			return videosOf(ctx, p, ids)
		},
		record: func(ctx context.Context, tx *pg.Tx, i int) (domain.Video, error) {
			return created[i].Video, recordVideo(ctx, tx, created[i])
		},
	}.create(ctx, s.CommandSide)
}

// GetVideos returns the existing videos among ids, deleted ones too. It returns problem.Invalid if they are larger
// than a batch may be.
func (s *Videos) GetVideos(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]domain.Video, error) {
	found, err := videosOf(ctx, pg.NewPage(s.pool, len(ids)), ids)
	return found, pg.Wrap(err, "get %d videos", len(ids))
}

// videosOf returns the existing videos among ids, which fit on a page of batchBytes.
func videosOf(ctx context.Context, p *pg.Page, ids []uuid.UUID) (map[uuid.UUID]domain.Video, error) {
	p.Bytes = batchBytes
	rows, err := sqlcgen.New(p).GetVideos(ctx, ids)
	if p.More {
		return nil, errBatchTooLarge
	}
	found := make(map[uuid.UUID]domain.Video, len(rows))
	for _, row := range rows {
		found[row.ID] = videoOf(row)
	}
	return found, err
}

// ChangeVideo applies a decision to a video under the lock of its row, and returns the new
// state. If the decision returns no event, nothing changes.
func (s *Videos) ChangeVideo(ctx context.Context, id uuid.UUID, decide domain.VideoDecision) (domain.Video, error) {
	var v domain.Video
	err := s.Change(ctx, "store.ChangeVideo", id, func(ctx context.Context, tx *pg.Tx) (changed bool, err error) {
		row, err := sqlcgen.New(tx).LockVideo(ctx, id)
		if err != nil {
			return false, pg.NotFound(err, "video", id)
		}
		v, changed, err = s.Decide(ctx, tx, id, videoOf(row), decide)
		return changed, err
	})
	return v, err
}

// Decide applies a decision to a video in a transaction that has locked it, and returns the
// state after it. If the decision returns no event, nothing changes. If a video does not exist,
// before is the zero value.
func (*Videos) Decide(ctx context.Context, tx *pg.Tx, id uuid.UUID, before domain.Video, decide func(domain.Video) (*domain.VideoEvent, error)) (after domain.Video, changed bool, err error) {
	next, err := decide(before)
	if next == nil || err != nil {
		return before, false, err
	}
	if err := pg.CheckNext(id, before.Version, next.Video.ID, next.Video.Version); err != nil {
		return before, false, err
	}
	return next.Video, true, recordVideo(ctx, tx, next)
}

// Lock locks videos in the order of their ids, and returns the existing ones. It waits for the
// locks of other transactions. If free is set, it leaves out the videos that they have locked.
func (*Videos) Lock(ctx context.Context, tx *pg.Tx, ids []uuid.UUID, free bool) (map[uuid.UUID]domain.Video, error) {
	q := sqlcgen.New(tx)
	lock := q.LockVideos
	if free {
		lock = q.LockFreeVideos
	}
	rows, err := lock(ctx, ids)
	locked := make(map[uuid.UUID]domain.Video, len(rows))
	for _, row := range rows {
		locked[row.ID] = videoOf(row)
	}
	return locked, err
}

// recordVideo writes a video and its event in the caller's transaction, which leaves both or
// neither. No other function writes videos: see internal/archtest. The queued statements go
// out with the COMMIT, which returns their errors.
func recordVideo(ctx context.Context, tx *pg.Tx, e *domain.VideoEvent) error {
	q := sqlcgen.New(tx)
	message, err := event.EncodeVideo(e)
	if err != nil {
		return err
	}
	v := e.Video
	if v.Purged() {
		if err := erase(ctx, tx, message); err != nil {
			return err
		}
	}
	if v.Version == 1 {
		tx.Queue(q.InsertVideo(ctx, sqlcgen.InsertVideoParams{
			ID:           v.ID,
			Title:        v.Title,
			Description:  v.Description,
			ReleaseYear:  v.ReleaseYear,
			DurationMs:   v.Duration.Milliseconds(),
			LanguageCode: v.LanguageCode,
			Tags:         pg.NotNil(v.Tags),
			State:        string(v.State), Version: v.Version,
			CreateTime: v.CreateTime, UpdateTime: v.UpdateTime, DeleteTime: pg.Optional(v.DeleteTime),
			PublishTime: pg.Optional(v.PublishTime), CreateUser: pg.Escape(v.CreateUser), UpdateUser: pg.Escape(v.UpdateUser),
		}))
	} else {
		tx.Queue(q.UpdateVideo(ctx, sqlcgen.UpdateVideoParams{
			ID:           v.ID,
			Title:        v.Title,
			Description:  v.Description,
			ReleaseYear:  v.ReleaseYear,
			DurationMs:   v.Duration.Milliseconds(),
			LanguageCode: v.LanguageCode,
			Tags:         pg.NotNil(v.Tags),
			State:        string(v.State), Version: v.Version,
			UpdateTime: v.UpdateTime, DeleteTime: pg.Optional(v.DeleteTime),
			PublishTime: pg.Optional(v.PublishTime), PurgeTime: pg.Optional(v.PurgeTime), CreateUser: pg.Escape(v.CreateUser), UpdateUser: pg.Escape(v.UpdateUser),
		}))
	}
	pg.AppendEvent(ctx, tx, message) // last: see AppendOutbox
	return nil
}

// GetVideo returns a video, even a deleted one, or problem.NotFound. A purged one is not found.
func (s *Videos) GetVideo(ctx context.Context, id uuid.UUID) (domain.Video, error) {
	row, err := s.queries.GetVideo(ctx, id)
	if err != nil {
		return domain.Video{}, pg.Wrap(pg.NotFound(err, "video", id), "get video %s", id)
	}
	return videoOf(row), nil
}

// ListVideos returns a page of videos, and whether more follow.
func (s *Videos) ListVideos(ctx context.Context, query domain.VideoQuery) (page []domain.Video, more bool, err error) {
	if query.OldestFirst {
		return s.listOldestFirst(ctx, query)
	}
	after, p := cmp.Or(query.After, &domain.VideoCursor{CreateTime: pg.EndOfTime, ID: uuid.Max}), pg.NewPage(s.pool, query.Limit)
	rows, err := sqlcgen.New(p).ListVideos(ctx, sqlcgen.ListVideosParams{
		BeforeTime: after.CreateTime, BeforeID: after.ID, ShowDeleted: query.ShowDeleted, ShowPurged: query.ShowPurged,
		State:        pg.Optional(string(query.State)),
		LanguageCode: pg.Optional(query.LanguageCode),
		MaxRows:      p.MaxRows(),
	})
	return pg.MapSlice(rows, videoOf), p.More, pg.Wrap(err, "list videos")
}

func videoOf(row sqlcgen.VideoCatalogVideo) domain.Video {
	return domain.Video{
		ID: row.ID,
		VideoDetails: domain.VideoDetails{
			Title:        row.Title,
			Description:  row.Description,
			ReleaseYear:  row.ReleaseYear,
			Duration:     time.Duration(row.DurationMs) * time.Millisecond,
			LanguageCode: row.LanguageCode,
			Tags:         row.Tags,
		},
		State:      domain.VideoState(row.State),
		Version:    row.Version,
		CreateTime: row.CreateTime.UTC(), UpdateTime: row.UpdateTime.UTC(), DeleteTime: pg.TimeOf(row.DeleteTime),
		PublishTime: pg.TimeOf(row.PublishTime), PurgeTime: pg.TimeOf(row.PurgeTime),
		CreateUser: pg.Unescape(row.CreateUser), UpdateUser: pg.Unescape(row.UpdateUser),
	}
}

// videoRows are the rows of the projection. See Catalog.Project.
type videoRows struct{}

// Row implements pg.Projection.
func (videoRows) Row(e domain.VideoEvent) consumer.Row {
	return consumer.Row{Aggregate: e.Video.ID, Event: e.ID, Version: e.Video.Version, Purged: e.Video.Purged()}
}

// Read implements pg.Projection.
func (videoRows) Read(ctx context.Context, tx *pg.Tx, ids []uuid.UUID) ([]consumer.Row, error) {
	rows, err := sqlcgen.New(tx).FindVideoVersions(ctx, ids)
	return pg.MapSlice(rows, func(row sqlcgen.FindVideoVersionsRow) consumer.Row {
		return consumer.Row{Aggregate: row.VideoID, Event: pg.ValueOf(row.EventID), Version: row.Version}
	}), err
}

// Write implements pg.Projection.
func (videoRows) Write(ctx context.Context, tx *pg.Tx, e domain.VideoEvent) error {
	projectEntry(ctx, tx, domain.EntryOf(e.Video), e.ID)
	return nil
}
