package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/deep"
)

// fillOwner fills the owner with n videos of ownersVideos.
func (s *stack) fillOwner(t testing.TB, n int) {
	t.Helper()
	if _, err := s.pool.Exec(t.Context(), strings.ReplaceAll(ownersVideos, "$1", strconv.Itoa(n))); err != nil {
		t.Fatal(err)
	}
}

// ownersVideos fills the owner with videos that no event tells of: every third is a draft,
// every fifth is deleted.
const ownersVideos = `
	INSERT INTO video_catalog.videos (id, title, description, release_year, duration_ms, language_code, tags, state, version, create_time, update_time, publish_time, delete_time)
	SELECT gen_random_uuid(), 'video ' || n, 'of many', 1985, 60000, 'ja', '{drama,war}', CASE WHEN n % 3 = 0 THEN 'draft' ELSE 'published' END, 1 + n % 7,
		now() - n * interval '1 second', now(), CASE WHEN n % 3 > 0 THEN now() END, CASE WHEN n % 5 = 0 THEN now() END
	FROM generate_series(1, $1) n`

// unlike counts the entries of the catalog that are not what the owner has.
const unlike = `
	SELECT count(*) FROM video_catalog.videos v FULL JOIN video_catalog_read.video_projection p ON p.video_id = v.id
	WHERE CASE WHEN v.id IS NULL THEN NOT p.deleted OR p.visible ELSE (v.title, v.description, v.release_year, v.duration_ms, v.language_code, v.tags, v.version, v.publish_time, v.update_time)
			IS DISTINCT FROM (p.title, p.description, p.release_year, p.duration_ms, p.language_code, p.tags, p.version, p.publish_time, p.update_time)
		OR (v.state = 'published' AND v.delete_time IS NULL) <> p.visible OR (v.delete_time IS NOT NULL) <> p.deleted END`

// unseen counts the entries that no watch sees yet.
const unseen = "SELECT count(*) FROM video_catalog_read.video_projection WHERE change_xid >= pg_snapshot_xmax(pg_current_snapshot())"

// startRepair starts a repair of everything, and returns it with its standard error.
func (s *stack) startRepair(t *testing.T) (*exec.Cmd, *output) {
	t.Helper()
	cmd, stderr := exec.CommandContext(t.Context(), binary, "projection", "repair", "--all", "--reason", "test"), new(output)
	cmd.Env, cmd.Stderr = s.environ(), stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, stderr
}

// output is what a process has written so far. It can be read while the process runs.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (o *output) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(text)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// A repair fills an empty catalog, lowers an entry that is ahead, and makes a tombstone of one
// without an owner. No service need run. A dry run counts the same and changes nothing. Only a
// repair of everything makes the databases known.
func TestRepairFillsAnEmptyCatalog(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.fillOwner(t, 1500)
	s.replace(t)
	out, err := s.command(t, "projection", "repair", "--all", "--dry-run")
	if want := "video: compared 1500 rows: missing 1500, behind 0, ahead 0, different 0, extra 0\n1500 entries of video match; nothing was changed\n"; err != nil || out != want || s.unknown(t) != 2 || s.audited(t) != 0 {
		t.Errorf("dry run = %q, %v, with %d databases unknown and %d in the audit, want %q, 2 and none", out, err, s.unknown(t), s.audited(t), want)
	}
	if out, err := s.command(t, "projection", "repair", "video", "--all", "--reason", "test"); err != nil || s.count(t, unlike) != 0 || s.unknown(t) != 2 {
		t.Errorf("repair of a type = %q, %v, with %d entries different and %d databases unknown, want none and 2", out, err, s.count(t, unlike), s.unknown(t))
	}
	if got := s.count(t, "SELECT sum(items) FROM video_catalog_read.audit WHERE action = 'projection.repair' AND before = '[]' AND after = '[]'"); got != 1500 {
		t.Errorf("the audit has %d entries that were missing, want 1500, and not one by one", got)
	}
	if _, err := s.pool.Exec(t.Context(), `WITH ahead AS (SELECT min(video_id::text)::uuid AS id FROM video_catalog_read.video_projection),
		gone AS (DELETE FROM video_catalog.videos WHERE id = (SELECT max(id::text)::uuid FROM video_catalog.videos WHERE delete_time IS NULL))
		UPDATE video_catalog_read.video_projection p SET version = 99 FROM ahead WHERE p.video_id = ahead.id`); err != nil {
		t.Fatal(err)
	}
	out, err = s.command(t, "projection", "repair", "--all", "--reason", "failover", "--json")
	if want := `"matched":2,"done":2,"failures":0,"compared":1499,"kinds":{"ahead":1,"extra":1}`; err != nil || !strings.Contains(out, want) || s.count(t, unlike) != 0 || s.unknown(t) != 0 {
		t.Errorf("repair = %q, %v, with %d entries different and %d databases unknown, want %s and none", out, err, s.count(t, unlike), s.unknown(t), want)
	}
	if known := s.audit(t, admin.ActionAccept); len(known) != 2 || known[0].Reason != "failover" {
		t.Errorf("the audit has %+v, want that both databases are known, and why", known)
	}
}

// A repair that is killed leaves what it has repaired, and the databases unknown. The next one
// does the rest.
func TestKilledRepairIsRunAgain(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.fillOwner(t, 1500)
	s.replace(t)
	if _, err := s.pool.Exec(t.Context(), `INSERT INTO video_catalog.videos SELECT (jsonb_populate_record(v, '{"id": "ffffffff-ffff-4fff-bfff-ffffffffffff"}')).* FROM video_catalog.videos v LIMIT 1`); err != nil {
		t.Fatal(err)
	}
	held, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it may have ended
	if _, err := held.Exec(t.Context(), `INSERT INTO video_catalog_read.video_projection (video_id, title, description, release_year, duration_ms, language_code, tags, visible, deleted, version, update_time, search, change_xid, updated_at)
		VALUES ('ffffffff-ffff-4fff-bfff-ffffffffffff', '', '', 0, 0, '', '{}', false, false, 1, now(), '', pg_current_xact_id(), now())`); err != nil {
		t.Fatal(err)
	}
	cmd, _ := s.startRepair(t)
	eventually(t, time.Minute, "the repair waits for the last entry", func() bool {
		return s.count(t, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == 1
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // it was killed
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	left := s.count(t, unlike)
	if left == 0 || left > 500 || s.unknown(t) != 2 {
		t.Errorf("after the kill %d entries differ, and %d databases are unknown, want 1 to 500, and 2", left, s.unknown(t))
	}
	if out, err := s.command(t, "projection", "repair", "--all", "--reason", "test"); err != nil || !strings.Contains(out, fmt.Sprintf("missing %d, behind 0", left)) || s.count(t, unlike) != 0 || s.unknown(t) != 0 {
		t.Errorf("repair = %q, %v, with %d entries different and %d databases unknown, want none", out, err, s.count(t, unlike), s.unknown(t))
	}
}

// What a comparison has found is compared again after a repair of everything, also if events have
// repaired it meanwhile. So the alert ends.
func TestRepairHasTheCatalogComparedAgain(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	// A pass has found ten differences, and the next one begins in a day.
	if _, err := s.pool.Exec(t.Context(), `INSERT INTO video_catalog_read.comparisons (aggregate_type, claim, next_time, begin_time, after_id, last_time, last_differences)
		VALUES ('video', 7, now() + interval '1 day', now(), '00000000-0000-0000-0000-000000000000', now(), 10)`); err != nil {
		t.Fatal(err)
	}
	const due = "SELECT count(*) FROM video_catalog_read.comparisons WHERE claim = 8 AND next_time <= now()"
	for i, args := range [][]string{{"--dry-run"}, {"--reason", "test"}} {
		if out, err := s.command(t, append([]string{"projection", "repair", "--all"}, args...)...); err != nil {
			t.Fatalf("%q = %q, %v", args, out, err)
		}
		if got := s.count(t, due); got != i {
			t.Errorf("comparisons that are due after %q = %d, want %d", args, got, i)
		}
	}
}

var repairVideos = flag.Int("repair-videos", 20_000, "how many videos TestRepairMemoryIsBounded repairs")

// A repair keeps no list of all entries: its memory does not grow with the catalog.
// docs/actions.md has what it takes for 200,000: -repair-videos=200000.
func TestRepairMemoryIsBounded(t *testing.T) {
	deep.Test(t)
	const mostMiB = 80
	s := newStack(t)
	s.fillOwner(t, *repairVideos)
	for _, catalog := range []string{"an empty catalog", "one that is right"} {
		start := time.Now()
		cmd, stderr := s.startRepair(t)
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		mib, err := peakUntil(cmd.Process.Pid, ended)
		if err != nil {
			t.Fatalf("repair = %v: %s", err, stderr)
		}
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		t.Logf("%s: %d videos in %s, %d MiB; last progress: %s", catalog, *repairVideos, time.Since(start).Round(100*time.Millisecond), mib, lines[len(lines)-1])
		if mib > mostMiB {
			t.Errorf("%s: the repair has used %d MiB, want at most %d", catalog, mib, mostMiB)
		}
	}
	if got := s.count(t, unlike); got != 0 {
		t.Errorf("entries that differ = %d, want 0", got)
	}
}

// peakUntil returns the peak, in MiB, of the resident memory of a process until it ends, on Linux. It is
// not the peak of getrusage, which begins with the memory of the process that has started it.
func peakUntil(pid int, ended <-chan error) (mib int, err error) {
	for {
		select {
		case err := <-ended:
			return mib, err
		case <-time.After(5 * time.Millisecond):
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue // it ends
		}
		var kib int
		_, peak, _ := strings.Cut(string(status), "VmHWM:")
		if _, err := fmt.Sscan(peak, &kib); err == nil {
			mib = max(mib, kib>>10)
		}
	}
}

// Repairs run while everybody works: nobody is refused, no version of another entry goes back,
// and afterwards the catalog and its watchers have what the owner has. An entry that was right is
// not sent to watchers again.
func TestRepairsRunBesideEverything(t *testing.T) {
	t.Parallel()
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
			if _, err := s.pool.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		out, err := s.command(t, "projection", "repair", "--all", "--reason", "test")
		if err != nil || !strings.Contains(out, "ahead 1, different 1, extra 0") {
			t.Errorf("repair = %q, %v, want two entries repaired", out, err)
		}
	}
	stop()
	if err := work.Wait(); err != nil {
		t.Error(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
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
