package service

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/pg/pgtest"
)

// unlike counts the entries of the catalog that are not what the owner has.
const unlike = `
	SELECT count(*) FROM video_catalog.videos v FULL JOIN video_catalog_read.video_projection p ON p.video_id = v.id
	WHERE CASE WHEN v.id IS NULL THEN NOT p.deleted OR p.visible ELSE (v.title, v.description, v.release_year, v.duration_ms, v.language_code, v.tags, v.version, v.publish_time, v.update_time)
			IS DISTINCT FROM (p.title, p.description, p.release_year, p.duration_ms, p.language_code, p.tags, p.version, p.publish_time, p.update_time)
		OR (v.state = 'published' AND v.delete_time IS NULL) <> p.visible OR (v.delete_time IS NOT NULL) <> p.deleted END`

// unseen counts the entries that no watch sees yet.
const unseen = "SELECT count(*) FROM video_catalog_read.video_projection WHERE change_xid >= pg_snapshot_xmax(pg_current_snapshot())"

// Repairs run while everybody works: nobody is refused, no version of another entry goes back,
// and afterwards the catalog and its watchers have what the owner has. An entry that was right is
// not sent to watchers again.
func TestRepairsRunBesideEverything(t *testing.T) {
	s := newStack(t)
	p := s.start(t)
	const quiet = 40
	names := make([]string, quiet)
	for i := range names {
		names[i] = p.create(t, fmt.Sprint("quiet ", i))
	}
	s.settled(t, s.url)
	watcher := p.watch(t, "", nil)
	eventually(t, time.Minute, "the watcher has all", func() bool { return len(watcher.copy()) == quiet })
	updates := p.countUpdates(t)
	eventually(t, time.Minute, "the updates of all are counted", func() bool { return len(updates()) == quiet })

	working, stop := context.WithCancel(t.Context())
	defer stop()
	var work errgroup.Group
	for w := range 3 {
		work.Go(func() error { return p.changeVideos(t.Context(), working.Done(), w) })
	}
	work.Go(func() error { return p.readWhole(working, quiet) })
	pinned := strings.TrimPrefix(names[0], "videos/")
	work.Go(func() error { return s.watchVersions(working, pinned) })
	for range 3 {
		for _, sql := range []string{
			"UPDATE video_catalog_read.video_projection SET version = 9223372036854775807 WHERE video_id = '" + pinned + "'",
			"UPDATE video_catalog_read.video_projection SET title = 'damaged', search = '' WHERE video_id = '" + strings.TrimPrefix(names[1], "videos/") + "'",
		} {
			pgtest.Execute(t, s.pool, sql)
		}
		out := run(t, s.environ(), server(t), "projection", "repair", "--all", "--why", "test")
		if !strings.Contains(out, "ahead 1, different 1, extra 0") {
			t.Errorf("repair = %q, want two entries repaired", out)
		}
	}
	stop()
	must(t, work.Wait())
	s.settled(t, s.url)
	if got := s.count(t, unlike); got != 0 {
		t.Errorf("entries that differ = %d, want 0", got)
	}
	eventually(t, time.Minute, "watches see all entries", func() bool { return s.count(t, unseen) == 0 })
	p.checkRepaired(t, watcher)
	want := map[int]int{1: quiet - 2, 4: 2} // how many entries were sent how often
	got := func() map[int]int {
		sent := map[int]int{}
		for id, n := range updates() {
			if n > 0 && strings.Contains(strings.Join(names, " "), id) {
				sent[n]++
			}
		}
		return sent
	}
	eventually(t, time.Minute, "the watcher has the repaired entries three times more", func() bool { return got()[4] == 2 })
	if !maps.Equal(got(), want) {
		t.Errorf("entries by how often they were sent = %v, want %v", got(), want)
	}
}

// changeVideos creates videos, publishes, renames and deletes them, until done is closed. It
// ends what it has begun: a call that is canceled may commit after it has returned, and then
// the test would see an owner that is ahead.
func (p *process) changeVideos(ctx context.Context, done <-chan struct{}, worker int) error {
	for n := 0; ; n++ {
		select {
		case <-done:
			return nil
		default:
		}
		v, err := p.videos.CreateVideo(ctx, &videov1.CreateVideoRequest{Video: &videov1.Video{Title: fmt.Sprintf("busy %d %d", worker, n)}})
		if err == nil {
			v, err = p.videos.PublishVideo(ctx, &videov1.PublishVideoRequest{Name: v.GetName()})
		}
		for i := 0; i < 5 && err == nil; i++ {
			v, err = p.videos.UpdateVideo(ctx, &videov1.UpdateVideoRequest{Video: &videov1.Video{Name: v.GetName(), Title: fmt.Sprintf("busy %d %d %d", worker, n, i)}})
		}
		if err == nil && n%2 == 0 {
			_, err = p.videos.DeleteVideo(ctx, &videov1.DeleteVideoRequest{Name: v.GetName()})
		}
		if err != nil {
			return fmt.Errorf("change video: %w", err)
		}
	}
}

// readWhole reads and searches the catalog until ctx ends. It never has fewer entries than
// those that nobody changes.
func (p *process) readWhole(ctx context.Context, least int) error {
	for ctx.Err() == nil {
		list, err := p.catalog.ListCatalogEntries(ctx, &catalogv1.ListCatalogEntriesRequest{PageSize: 1000})
		if err == nil && len(list.GetCatalogEntries()) < least {
			err = fmt.Errorf("%d entries, want at least %d", len(list.GetCatalogEntries()), least)
		}
		if err == nil {
			_, err = p.catalog.SearchCatalogEntries(ctx, &catalogv1.SearchCatalogEntriesRequest{Query: "quiet"})
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("read catalog: %w", err)
		}
	}
	return nil
}

// watchVersions compares the versions of all entries, but for one, with those before, until
// ctx ends.
func (s *stack) watchVersions(ctx context.Context, except string) error {
	most := map[string]int64{}
	for ctx.Err() == nil {
		rows, err := s.pool.Query(ctx, "SELECT video_id::text, version FROM video_catalog_read.video_projection WHERE video_id::text <> $1", except)
		if err != nil {
			continue // ctx has ended
		}
		seen := 0
		var id string
		var version int64
		if _, err := pgx.ForEachRow(rows, []any{&id, &version}, func() error {
			seen++
			if version < most[id] {
				return fmt.Errorf("entry %s has version %d after %d", id, version, most[id])
			}
			most[id] = version
			return nil
		}); err != nil && ctx.Err() == nil {
			return err
		}
		if seen < len(most) && ctx.Err() == nil {
			return fmt.Errorf("%d entries, want the %d of before", seen, len(most))
		}
	}
	return nil
}

// countUpdates watches the catalog, and returns how often each entry was sent.
func (p *process) countUpdates(t *testing.T) (counts func() map[string]int) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	stream, err := p.catalog.WatchCatalogEntries(ctx, &catalogv1.WatchCatalogEntriesRequest{})
	must(t, err)
	var mu sync.Mutex
	sent := map[string]int{}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			response, err := stream.Recv()
			if err != nil {
				return // the end of the test
			}
			if entry := response.GetUpdated(); entry != nil {
				mu.Lock()
				sent[strings.TrimPrefix(entry.GetName(), "catalogEntries/")]++
				mu.Unlock()
			}
		}
	})
	t.Cleanup(func() { stop(); running.Wait() })
	return func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(sent)
	}
}
