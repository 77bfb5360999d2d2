package store_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/store"
)

// A page ends behind the item that reaches the limit of bytes, even if that item is
// large, and says whether there is more. Together the pages have every item once.
func TestPagesEndByBytes(t *testing.T) {
	t.Parallel()
	const items = 24
	pool := pgtest.Pool(t, 1)
	for _, sql := range []string{
		// By turns the description is empty, has 200,000 bytes that compress well, or has 80,000 that do not.
		`INSERT INTO video_catalog.videos (id, title, description, release_year, duration_ms, language_code, tags, state, version, create_time, update_time, publish_time)
		SELECT gen_random_uuid(), 'ran', CASE n % 3 WHEN 1 THEN repeat('七', 66667) WHEN 2 THEN (SELECT string_agg(md5(i::text || n), '') FROM generate_series(1, 2500) i) ELSE '' END,
			0, 0, '', ARRAY['war'], 'published', 1, now() - n * interval '1 s', now(), now() - n * interval '1 s' FROM generate_series(1, 24) n`,
		`INSERT INTO video_catalog_read.video_projection (video_id, title, description, release_year, duration_ms, language_code, tags, visible, deleted, version,
			publish_time, update_time, search, change_xid, updated_at)
		SELECT id, title, description, 0, 0, '', tags, true, false, 1, publish_time, now(), to_tsvector('simple', 'ran'), pg_current_xact_id(), now() FROM video_catalog.videos`,
	} {
		execute(t, pool, sql)
	}
	videos, catalog := store.NewVideos(pool, nil), store.NewCatalog(pool)
	listVideos := func(oldestFirst bool) func(after *domain.Video, limit int) ([]domain.Video, bool, error) {
		return func(after *domain.Video, limit int) ([]domain.Video, bool, error) {
			query := domain.VideoQuery{OldestFirst: oldestFirst, Limit: limit}
			if after != nil {
				query.After = &domain.VideoCursor{CreateTime: after.CreateTime, ID: after.ID}
			}
			return videos.ListVideos(t.Context(), query)
		}
	}
	listEntries := func(byTitle bool) func(after *domain.Match, limit int) ([]domain.Match, bool, error) {
		return func(after *domain.Match, limit int) ([]domain.Match, bool, error) {
			query := domain.EntryQuery{ByTitle: byTitle, Limit: limit}
			if after != nil {
				query.After = &domain.EntryCursor{PublishTime: after.PublishTime, Title: after.Title, VideoID: after.VideoID}
			}
			entries, more, err := catalog.ListEntries(t.Context(), query)
			matches := make([]domain.Match, len(entries))
			for i, entry := range entries {
				matches[i].Entry = entry
			}
			return matches, more, err
		}
	}
	search := func(after *domain.Match, limit int) ([]domain.Match, bool, error) {
		query := domain.SearchQuery{Words: "ran", Limit: limit}
		if after != nil {
			query.After = &domain.MatchCursor{Rank: after.Rank, VideoID: after.VideoID}
		}
		return catalog.SearchEntries(t.Context(), query)
	}
	ofVideo := func(v domain.Video) (uuid.UUID, domain.VideoDetails) { return v.ID, v.VideoDetails }
	ofMatch := func(m domain.Match) (uuid.UUID, domain.VideoDetails) { return m.VideoID, m.VideoDetails }
	for _, limit := range []int{100, items, items - 1, 5, 1} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			checkPages(t, "videos, newest first", listVideos(false), ofVideo, limit, items)
			checkPages(t, "videos, oldest first", listVideos(true), ofVideo, limit, items)
			checkPages(t, "entries, newest first", listEntries(false), ofMatch, limit, items)
			checkPages(t, "entries by title", listEntries(true), ofMatch, limit, items)
			checkPages(t, "search", search, ofMatch, limit, items)
		})
	}
}

// checkPages reads a list to its end, in pages of at most limit items and about 256 KiB.
func checkPages[T any](t *testing.T, name string, list func(after *T, limit int) ([]T, bool, error), of func(T) (uuid.UUID, domain.VideoDetails), limit, want int) {
	t.Helper()
	var ids []string
	var after *T
	for more := true; more; {
		var page []T
		var err error
		if page, more, err = list(after, limit); err != nil || len(page) == 0 {
			t.Fatalf("%s: a page of %d items, %v, want at least one", name, len(page), err)
		}
		bytes := 0
		for i, item := range page {
			if bytes >= 256<<10 {
				t.Errorf("%s: item %d comes behind %d bytes, want the page to end before", name, i, bytes)
			}
			id, details := of(item)
			ids = append(ids, id.String())
			bytes += len(details.Title) + len(details.Description) + len(strings.Join(details.Tags, ""))
		}
		if others := 200 * len(page); more && len(page) < limit && bytes+others < 256<<10 {
			t.Errorf("%s: a page of %d items with %d bytes, want more on it", name, len(page), bytes)
		}
		after = &page[len(page)-1]
	}
	slices.Sort(ids)
	if met := len(slices.Compact(ids)); met != want || len(ids) != want {
		t.Errorf("%s: %d items, %d different ones, want %d", name, len(ids), met, want)
	}
}
