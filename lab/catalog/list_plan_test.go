package catalog_test

import (
	"testing"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/store"
)

// A page of rare rows reads few rows, also after pages without a filter on the
// same connection. Their generic plan would scan in order and filter. The page
// size is unknown to it, so PostgreSQL prefers a custom plan.
func TestRareFiltersUseTheirIndex(t *testing.T) {
	t.Parallel()
	const rows, page = 50_000, 20
	pool := pgtest.Pool(t, 1) // one connection, because read flushes only its own statistics
	for _, sql := range []string{
		`INSERT INTO video_catalog.videos (id, title, description, release_year, duration_ms, language_code, tags, state, version, create_time, update_time)
		SELECT gen_random_uuid(), 'Ran', '', 2000, 0, CASE WHEN n = 1 THEN 'ja' ELSE 'en' END, '{}', CASE WHEN n = 2 THEN 'published' ELSE 'draft' END,
			1, now() - n * interval '1 s', now() FROM generate_series(1, 50000) n`,
		`INSERT INTO video_catalog_read.video_projection (video_id, title, description, release_year, duration_ms, language_code, tags, visible, deleted, version,
			publish_time, update_time, search, change_xid, updated_at)
		SELECT gen_random_uuid(), 'Ran ' || n, '', CASE WHEN n = 1 THEN 1985 ELSE 2000 END, 0, CASE WHEN n = 2 THEN 'ja' ELSE 'en' END,
			ARRAY[CASE WHEN n = 3 THEN 'war' ELSE 'tag ' || n % 500 END], true, false, 1, now() - n * interval '1 s', now(), '', pg_current_xact_id(), now()
		FROM generate_series(1, 50000) n`,
		"ANALYZE video_catalog.videos, video_catalog_read.video_projection",
	} {
		execute(t, pool, sql)
	}
	videos, catalog := store.NewVideos(pool, nil), store.NewCatalog(pool)
	// read returns how many rows, of tables and of indexes, were read so far.
	read := func() int {
		t.Helper()
		execute(t, pool, "SELECT pg_stat_force_next_flush()")
		return count(t, pool, `SELECT sum(seq_tup_read)::bigint + (SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE relname IN ('videos', 'video_projection'))
			FROM pg_stat_user_tables WHERE relname IN ('videos', 'video_projection')`)
	}
	listVideos := func(query domain.VideoQuery) func() (int, error) {
		return func() (int, error) {
			query.Limit = page
			found, _, err := videos.ListVideos(t.Context(), query)
			return len(found), err
		}
	}
	listEntries := func(query domain.EntryQuery) func() (int, error) {
		return func() (int, error) {
			query.Limit = page
			found, _, err := catalog.ListEntries(t.Context(), query)
			return len(found), err
		}
	}
	tests := []struct {
		name        string
		common, one func() (int, error)
	}{
		{"videos by language", listVideos(domain.VideoQuery{}), listVideos(domain.VideoQuery{LanguageCode: "ja"})},
		{"videos by state", listVideos(domain.VideoQuery{}), listVideos(domain.VideoQuery{State: domain.VideoStatePublished})},
		{"videos by language, oldest first", listVideos(domain.VideoQuery{OldestFirst: true}), listVideos(domain.VideoQuery{OldestFirst: true, LanguageCode: "ja"})},
		{"entries by language", listEntries(domain.EntryQuery{}), listEntries(domain.EntryQuery{LanguageCode: "ja"})},
		{"entries by year", listEntries(domain.EntryQuery{}), listEntries(domain.EntryQuery{ReleaseYear: 1985})},
		{"entries by tag", listEntries(domain.EntryQuery{}), listEntries(domain.EntryQuery{Tags: []string{"war"}})},
		{"entries by title and language", listEntries(domain.EntryQuery{ByTitle: true}), listEntries(domain.EntryQuery{ByTitle: true, LanguageCode: "ja"})},
	}
	for _, test := range tests {
		for range 20 {
			if n, err := test.common(); n != page || err != nil {
				t.Fatalf("%s: a page without filter has %d rows, %v, want %d", test.name, n, err, page)
			}
		}
		before := read()
		if n, err := test.one(); n != 1 || err != nil {
			t.Errorf("%s: %d rows, %v, want 1", test.name, n, err)
		}
		if n := read() - before; n > rows/100 {
			t.Errorf("%s: %d rows were read to find one of %d", test.name, n, rows)
		}
	}
}
