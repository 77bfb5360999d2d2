package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// Videos is the command side: videos, and their events.
type Videos struct {
	pool     *pgxpool.Pool
	queries  *sqlcgen.Queries
	onCommit func(envelope.Aggregate)
}

// NewVideos returns the command side of a pool. onCommit may be nil. It is
// called with the aggregate of an event after a commit, and also if the result
// of the commit is unknown. It must not block.
func NewVideos(pool *pgxpool.Pool, onCommit func(envelope.Aggregate)) *Videos {
	if onCommit == nil {
		onCommit = func(envelope.Aggregate) {}
	}
	return &Videos{pool: pool, queries: queriesOver(pool), onCommit: onCommit}
}

// CreateVideo stores the first event of a video. With a requestID other than
// uuid.Nil it is idempotent: a repeated call with the same fingerprint returns
// the current state of the video created first. With another fingerprint it
// returns problem.Exists.
func (s *Videos) CreateVideo(ctx context.Context, requestID uuid.UUID, fingerprint []byte, created *domain.Event) (domain.Video, error) {
	begun := false
	err := inTx(ctx, s.pool, "store.CreateVideo", func(ctx context.Context, q *sqlcgen.Queries) error {
		begun = true
		if requestID != uuid.Nil {
			if err := insertRequest(ctx, q, requestID, aggregateOf(created.Video.ID), fingerprint); err != nil {
				return err
			}
		}
		return record(ctx, q, created)
	})
	if begun {
		s.committed(created.Video.ID, err)
	}
	if isRepeated(err) {
		return s.repeatedCreate(ctx, requestID, fingerprint)
	}
	if err != nil {
		return domain.Video{}, wrap(err, "create video %s", created.Video.ID)
	}
	return created.Video, nil
}

// committed calls onCommit unless the database reported that the transaction
// failed. Without such a report the commit may have succeeded.
func (s *Videos) committed(id uuid.UUID, err error) {
	if _, refused := errors.AsType[*pgconn.PgError](err); !refused {
		s.onCommit(aggregateOf(id))
	}
}

func aggregateOf(id uuid.UUID) envelope.Aggregate {
	return envelope.Aggregate{Type: event.AggregateVideo, ID: id.String()}
}

func (s *Videos) repeatedCreate(ctx context.Context, requestID uuid.UUID, fingerprint []byte) (domain.Video, error) {
	made, err := madeBy(ctx, s.queries, event.AggregateVideo, requestID, fingerprint)
	if err != nil {
		return domain.Video{}, err
	}
	id, err := uuid.Parse(made)
	if err != nil {
		return domain.Video{}, fmt.Errorf("id of request %s: %w", requestID, err)
	}
	return s.GetVideo(ctx, id)
}

// ChangeVideo applies a decision to a video under the lock of its row, and
// returns the new state. If the decision returns no event, nothing changes.
func (s *Videos) ChangeVideo(ctx context.Context, id uuid.UUID, decide domain.Decision) (domain.Video, error) {
	var video domain.Video
	changed := false
	err := inTx(ctx, s.pool, "store.ChangeVideo", func(ctx context.Context, q *sqlcgen.Queries) error {
		row, err := q.LockVideo(ctx, id)
		if errors.Is(err, pgx.ErrNoRows) {
			return problem.Errorf(problem.NotFound, "video %q does not exist", id)
		}
		if err != nil {
			return err
		}
		video = videoOf(row)
		made, err := decide(video)
		if made == nil || err != nil {
			return err
		}
		if made.Video.ID != id || made.Video.Version != video.Version+1 {
			return fmt.Errorf("decision on version %d of video %s returned version %d of %s", video.Version, id, made.Video.Version, made.Video.ID)
		}
		video, changed = made.Video, true
		return record(ctx, q, made)
	})
	if changed {
		s.committed(id, err)
	}
	if err != nil {
		return domain.Video{}, wrap(err, "change video %s", id)
	}
	return video, nil
}

// record writes a video and its event in the caller's transaction. No other
// code writes videos, so a crash leaves both or neither.
func record(ctx context.Context, q *sqlcgen.Queries, e *domain.Event) error {
	message, err := event.Encode(e)
	if err != nil {
		return err
	}
	v := e.Video
	if v.Version == 1 {
		err = q.InsertVideo(ctx, sqlcgen.InsertVideoParams{
			ID: v.ID, Title: v.Title, Description: v.Description, ReleaseYear: v.ReleaseYear,
			DurationMs: v.Duration.Milliseconds(), LanguageCode: v.LanguageCode, Tags: notNil(v.Tags),
			State: string(v.State), Version: v.Version,
			CreateTime: v.CreateTime, UpdateTime: v.UpdateTime, PublishTime: optional(v.PublishTime), DeleteTime: optional(v.DeleteTime),
		})
	} else {
		err = q.UpdateVideo(ctx, sqlcgen.UpdateVideoParams{
			ID: v.ID, Title: v.Title, Description: v.Description, ReleaseYear: v.ReleaseYear,
			DurationMs: v.Duration.Milliseconds(), LanguageCode: v.LanguageCode, Tags: notNil(v.Tags),
			State: string(v.State), Version: v.Version,
			UpdateTime: v.UpdateTime, PublishTime: optional(v.PublishTime), DeleteTime: optional(v.DeleteTime),
		})
	}
	if err != nil {
		return err
	}
	return appendEvent(ctx, q, message) // last: the row is locked
}

// GetVideo returns a video, even a deleted one, or problem.NotFound.
func (s *Videos) GetVideo(ctx context.Context, id uuid.UUID) (domain.Video, error) {
	row, err := s.queries.GetVideo(ctx, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return domain.Video{}, problem.Errorf(problem.NotFound, "video %q does not exist", id)
	}
	if err != nil {
		return domain.Video{}, wrap(err, "get video %s", id)
	}
	return videoOf(row), nil
}

// Positions of the first page: before and after every possible time.
var (
	endOfTime = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
	startTime = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
)

// ListVideos returns a page of videos, and whether more follow.
func (s *Videos) ListVideos(ctx context.Context, query domain.VideoQuery) (videos []domain.Video, more bool, err error) {
	after := query.After
	if query.OldestFirst {
		if after == nil {
			after = &domain.VideoCursor{CreateTime: startTime, ID: uuid.Nil}
		}
		rows, err := s.queries.ListVideosOldestFirst(ctx, sqlcgen.ListVideosOldestFirstParams{
			AfterTime: after.CreateTime, AfterID: after.ID, ShowDeleted: query.ShowDeleted,
			State: optional(string(query.State)), LanguageCode: optional(query.LanguageCode),
			OneMore: limit(query.Limit + 1), PageSize: limit(query.Limit), MaxBytes: byteLimit(query.MaxBytes),
		})
		if err != nil {
			return nil, false, wrap(err, "list videos")
		}
		return mapSlice(rows, func(row sqlcgen.ListVideosOldestFirstRow) domain.Video {
			return listedVideo(sqlcgen.ListVideosNewestFirstRow(row))
		}), len(rows) > 0 && rows[len(rows)-1].HasNext, nil
	}
	if after == nil {
		after = &domain.VideoCursor{CreateTime: endOfTime, ID: uuid.Max}
	}
	rows, err := s.queries.ListVideosNewestFirst(ctx, sqlcgen.ListVideosNewestFirstParams{
		BeforeTime: after.CreateTime, BeforeID: after.ID, ShowDeleted: query.ShowDeleted,
		State: optional(string(query.State)), LanguageCode: optional(query.LanguageCode),
		OneMore: limit(query.Limit + 1), PageSize: limit(query.Limit), MaxBytes: byteLimit(query.MaxBytes),
	})
	if err != nil {
		return nil, false, wrap(err, "list videos")
	}
	return mapSlice(rows, listedVideo), len(rows) > 0 && rows[len(rows)-1].HasNext, nil
}

func listedVideo(row sqlcgen.ListVideosNewestFirstRow) domain.Video {
	return videoOf(sqlcgen.VideoCatalogVideo{
		ID: row.ID, Title: row.Title, Description: row.Description, ReleaseYear: row.ReleaseYear, DurationMs: row.DurationMs,
		LanguageCode: row.LanguageCode, Tags: row.Tags, State: row.State, Version: row.Version,
		CreateTime: row.CreateTime, UpdateTime: row.UpdateTime, PublishTime: row.PublishTime, DeleteTime: row.DeleteTime,
	})
}

func videoOf(row sqlcgen.VideoCatalogVideo) domain.Video {
	return domain.Video{
		ID: row.ID,
		Details: domain.Details{
			Title: row.Title, Description: row.Description, ReleaseYear: row.ReleaseYear,
			Duration: time.Duration(row.DurationMs) * time.Millisecond, LanguageCode: row.LanguageCode, Tags: row.Tags,
		},
		State: domain.State(row.State), Version: row.Version,
		CreateTime: row.CreateTime.UTC(), UpdateTime: row.UpdateTime.UTC(),
		PublishTime: timeOf(row.PublishTime), DeleteTime: timeOf(row.DeleteTime),
	}
}
