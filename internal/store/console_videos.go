package store

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/options/console"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

const (
	// countAge is the age at which the entries are counted again.
	countAge = 10 * time.Second
	// foundVideos is how many videos a search of the console returns, of each kind.
	foundVideos = 25
	// readTitles is how many entries a search by a part of the title reads.
	readTitles = 20_000
)

// VideosSource shows videos on the console: it implements console.Source. It is safe for
// concurrent use.
type VideosSource struct {
	videos  *Videos
	catalog *Catalog

	mu      sync.Mutex
	counted time.Time                   // guarded by mu
	count   sqlcgen.CountProjectionsRow // guarded by mu
}

// NewVideosSource makes a source over the pools of both sides.
func NewVideosSource(commands, queries *pgxpool.Pool) *VideosSource {
	return &VideosSource{videos: NewVideos(commands, nil), catalog: NewCatalog(queries)}
}

// SampleView measures the catalog: see console.Source.
func (s *VideosSource) SampleView(ctx context.Context, after uint64) (console.ViewSample, error) {
	row, err := s.catalog.queries.SampleProjections(ctx, after, console.CountLimit)
	if err != nil {
		return console.ViewSample{}, wrap(err, "sample the catalog")
	}
	sample := console.ViewSample{Position: row.NewestXid, Applied: row.Applied, P50: secondsOf(row.P50), P99: secondsOf(row.P99)}
	if row.AppliedAt.Unix() != 0 { // the query returns the epoch for never
		sample.AppliedAt = row.AppliedAt.UTC()
	}
	sample.Entries, sample.Estimated, err = s.entries(ctx)
	return sample, err
}

// entries returns the number of entries, counted at most countAge ago.
func (s *VideosSource) entries(ctx context.Context) (n int64, estimated bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.counted) > countAge {
		if s.count, err = s.catalog.queries.CountProjections(ctx, console.CountLimit); err != nil {
			return 0, false, wrap(err, "count entries")
		}
		s.counted = time.Now()
	}
	if s.count.N < console.CountLimit {
		return s.count.N, false, nil
	}
	return max(s.count.N, s.count.Estimate), true, nil
}

// Find returns videos by id, by words of the titles of visible entries, and by a part of the
// titles of those that were changed last: see console.Source.
func (s *VideosSource) Find(ctx context.Context, text string) ([]console.Found, error) {
	if id, err := uuid.Parse(text); err == nil {
		return s.findID(ctx, id)
	}
	matches, _, err := s.catalog.SearchEntries(ctx, domain.SearchQuery{Words: text, Limit: foundVideos})
	if err != nil {
		return nil, err
	}
	found := mapSlice(matches, func(m domain.Match) console.Found {
		return console.Found{ID: m.VideoID.String(), Title: m.Title, State: stateOf(m.Visible, m.Deleted), Version: m.Version}
	})
	rows, err := s.catalog.queries.FindProjections(ctx, readTitles, text, foundVideos)
	if err != nil {
		return nil, wrap(err, "find entries")
	}
	for _, row := range rows {
		id := row.VideoID.String()
		if !slices.ContainsFunc(found, func(f console.Found) bool { return f.ID == id }) {
			found = append(found, console.Found{ID: id, Title: row.Title, State: stateOf(row.Visible, row.Deleted), Version: row.Version})
		}
	}
	return found, nil
}

// findID returns a video that exists on one of the sides.
func (s *VideosSource) findID(ctx context.Context, id uuid.UUID) ([]console.Found, error) {
	c, err := s.Compare(ctx, id.String())
	if err != nil || c.Source == nil && c.Projection == nil {
		return nil, err
	}
	return []console.Found{{ID: id.String()}}, nil
}

func stateOf(visible, deleted bool) string {
	switch {
	case deleted:
		return "deleted"
	case visible:
		return "published"
	}
	return "draft"
}

// Titles returns the titles of the entries of some videos: see console.Source.
func (s *VideosSource) Titles(ctx context.Context, ids []string) (map[string]string, error) {
	var wanted []uuid.UUID
	for _, id := range ids {
		if parsed, err := uuid.Parse(id); err == nil {
			wanted = append(wanted, parsed)
		}
	}
	rows, err := s.catalog.queries.ListProjectionTitles(ctx, wanted)
	titles := make(map[string]string, len(rows))
	for _, row := range rows {
		titles[row.VideoID.String()] = row.Title
	}
	return titles, wrap(err, "list titles")
}

// Compare returns a video, and its entry: see console.Source.
func (s *VideosSource) Compare(ctx context.Context, id string) (c console.Comparison, err error) {
	videoID, err := uuid.Parse(id)
	if err != nil {
		return c, problem.InvalidField("id", "must be a UUID")
	}
	// The entry is read first: the video is at least as new.
	entry, err := s.catalog.GetEntry(ctx, videoID)
	switch {
	case err == nil && entry.Version > 0:
		c.Projection, c.ProjectionVersion = fieldsOf(entry), entry.Version
	case err != nil && !isNotFound(err):
		return c, err
	}
	video, err := s.videos.GetVideo(ctx, videoID)
	switch {
	case err == nil:
		c.Source, c.SourceVersion, c.Created, c.Updated = fieldsOf(domain.EntryOf(video)), video.Version, video.CreateTime, video.UpdateTime
	case !isNotFound(err):
		return c, err
	}
	return c, nil
}

func isNotFound(err error) bool {
	known, ok := errors.AsType[*problem.Error](err)
	return ok && known.Kind == problem.NotFound
}

// fieldsOf returns the fields of an entry by their names in the API.
func fieldsOf(e domain.Entry) map[string]any {
	fields := map[string]any{
		"title": e.Title, "description": e.Description, "release_year": e.ReleaseYear, "duration": e.Duration.String(),
		"language_code": e.LanguageCode, "tags": notNil(e.Tags), "visible": e.Visible, "deleted": e.Deleted,
		"version": e.Version, "update_time": e.UpdateTime,
	}
	if !e.PublishTime.IsZero() {
		fields["publish_time"] = e.PublishTime
	}
	return fields
}
