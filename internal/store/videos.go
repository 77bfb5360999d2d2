package store

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// Videos is the command side: videos and the outbox.
type Videos struct {
	pool     *pgxpool.Pool
	queries  *sqlcgen.Queries
	onCommit func(envelope.Aggregate)
	lost     lostClaims
}

// NewVideos makes the command side over a pool. onCommit, if not nil, is called
// with the aggregate of an event that was committed, or may have been, because
// nobody knows what became of the commit; it must not block.
func NewVideos(pool *pgxpool.Pool, onCommit func(envelope.Aggregate)) *Videos {
	if onCommit == nil {
		onCommit = func(envelope.Aggregate) {}
	}
	return &Videos{pool: pool, queries: queriesOver(pool), onCommit: onCommit}
}

// CreateVideo records the first event of a video. With a requestID (uuid.Nil:
// none) it does so once: when that request was made before, with the same
// fingerprint, it returns the video of then as it is now; with another one the
// error is domain.Exists.
func (s *Videos) CreateVideo(ctx context.Context, requestID uuid.UUID, fingerprint []byte, created *domain.Event) (domain.Video, error) {
	begun := false
	err := inTx(ctx, s.pool, "store.CreateVideo", func(ctx context.Context, q *sqlcgen.Queries) error {
		begun = true
		if requestID != uuid.Nil {
			if err := q.InsertRequest(ctx, requestID, created.Video.ID, fingerprint); err != nil {
				return err
			}
		}
		return record(ctx, q, created)
	})
	if begun {
		s.committed(created.Video.ID, err)
	}
	const uniqueViolation = "23505"
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == uniqueViolation && pgErr.ConstraintName == "requests_pkey" {
		return s.repeatedCreate(ctx, requestID, fingerprint)
	}
	if err != nil {
		return domain.Video{}, wrap(err, "create video %s", created.Video.ID)
	}
	return created.Video, nil
}

// committed tells of an event whose transaction ended with err. It was not
// committed when the database says so; else the answer may have been lost.
func (s *Videos) committed(id uuid.UUID, err error) {
	if _, refused := errors.AsType[*pgconn.PgError](err); !refused {
		s.onCommit(envelope.Aggregate{Type: event.AggregateVideo, ID: id.String()})
	}
}

func (s *Videos) repeatedCreate(ctx context.Context, requestID uuid.UUID, fingerprint []byte) (domain.Video, error) {
	request, err := s.queries.GetRequest(ctx, requestID)
	if errors.Is(err, pgx.ErrNoRows) { // pruned this very moment
		return domain.Video{}, domain.Errorf(domain.Unavailable, "request_id %q is just being forgotten: try again", requestID)
	}
	if err != nil {
		return domain.Video{}, wrap(err, "get request %s", requestID)
	}
	if !bytes.Equal(request.Fingerprint, fingerprint) {
		return domain.Video{}, &domain.Error{Kind: domain.Exists, Reason: domain.ReasonRequestIDReused, Field: "request_id", Message: "was used to create another video"}
	}
	return s.GetVideo(ctx, request.VideoID)
}

// ChangeVideo applies a decision to a video, under the lock of its aggregate,
// and returns the video as it is then. A decision that makes no event changes
// nothing.
func (s *Videos) ChangeVideo(ctx context.Context, id uuid.UUID, decide domain.Decision) (domain.Video, error) {
	var video domain.Video
	changed := false
	err := inTx(ctx, s.pool, "store.ChangeVideo", func(ctx context.Context, q *sqlcgen.Queries) error {
		row, err := q.LockVideo(ctx, id)
		if errors.Is(err, pgx.ErrNoRows) {
			return domain.Errorf(domain.NotFound, "video %q does not exist", id)
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
			return fmt.Errorf("decision on version %d of video %s answered version %d of %s", video.Version, id, made.Video.Version, made.Video.ID)
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

// record is the one place where a video is written: the row from the event,
// and the event. A crash before the commit leaves neither, after it both.
func record(ctx context.Context, q *sqlcgen.Queries, e *domain.Event) error {
	message, err := event.Encode(e)
	if err != nil {
		return err
	}
	message.Traceparent = envelope.Traceparent(ctx)
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
	// Last, because the order of the outbox is that of its sequence, which must
	// be drawn under the lock of the row.
	return q.AppendOutbox(ctx, sqlcgen.AppendOutboxParams{
		ID: message.ID, AggregateType: message.AggregateType, AggregateID: message.AggregateID,
		EventType: message.Type, Version: message.Version, SchemaVersion: message.SchemaVersion,
		Payload: message.Payload, OccurredAt: message.OccurredAt, Traceparent: optional(message.Traceparent),
	})
}

// GetVideo returns a video, a deleted one too, or domain.NotFound.
func (s *Videos) GetVideo(ctx context.Context, id uuid.UUID) (domain.Video, error) {
	row, err := s.queries.GetVideo(ctx, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return domain.Video{}, domain.Errorf(domain.NotFound, "video %q does not exist", id)
	}
	if err != nil {
		return domain.Video{}, wrap(err, "get video %s", id)
	}
	return videoOf(row), nil
}

// Where the first page begins: before and after everything there is.
var (
	endOfTime = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
	startTime = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
)

// ListVideos returns a page of videos, and whether there is more behind it.
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
	return videoOf(sqlcgen.VideoVideo{
		ID: row.ID, Title: row.Title, Description: row.Description, ReleaseYear: row.ReleaseYear, DurationMs: row.DurationMs,
		LanguageCode: row.LanguageCode, Tags: row.Tags, State: row.State, Version: row.Version,
		CreateTime: row.CreateTime, UpdateTime: row.UpdateTime, PublishTime: row.PublishTime, DeleteTime: row.DeleteTime,
	})
}

// PruneRequests forgets requests older than that by the clock of the database, at
// most maxRows of them, and returns how many.
func (s *Videos) PruneRequests(ctx context.Context, olderThan time.Duration, maxRows int) (int64, error) {
	n, err := s.queries.PruneRequests(ctx, olderThan, limit(maxRows))
	return n, wrap(err, "prune requests")
}

func videoOf(row sqlcgen.VideoVideo) domain.Video {
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

// optional writes a zero value as NULL.
func optional[T comparable](value T) *T {
	var zero T
	if value == zero {
		return nil
	}
	return &value
}

// notNil writes no values as an empty array, not as NULL.
func notNil[T any](values []T) []T {
	if values == nil {
		return []T{}
	}
	return values
}

func timeOf(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

// byteLimit of a page that has none is one that no page reaches.
func byteLimit(n int) int64 { return int64(cmp.Or(n, math.MaxInt)) }

func limit(n int) int32 { return int32(min(n, math.MaxInt32)) } //nolint:gosec // just checked

func mapSlice[A, B any](in []A, f func(A) B) []B {
	out := make([]B, len(in))
	for i, a := range in {
		out[i] = f(a)
	}
	return out
}
