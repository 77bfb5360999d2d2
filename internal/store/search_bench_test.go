package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/store"
)

// plainSearch is SearchProjections with PostgreSQL's own parser of texts and queries, which finds whole words only.
const plainSearch = `
SELECT video_id, title, description, release_year, duration_ms, language_code, tags, visible, deleted, version, publish_time, update_time, rank
FROM (
	SELECT p.*, ts_rank_cd('{0.0001, 0.0001, 0.01, 1}', p.plain_search, websearch_to_tsquery('simple', $1::text))::real AS rank
	FROM plain p
	WHERE p.visible AND p.plain_search @@ websearch_to_tsquery('simple', $1::text)
) found
WHERE (rank, video_id) < ('Infinity'::real, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
ORDER BY rank DESC, video_id DESC
LIMIT $2`

// plainTable is the catalog as plainSearch needs it.
const plainTable = `
CREATE TABLE plain AS SELECT *, setweight(to_tsvector('simple', title), 'A')
	|| setweight(to_tsvector('simple', array_to_string(tags, ' ')), 'B')
	|| setweight(to_tsvector('simple', description), 'C') AS plain_search
FROM video_catalog_read.video_projection;
ALTER TABLE plain DROP COLUMN search;
CREATE INDEX plain_index ON plain USING gin (plain_search) WHERE visible;
REINDEX INDEX video_catalog_read.video_projection_search;
ANALYZE`

// BenchmarkSearch measures a page of 50 of 100,000 titles in several scripts, beside the search that PostgreSQL has
// without internal/search; the two take turns. It reports the median and the 99th percentile, and their ratios to the
// other search: per kind of words, and for all kinds together. It also reports the sizes of the indexes.
func BenchmarkSearch(b *testing.B) {
	const rows, rounds, warmUp, page = 100_000, 200, 20, 50
	pool := pgtest.Pool(b, 2)
	catalog := store.NewCatalog(pool)
	library := newLibrary()
	for range rows / 1000 {
		entries := make([]domain.Entry, 1000)
		for i := range entries {
			entries[i] = library.entry(b)
		}
		must(b, store.PutEntries(b.Context(), catalog, entries))
	}
	for sql := range strings.SplitSeq(plainTable, ";") {
		execute(b, pool, sql)
	}
	kinds := []struct {
		name string
		draw func() string
	}{
		{"rare-word", func() string { return library.rare() }},
		{"common-word", func() string { return library.words[library.random.IntN(5)] }},
		{"two-words", func() string { return library.words[library.random.IntN(5)] + " " + library.rare() }},
		{"beginning", func() string { return string([]rune(library.rare())[:4]) }},
		{"han-part", func() string { return library.run(2) }},
		{"kana-part", func() string { return library.run(3) }},
		{"no-match", func() string { return "xq" + library.rare() + "qx" }},
	}
	for b.Loop() {
		var all, allPlain []time.Duration
		for _, kind := range kinds {
			var times, plainTimes []time.Duration
			found := 0
			for range warmUp + rounds {
				words := kind.draw()
				times = append(times, timed(b, func(ctx context.Context) error {
					matches, _, err := catalog.SearchEntries(ctx, domain.SearchQuery{Words: words, Limit: page})
					found += len(matches)
					return err
				}))
				plainTimes = append(plainTimes, timed(b, func(ctx context.Context) error { return readAll(ctx, pool, words, page) }))
			}
			times, plainTimes = times[warmUp:], plainTimes[warmUp:]
			report(b, kind.name, times, plainTimes)
			b.ReportMetric(float64(found)/(warmUp+rounds), kind.name+"-found")
			all, allPlain = append(all, times...), append(allPlain, plainTimes...)
		}
		report(b, "all", all, allPlain)
	}
	for name, index := range map[string]string{"MB-index": "video_catalog_read.video_projection_search", "MB-plain-index": "plain_index"} {
		b.ReportMetric(float64(count(b, pool, "SELECT pg_relation_size($1::regclass)", index))/1e6, name)
	}
	b.ReportMetric(float64(count(b, pool, "SELECT avg(pg_column_size(search))::bigint FROM video_catalog_read.video_projection")), "B-row")
	b.ReportMetric(float64(count(b, pool, "SELECT avg(pg_column_size(plain_search))::bigint FROM plain")), "B-plain-row")
	b.ReportMetric(0, "ns/op")
}

func timed(b *testing.B, do func(ctx context.Context) error) time.Duration {
	b.Helper()
	start := time.Now()
	must(b, do(b.Context()))
	return time.Since(start)
}

// readAll reads a page of plainSearch as the store reads one.
func readAll(ctx context.Context, pool *pgxpool.Pool, words string, page int) error {
	rows, err := pool.Query(ctx, plainSearch, words, page)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if _, err := rows.Values(); err != nil {
			return err
		}
	}
	return rows.Err()
}

func report(b *testing.B, name string, times, plain []time.Duration) {
	b.Helper()
	slices.Sort(times)
	slices.Sort(plain)
	for _, p := range []int{50, 99} {
		at := len(times) * p / 100
		b.ReportMetric(float64(times[at].Microseconds())/1000, fmt.Sprintf("%s-p%d-ms", name, p))
		b.ReportMetric(float64(times[at])/float64(plain[at]), fmt.Sprintf("%s-p%d-x-plain", name, p))
	}
}

// library makes titles: the same ones in every run.
type library struct {
	random *rand.Rand
	zipf   *rand.Zipf
	words  []string // the first are common, as in every language
}

func newLibrary() *library {
	l := &library{random: rand.New(rand.NewPCG(7, 8))}
	l.words = []string{"the", "la", "of", "der", "and"}
	for len(l.words) < 20_000 {
		var word strings.Builder
		for range 2 + l.random.IntN(3) {
			for _, sounds := range []string{"b c d f g h k l m n p r s t v w z č", "a e i o u é ä", "n r s l t m"} {
				sounds := strings.Fields(sounds)
				word.WriteString(sounds[l.random.IntN(len(sounds))])
			}
		}
		l.words = append(l.words, word.String())
	}
	l.zipf = rand.NewZipf(l.random, 1.1, 3, uint64(len(l.words)-1))
	return l
}

func (l *library) rare() string { return l.words[10_000+l.random.IntN(10_000)] }

// text is some words, or a run of twice as many characters.
func (l *library) text(n int, dense bool) string {
	if dense {
		return l.run(2 * n)
	}
	words := make([]string, n)
	for i := range words {
		words[i] = l.words[l.zipf.Uint64()]
	}
	return strings.Join(words, " ")
}

// run is a run of Han, Kana or Hangul.
func (l *library) run(n int) string {
	first, many := rune('一'), 1500
	switch l.random.IntN(3) {
	case 0:
		first, many = 'ァ', 80
	case 1:
		first, many = '가', 1500
	}
	runes := make([]rune, n)
	for i := range runes {
		runes[i] = first + rune(min(l.random.IntN(many), l.random.IntN(many))) // some are more common
	}
	return string(runes)
}

func (l *library) entry(b *testing.B) domain.Entry {
	dense := l.random.IntN(3) == 0
	title := l.text(1+l.random.IntN(5), dense)
	return entry(b, title, l.text(12, dense), []string{"drama", "comedy", "war", "crime"}[l.random.IntN(4)], l.words[l.random.IntN(50)])
}
