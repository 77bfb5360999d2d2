package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store"
)

// requests returns n new request ids, and a fingerprint for each.
func requests(t testing.TB, n int) (ids []uuid.UUID, fingerprints [][]byte) {
	t.Helper()
	for i := range n {
		ids, fingerprints = append(ids, newID(t)), append(fingerprints, []byte{byte(i)})
	}
	return ids, fingerprints
}

// several returns the first events of n new videos.
func several(t testing.TB, n int) (events []*domain.VideoEvent) {
	t.Helper()
	for range n {
		events = append(events, created(t, "Ran"))
	}
	return events
}

// has checks that n videos exist, each with one event, and one pending row.
func has(t *testing.T, pool *pgxpool.Pool, n int, when string) {
	t.Helper()
	for _, table := range []string{"videos", "requests", "outbox", "outbox_pending"} {
		wantCount(t, pool, n, when+": "+table, "SELECT count(*) FROM video_catalog."+table)
	}
}

// The server that dies at any row of the transaction, or at its commit, leaves nothing of a batch. Its caller repeats the
// request ids, and once more as if the response was lost: each video exists once.
func TestKilledBatchIsAllOrNone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	pgtest.Execute(t, pool, `CREATE SEQUENCE public.rows`)
	pgtest.Execute(t, pool, `CREATE TABLE public.deadly (row bigint); INSERT INTO public.deadly VALUES (0)`)
	pgtest.Execute(t, pool, `CREATE FUNCTION public.die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF nextval('public.rows') = (SELECT row FROM public.deadly) THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
		RETURN NEW; END $$`)
	for _, table := range []string{"requests", "videos", "outbox", "outbox_pending"} {
		pgtest.Execute(t, pool, "CREATE TRIGGER die AFTER INSERT ON video_catalog."+table+" FOR EACH ROW EXECUTE FUNCTION public.die()")
	}
	pgtest.Execute(t, pool, `CREATE CONSTRAINT TRIGGER die_at_commit AFTER INSERT ON video_catalog.videos
		DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.die()`)
	const items, rows = 3, 5 // of an item: a row of each table, and one at the commit
	videos := store.NewVideos(pool, nil)
	for row := 1; row <= items*rows; row++ {
		pgtest.Execute(t, pool, "UPDATE public.deadly SET row = $1", row)
		pgtest.Execute(t, pool, "SELECT setval('public.rows', 1, false)")
		ids, fingerprints := requests(t, items)
		if _, _, err := videos.CreateVideos(t.Context(), ids, fingerprints, several(t, items)); kindOf(err) != problem.Unavailable {
			t.Fatalf("killed at row %d: %v, want Unavailable", row, err)
		}
		has(t, pool, 0, "killed")
		first, _, err := videos.CreateVideos(t.Context(), ids, fingerprints, several(t, items))
		must(t, err)
		again, _, err := videos.CreateVideos(t.Context(), ids, fingerprints, several(t, items))
		if diff := cmp.Diff(first, again); diff != "" || err != nil || len(first) != items {
			t.Errorf("repeated: %v (-first +again):\n%s", err, diff)
		}
		has(t, pool, items, "repeated")
		pgtest.Execute(t, pool, "TRUNCATE video_catalog.videos, video_catalog.requests, video_catalog.outbox, video_catalog.outbox_pending")
	}
}

// A batch takes part in the idempotence of single calls. An error is about an item, also if a constraint refuses it, and
// then nothing is stored.
func TestErrorOfABatchIsAboutItsItem(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	commits := 0
	videos := store.NewVideos(pool, func() { commits++ })
	ids, fingerprints := requests(t, 3)
	single := created(t, "Ran")
	_, err := videos.CreateVideo(t.Context(), ids[1], fingerprints[1], single)
	must(t, err)
	refuse := func(what string, events []*domain.VideoEvent, want problem.Kind, item int) {
		t.Helper()
		before := commits
		_, got, err := videos.CreateVideos(t.Context(), ids, fingerprints, events)
		if kindOf(err) != want || got != item || commits != before {
			t.Errorf("%s: item %d, %v, and %d commits, want item %d and kind %d", what, got, err, commits-before, item, want)
		}
		has(t, pool, 1, what)
	}
	fingerprints[1][0]++
	refuse("another video with the request id", several(t, 3), problem.Exists, 1)
	fingerprints[1][0]--
	pgtest.Execute(t, pool, "CREATE UNIQUE INDEX videos_titles ON video_catalog.videos (title) WHERE title = 'Twice'")
	twice := several(t, 3)
	twice[0].Video.Title, twice[2].Video.Title = "Twice", "Twice"
	refuse("a constraint", twice, problem.Exists, 2)
	events := several(t, 3)
	all, item, err := videos.CreateVideos(t.Context(), ids, fingerprints, events)
	if diff := cmp.Diff([]domain.Video{events[0].Video, single.Video, events[2].Video}, all); diff != "" || err != nil || item != -1 || commits != 2 {
		t.Errorf("with one item of before: item %d, %v, %d commits (-want +got):\n%s", item, err, commits, diff)
	}
	has(t, pool, 3, "the batch")
	pgtest.Execute(t, pool, "DELETE FROM video_catalog.videos WHERE id = $1", single.Video.ID)
	if _, item, err := videos.CreateVideos(t.Context(), ids, fingerprints, several(t, 3)); kindOf(err) != problem.NotFound || item != 1 {
		t.Errorf("a repeated item whose video is gone: item %d, %v, want NotFound of item 1", item, err)
	}
	pgtest.Execute(t, pool, "UPDATE video_catalog.videos SET description = repeat('x', 1100000)")
	if _, item, err := videos.CreateVideos(t.Context(), ids, fingerprints, several(t, 3)); kindOf(err) != problem.Invalid || item != -1 {
		t.Errorf("a repeated batch that has grown above 1 MiB: item %d, %v, want Invalid", item, err)
	}
	pool.Close()
	if _, item, err := videos.CreateVideos(t.Context(), ids, fingerprints, several(t, 3)); err == nil || item != -1 {
		t.Errorf("without a database: item %d, %v, want an error of no item", item, err)
	}
}

// Batches with the same request ids in any order wait for each other, and do not deadlock.
func TestConcurrentBatchesCreateOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 8)
	videos := store.NewVideos(pool, nil)
	ids, fingerprints := requests(t, 50)
	errs := make(chan error)
	for c := range 8 {
		go func() {
			ids, fingerprints := append(ids[c:len(ids):len(ids)], ids[:c]...), append(fingerprints[c:len(ids):len(ids)], fingerprints[:c]...)
			_, _, err := videos.CreateVideos(context.WithoutCancel(t.Context()), ids, fingerprints, several(t, 50))
			errs <- err
		}()
	}
	for range 8 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	has(t, pool, 50, "eight batches")
}

// BenchmarkBatch compares a batch with as many single calls, each with a request id.
func BenchmarkBatch(b *testing.B) {
	const items = 1000
	videos := store.NewVideos(pgtest.Pool(b, 4), nil)
	var single, batch time.Duration
	for b.Loop() {
		ids, fingerprints := requests(b, 2*items)
		events := several(b, 2*items)
		start := time.Now()
		for i := range items {
			_, err := videos.CreateVideo(b.Context(), ids[i], fingerprints[i], events[i])
			must(b, err)
		}
		single += time.Since(start)
		start = time.Now()
		_, _, err := videos.CreateVideos(b.Context(), ids[items:], fingerprints[items:], events[items:])
		must(b, err)
		batch += time.Since(start)
	}
	b.ReportMetric(float64(batch.Nanoseconds())/float64(items*b.N), "ns/item")
	b.ReportMetric(float64(single)/float64(batch), "x")
}
