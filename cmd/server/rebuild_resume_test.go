package main

import (
	"bytes"
	"context"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/deep"
)

// gate stops a rebuild before each read of the owner. A lock of the videos does it.
type gate struct {
	stack *stack
	open  func()
}

// The tables that a gate locks, and the modes of the statements that wait for it.
const (
	ownerTable, toRead   = "video_catalog.videos", "AccessShareLock"
	shadowTable, toWrite = "video_catalog_read.video_projection_next", "RowExclusiveLock"
)

func (s *stack) closeGate(t *testing.T) *gate {
	t.Helper()
	g := &gate{stack: s, open: s.lock(t, ownerTable, "ACCESS EXCLUSIVE")}
	t.Cleanup(func() { g.open() })
	return g
}

// await waits until the rebuild is at the gate.
func (g *gate) await(t *testing.T) {
	t.Helper()
	eventually(t, time.Minute, "the rebuild reads the owner", func() bool { return g.stack.waits(t, ownerTable, toRead) })
}

// pass lets a rebuild at the gate read once. It has written what it has read when it is at the
// gate again.
func (g *gate) pass(t *testing.T) {
	t.Helper()
	write := g.stack.lock(t, shadowTable, "SHARE")
	defer write()
	g.open()
	eventually(t, time.Minute, "the rebuild writes what it has read", func() bool { return g.stack.waits(t, shadowTable, toWrite) })
	g.open = g.stack.lock(t, ownerTable, "ACCESS EXCLUSIVE")
	write()
	g.await(t)
}

// lock locks a table until release is called.
func (s *stack) lock(t testing.TB, table, mode string) (release func()) {
	t.Helper()
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	release = sync.OnceFunc(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }) // it changes nothing
	if _, err := tx.Exec(t.Context(), "LOCK TABLE "+table+" IN "+mode+" MODE"); err != nil {
		release()
		t.Fatal(err)
	}
	return release
}

// lockWaits selects the statements that wait for a lock of a table. The databases of other
// tests are copies, in which the table has the same number.
const lockWaits = `SELECT pid FROM pg_locks
	WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND mode = $2 AND NOT granted AND relation = to_regclass($1)`

// waits reports whether a statement waits for a lock of a table.
func (s *stack) waits(t testing.TB, table, mode string) bool {
	t.Helper()
	return s.count(t, "SELECT count(*) FROM ("+lockWaits+") w", table, mode) == 1
}

// fillOwner fills the owner with n videos of ownersVideos.
func (s *stack) fillOwner(t testing.TB, n int) {
	t.Helper()
	if _, err := s.pool.Exec(t.Context(), strings.ReplaceAll(ownersVideos, "$1", strconv.Itoa(n))); err != nil {
		t.Fatal(err)
	}
}

// holdCatalog has a transaction that has the catalog in use, as a backup has, until release is
// called. A rebuild waits for it before its swap.
func (s *stack) holdCatalog(t testing.TB) (release func()) {
	t.Helper()
	return s.lock(t, "video_catalog_read.video_projection", "ACCESS SHARE")
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

// startRebuild starts the command, and returns it with its standard error.
func (s *stack) startRebuild(t *testing.T) (*exec.Cmd, *output) {
	t.Helper()
	cmd, stderr := exec.CommandContext(t.Context(), binary, "rebuild", "--reason", "test"), new(output)
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

// A rebuild that is killed, wherever it is, leaves the old catalog or the new one whole. It
// keeps others out until its lease ends, and then the next one does what is left.
func TestRebuildIsResumedAfterAKill(t *testing.T) {
	deep.Test(t)
	t.Parallel()
	const videos = 2500 // three pages
	for _, tt := range []struct {
		where, resumed string
	}{
		{"page 1", "fill, after 0 entries"}, // it fills the shadow
		{"page 2", "fill, after 1000 entries"},
		{"page 3", "fill, after 2000 entries"},
		{"doubtful entries", "check, after 2500 entries"}, // it reads those that are ahead, before the swap
		{"swap", "after 2500 entries"},                    // it waits for the lock
		{"lowered entries", "repeat, after 2500 entries"}, // it reads them once more, after the swap
	} {
		t.Run(tt.where, func(t *testing.T) {
			t.Parallel()
			s := newStack(t)
			s.fillOwner(t, videos)
			// The catalog has a ghost, and an entry that is ahead.
			if _, err := s.pool.Exec(t.Context(), `INSERT INTO video_catalog_read.video_projection
				SELECT v.id, 'damaged', '', 0, 0, '', '{}', true, false, 9, gen_random_uuid(), now(), now(), '', pg_current_xact_id(), now()
				FROM (SELECT gen_random_uuid() AS id UNION ALL (SELECT id FROM video_catalog.videos LIMIT 1)) v`); err != nil {
				t.Fatal(err)
			}
			s.killRebuild(t, slices.Index([]string{"page 1", "page 2", "page 3", "doubtful entries", "lowered entries"}, tt.where))
			if got := s.count(t, "SELECT count(*) FROM video_catalog_read.video_projection"); got != 2 && got != videos+1 {
				t.Errorf("entries after the kill = %d, want the old 2 or the new %d", got, videos+1)
			}
			if out, err := s.command(t, "rebuild", "--reason", "test"); err == nil || !strings.Contains(err.Error(), "if its process has died, run it again in") {
				t.Errorf("rebuild before the lease ends = %q, %v, want that it is refused", out, err)
			}
			if _, err := s.pool.Exec(t.Context(), "UPDATE video_catalog_read.rebuilds SET leased_until = now()"); err != nil {
				t.Fatal(err)
			}
			cmd, stderr := s.startRebuild(t)
			if err := cmd.Wait(); err != nil || !strings.Contains(stderr.String(), "rebuild 1 is resumed: ") || !strings.Contains(stderr.String(), tt.resumed) {
				t.Fatalf("rebuild = %v, %s, want it resumed: %s", err, stderr, tt.resumed)
			}
			if got, hidden := s.count(t, unlike), s.count(t, unseen); got != 0 || hidden != 0 {
				t.Errorf("entries that differ = %d, that no watch sees = %d, want 0", got, hidden)
			}
			if got := s.count(t, "SELECT count(*) FROM video_catalog_read.rebuilds WHERE phase = 'done' AND entries = $1 AND generation = 1", videos); got != 1 {
				t.Errorf("rebuilds = %d, want one that is done, and has listed each of %d entries once", got, videos)
			}
		})
	}
}

// An entry that is ahead takes the next event of its owner for too old. If that happens after
// the rebuild has read the owner, and before the swap, the entry has that event all the same.
func TestRebuildAsksAgainAboutLoweredEntries(t *testing.T) {
	t.Parallel()
	t.Run("update", func(t *testing.T) {
		t.Parallel()
		s := newStack(t)
		p := s.start(t)
		name := p.create(t, "before")
		s.rebuildLowered(t, func() { p.rename(t, name, "after") })
		if got := s.count(t, unlike); got != 0 {
			t.Errorf("entries that differ = %d, want 0", got)
		}
	})
	t.Run("purge", func(t *testing.T) {
		t.Parallel()
		s := newStack(t)
		p := s.start(t)
		name := p.create(t, "before")
		p.delete(t, name)
		s.rebuildLowered(t, func() {
			if _, err := p.videos.PurgeVideo(t.Context(), &videov1.PurgeVideoRequest{Name: name}); err != nil {
				t.Fatal(err)
			}
		})
		if got := s.count(t, "SELECT count(*) FROM video_catalog_read.video_projection WHERE title = '' AND deleted"); got != 1 {
			t.Errorf("empty tombstones = %d, want 1: the video is purged", got)
		}
	})
}

// rebuildLowered rebuilds a catalog whose one entry is ahead, and changes its owner while the
// rebuild waits for the swap.
func (s *stack) rebuildLowered(t *testing.T, change func()) {
	t.Helper()
	s.settled(t, s.url)
	if _, err := s.pool.Exec(t.Context(), "UPDATE video_catalog_read.video_projection SET version = 9"); err != nil {
		t.Fatal(err)
	}
	release := s.holdCatalog(t)
	defer release()
	cmd, stderr := s.startRebuild(t)
	eventually(t, time.Minute, "the rebuild waits for the lock", func() bool { return s.swapWaits(t) })
	change()
	s.settled(t, s.url)
	if got := s.count(t, "SELECT version FROM video_catalog_read.video_projection"); got != 9 {
		t.Errorf("version before the swap = %d, want 9: the test tests nothing", got)
	}
	eventually(t, time.Minute, "the rebuild says that it waits", func() bool { return strings.Contains(stderr.String(), "waiting for a transaction") })
	release()
	if err := cmd.Wait(); err != nil {
		t.Errorf("rebuild = %v, %s", err, stderr)
	}
}

// swapWaits reports whether a swap waits for its lock.
func (s *stack) swapWaits(t *testing.T) bool {
	t.Helper()
	return s.waits(t, "video_catalog_read.video_projection", "AccessExclusiveLock")
}

// killRebuild kills a rebuild when it has read the owner this often and reads it again; with
// -1, while it waits for the swap.
func (s *stack) killRebuild(t *testing.T, reads int) {
	t.Helper()
	var cmd *exec.Cmd
	if reads < 0 {
		defer s.holdCatalog(t)()
		cmd, _ = s.startRebuild(t)
		eventually(t, time.Minute, "the swap waits", func() bool { return s.swapWaits(t) })
	} else {
		g := s.closeGate(t)
		defer func() { g.open() }()
		cmd, _ = s.startRebuild(t)
		g.await(t)
		for range reads {
			g.pass(t)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // it was killed
}

// What a comparison has found is repaired by a rebuild, and not by a dry run. So the catalog
// is compared again as soon as possible, and the alert ends.
func TestRebuildHasTheCatalogComparedAgain(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.fillOwner(t, 10)
	// A pass has found ten differences, and the next one begins in a day.
	if _, err := s.pool.Exec(t.Context(), `INSERT INTO video_catalog_read.comparisons (aggregate_type, claim, next_time, begin_time, after_id, last_time, last_differences)
		VALUES ('video', 7, now() + interval '1 day', now(), '00000000-0000-0000-0000-000000000000', now(), 10)`); err != nil {
		t.Fatal(err)
	}
	const due = "SELECT count(*) FROM video_catalog_read.comparisons WHERE claim = 8 AND next_time <= now()"
	for i, args := range [][]string{{"rebuild", "--dry-run"}, {"rebuild", "--reason", "test"}} {
		if out, err := s.command(t, args...); err != nil {
			t.Fatalf("%q = %q, %v", args, out, err)
		}
		if got := s.count(t, due); got != i {
			t.Errorf("comparisons that are due after %q = %d, want %d", args, got, i)
		}
	}
}

// startLongRebuild starts a rebuild of 1,500 videos, which stops at the gate before its second
// page.
func (s *stack) startLongRebuild(t *testing.T) (g *gate, cmd *exec.Cmd, stderr *output) {
	t.Helper()
	s.fillOwner(t, 1500)
	g = s.closeGate(t)
	cmd, stderr = s.startRebuild(t)
	g.await(t)
	g.pass(t)
	return g, cmd, stderr
}

// A rebuild that was interrupted keeps no lease: the next one resumes it at once.
func TestInterruptedRebuildIsResumedAtOnce(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	g, cmd, stderr := s.startLongRebuild(t)
	if out, err := s.command(t, "rebuild", "--reason", "test", "--restart"); err == nil || !strings.Contains(err.Error(), "has been running since") {
		t.Errorf("a second rebuild = %q, %v, want that it is refused", out, err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Errorf("an interrupted rebuild ends well: %s", stderr)
	}
	g.open()
	out, err := s.command(t, "rebuild", "--dry-run")
	if err != nil || out != "compared 1500 entries: missing 1500, behind 0, different 0, ahead 0, removed 0\n" {
		t.Errorf("rebuild --dry-run = %q, %v", out, err)
	}
	if got := s.count(t, "SELECT count(*) FROM video_catalog_read.rebuilds WHERE generation = 1 AND entries = 1500"); got != 1 {
		t.Error("the dry run has not resumed the rebuild behind the first page")
	}
	if got := s.count(t, "SELECT count(*) FROM pg_class WHERE relname LIKE 'video_projection_next%'"); got != 0 {
		t.Errorf("%d parts of the shadow are left after --dry-run", got)
	}
	list, err := s.start(t, "ROLES=api").catalog.ListCatalogEntries(t.Context(), &catalogv1.ListCatalogEntriesRequest{})
	if err != nil || len(list.GetCatalogEntries()) != 0 {
		t.Errorf("ListCatalogEntries() = %d entries, %v, want none: --dry-run changes nothing", len(list.GetCatalogEntries()), err)
	}
}

// A rebuild that loses its connection to the owner fails with a clear error, and the next one
// resumes it at once.
func TestRebuildIsResumedAfterItsOwnerWasUnavailable(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	g, cmd, stderr := s.startLongRebuild(t)
	// MATERIALIZED: otherwise PostgreSQL may end each connection before it reads the locks.
	if n := s.count(t, "WITH w AS MATERIALIZED ("+lockWaits+") SELECT count(*) FROM w WHERE pg_terminate_backend(w.pid)", ownerTable, toRead); n != 1 {
		t.Fatalf("%d connections are cut, want 1", n)
	}
	if err := cmd.Wait(); exitOf(err) != exitFailed || !strings.Contains(stderr.String(), "after 1000 entries: the database is not available") {
		t.Errorf("rebuild = %v, %s, want that the owner is not available", err, stderr)
	}
	g.open()
	cmd, stderr = s.startRebuild(t)
	if err := cmd.Wait(); err != nil || !strings.Contains(stderr.String(), "rebuild 1 is resumed: fill, after 1000 entries") || s.count(t, unlike) != 0 {
		t.Errorf("the next rebuild = %v, %s, want it resumed", err, stderr)
	}
}

// A build keeps its position in the list of the owner in its own form. Another build does not
// guess what it means.
func TestRebuildRefusesThePositionOfAnotherBuild(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.fillOwner(t, 10)
	if _, err := s.pool.Exec(t.Context(), "SELECT video_catalog_read.rebuild_begin('video_projection', $1, 7, false)", s.origin(t)); err != nil {
		t.Fatal(err)
	}
	for _, position := range []string{"q2F0ZWQtcGFnZS10b2tlbg", "2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z 7", "now 01890000-0000-7000-8000-000000000000"} {
		if _, err := s.pool.Exec(t.Context(), "UPDATE video_catalog_read.rebuilds SET leased_until = now(), position = $1", position); err != nil {
			t.Fatal(err)
		}
		if out, err := s.command(t, "rebuild", "--reason", "test"); exitOf(err) != exitFailed || !strings.Contains(err.Error(), "start over with --restart") {
			t.Errorf("rebuild at %q = %q, %v, want the advice to restart", position, out, err)
		}
	}
	out, err := s.command(t, "rebuild", "--reason", "test", "--restart")
	if err != nil || !strings.HasSuffix(out, "rebuilt 10 entries, lowered 0, removed 0\n") || s.count(t, unlike) != 0 {
		t.Errorf("rebuild --restart = %q, %v, want all entries", out, err)
	}
}

// origin is what a rebuild identifies the databases of the stack by.
func (s *stack) origin(t *testing.T) (origin string) {
	t.Helper()
	if err := s.pool.QueryRow(t.Context(), "SELECT video_catalog.database_identity() || ' ' || video_catalog_read.database_identity()").Scan(&origin); err != nil {
		t.Fatal(err)
	}
	return origin
}

// A rebuild that is interrupted while it waits for a lock reports what it has waited for.
func TestInterruptedRebuildReportsWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.fillOwner(t, 1)
	defer s.holdCatalog(t)()
	cmd, stderr := s.startRebuild(t)
	eventually(t, time.Minute, "it reports that it waits", func() bool { return strings.Contains(stderr.String(), "waiting for a transaction") })
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); exitOf(err) != exitFailed || !strings.Contains(stderr.String(), "in use by a transaction, for example a backup: run it again") {
		t.Errorf("rebuild = %v, %s, want what it waited for", err, stderr)
	}
}

// No service need run. The rebuild also reads single entries: one that is ahead, and one
// without an owner.
func TestRebuildNeedsNoService(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.fillOwner(t, 1500)
	out, err := s.command(t, "rebuild", "--reason", "test", "--json")
	if err != nil || !strings.Contains(out, `"entries":1500,"compared":true,"missing":1500`) || s.count(t, unlike) != 0 {
		t.Errorf("rebuild = %q, %v, and %d entries differ, want none", out, err, s.count(t, unlike))
	}
	if _, err := s.pool.Exec(t.Context(), `WITH ahead AS (SELECT min(video_id::text)::uuid AS id FROM video_catalog_read.video_projection),
		gone AS (DELETE FROM video_catalog.videos WHERE id = (SELECT max(id::text)::uuid FROM video_catalog.videos WHERE delete_time IS NULL))
		UPDATE video_catalog_read.video_projection p SET version = 99 FROM ahead WHERE p.video_id = ahead.id`); err != nil {
		t.Fatal(err)
	}
	out, err = s.command(t, "rebuild", "--reason", "test")
	if want := "compared 1499 entries: missing 0, behind 0, different 0, ahead 1, removed 1\nrebuilt 1499 entries, lowered 1, removed 1\n"; err != nil || out != want {
		t.Errorf("rebuild = %q, %v, want %q", out, err, want)
	}
}
