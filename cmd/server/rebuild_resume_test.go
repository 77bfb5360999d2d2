package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/deep"
)

// gate passes the calls of a rebuild on to the owner, but for one that never returns.
type gate struct {
	videov1.UnimplementedVideoServiceServer
	owner videov1.VideoServiceClient
	addr  string

	mu      sync.Mutex
	closed  string          // guarded by mu: the call that does not return, such as "list 2"
	calls   map[string]int  // guarded by mu
	tokens  map[string]bool // guarded by mu: the pages that were asked for
	reached chan struct{}   // closed by that call
}

func newGate(t *testing.T, p *process, closed string) *gate {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{owner: p.videos, addr: listener.Addr().String(), closed: closed, calls: map[string]int{}, tokens: map[string]bool{}, reached: make(chan struct{})}
	server := grpc.NewServer()
	videov1.RegisterVideoServiceServer(server, g)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // until Stop
	t.Cleanup(func() { server.Stop(); serving.Wait() })
	return g
}

func (g *gate) pass(ctx context.Context, method string) error {
	g.mu.Lock()
	g.calls[method]++
	stop := g.closed == fmt.Sprint(method, " ", g.calls[method])
	g.mu.Unlock()
	if !stop {
		return nil
	}
	close(g.reached)
	<-ctx.Done()
	return ctx.Err()
}

func (g *gate) ListVideos(ctx context.Context, request *videov1.ListVideosRequest) (*videov1.ListVideosResponse, error) {
	g.mu.Lock()
	g.tokens[request.GetPageToken()] = true
	g.mu.Unlock()
	if err := g.pass(ctx, "list"); err != nil {
		return nil, err
	}
	return g.owner.ListVideos(ctx, request)
}

func (g *gate) GetVideo(ctx context.Context, request *videov1.GetVideoRequest) (*videov1.Video, error) {
	if err := g.pass(ctx, "get"); err != nil {
		return nil, err
	}
	return g.owner.GetVideo(ctx, request)
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
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	release = sync.OnceFunc(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }) // it changes nothing
	if _, err := tx.Exec(t.Context(), "LOCK TABLE video_catalog_read.video_projection IN ACCESS SHARE MODE"); err != nil {
		release()
		t.Fatal(err)
	}
	return release
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
func (s *stack) startRebuild(t *testing.T, addr string) (*exec.Cmd, *output) {
	t.Helper()
	cmd, stderr := exec.CommandContext(t.Context(), binary, "rebuild", "--reason", "test", addr), new(output)
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
		where string
		token bool // the resumed one begins with the first page
	}{
		{"list 1", true}, {"list 2", false}, {"list 3", false}, // it fills the shadow
		{"get 1", false}, // it asks about the entries that are ahead, before the swap
		{"swap", false},  // it waits for the lock
		{"get 3", false}, // it asks once more, after the swap
	} {
		t.Run(tt.where, func(t *testing.T) {
			t.Parallel()
			s := newStack(t)
			p := s.start(t, "ROLES=api")
			for _, sql := range []string{
				strings.ReplaceAll(ownersVideos, "$1", fmt.Sprint(videos)),
				// The catalog has a ghost, and an entry that is ahead.
				`INSERT INTO video_catalog_read.video_projection
				SELECT v.id, 'damaged', '', 0, 0, '', '{}', true, false, 9, gen_random_uuid(), now(), now(), '', pg_current_xact_id(), now()
				FROM (SELECT gen_random_uuid() AS id UNION ALL (SELECT id FROM video_catalog.videos LIMIT 1)) v`,
			} {
				if _, err := s.pool.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			g := newGate(t, p, tt.where)
			s.killRebuild(t, g)
			if got := s.count(t, "SELECT count(*) FROM video_catalog_read.video_projection"); got != 2 && got != videos+1 {
				t.Errorf("entries after the kill = %d, want the old 2 or the new %d", got, videos+1)
			}
			if out, err := s.command(t, "rebuild", "--reason", "test", p.addr); err == nil || !strings.Contains(err.Error(), "if its process has died, run it again in") {
				t.Errorf("rebuild before the lease ends = %q, %v, want that it is refused", out, err)
			}
			if _, err := s.pool.Exec(t.Context(), "UPDATE video_catalog_read.rebuilds SET leased_until = now()"); err != nil {
				t.Fatal(err)
			}
			again := newGate(t, p, "")
			cmd, stderr := s.startRebuild(t, again.addr)
			if err := cmd.Wait(); err != nil || !strings.Contains(stderr.String(), "rebuild 1 is resumed") {
				t.Fatalf("rebuild = %v, %s, want it resumed", err, stderr)
			}
			again.mu.Lock()
			defer again.mu.Unlock()
			if again.tokens[""] != tt.token {
				t.Errorf("the resumed rebuild has asked for the first page: %t, want %t", again.tokens[""], tt.token)
			}
			if got, hidden := s.count(t, unlike), s.count(t, unseen); got != 0 || hidden != 0 {
				t.Errorf("entries that differ = %d, that no watch sees = %d, want 0", got, hidden)
			}
			if got := s.count(t, "SELECT count(*) FROM video_catalog_read.rebuilds WHERE phase = 'done' AND entries = $1 AND generation = 1", videos); got != 1 {
				t.Errorf("rebuilds = %d, want one that is done, with %d entries", got, videos)
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
		s.rebuildLowered(t, p, func() { p.rename(t, name, "after") })
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
		s.rebuildLowered(t, p, func() {
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
func (s *stack) rebuildLowered(t *testing.T, p *process, change func()) {
	t.Helper()
	s.settled(t, s.url)
	if _, err := s.pool.Exec(t.Context(), "UPDATE video_catalog_read.video_projection SET version = 9"); err != nil {
		t.Fatal(err)
	}
	tx, err := s.pool.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), "LOCK TABLE video_catalog_read.video_projection IN ACCESS SHARE MODE")
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd, stderr := s.startRebuild(t, p.addr)
	eventually(t, time.Minute, "the rebuild waits for the lock", func() bool { return s.swapWaits(t) })
	change()
	s.settled(t, s.url)
	if got := s.count(t, "SELECT version FROM video_catalog_read.video_projection"); got != 9 {
		t.Errorf("version before the swap = %d, want 9: the test tests nothing", got)
	}
	eventually(t, time.Minute, "the rebuild says that it waits", func() bool { return strings.Contains(stderr.String(), "waiting for a transaction") })
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("rebuild = %v, %s", err, stderr)
	}
}

// swapWaits reports whether a swap waits for its lock. The databases of other tests are copies,
// in which the table has the same number.
func (s *stack) swapWaits(t *testing.T) bool {
	t.Helper()
	return s.count(t, `SELECT count(*) FROM pg_locks
		WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND mode = 'AccessExclusiveLock' AND NOT granted AND relation = 'video_catalog_read.video_projection'::regclass`) == 1
}

// killRebuild kills a rebuild at the closed call of a gate, or, if that is "swap", while it
// waits for the lock.
func (s *stack) killRebuild(t *testing.T, g *gate) {
	t.Helper()
	if g.closed == "swap" {
		tx, err := s.pool.Begin(t.Context())
		if err == nil {
			_, err = tx.Exec(t.Context(), "LOCK TABLE video_catalog_read.video_projection IN ACCESS SHARE MODE")
		}
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	}
	cmd, _ := s.startRebuild(t, g.addr)
	eventually(t, time.Minute, "the rebuild reaches "+g.closed, func() bool {
		select {
		case <-g.reached:
			return true
		default:
			return g.closed == "swap" && s.swapWaits(t)
		}
	})
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
	p := s.start(t, "ROLES=api")
	for _, sql := range []string{
		strings.ReplaceAll(ownersVideos, "$1", "10"),
		// A pass has found ten differences, and the next one begins in a day.
		`INSERT INTO video_catalog_read.comparisons (aggregate_type, claim, next_time, begin_time, after_id, last_time, last_differences)
		VALUES ('video', 7, now() + interval '1 day', now(), '00000000-0000-0000-0000-000000000000', now(), 10)`,
	} {
		if _, err := s.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	const due = "SELECT count(*) FROM video_catalog_read.comparisons WHERE claim = 8 AND next_time <= now()"
	for i, args := range [][]string{{"rebuild", "--dry-run", p.addr}, {"rebuild", "--reason", "test", p.addr}} {
		if out, err := s.command(t, args...); err != nil {
			t.Fatalf("%q = %q, %v", args, out, err)
		}
		if got := s.count(t, due); got != i {
			t.Errorf("comparisons that are due after %q = %d, want %d", args, got, i)
		}
	}
}

// A process that is told to stop makes nobody wait: the next rebuild resumes at once.
func TestInterruptedRebuildIsResumedAtOnce(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	p := s.start(t, "ROLES=api")
	s.fillOwner(t, 1500)
	g := newGate(t, p, "list 2")
	cmd, stderr := s.startRebuild(t, g.addr)
	<-g.reached
	if out, err := s.command(t, "rebuild", "--reason", "test", "--restart", p.addr); err == nil || !strings.Contains(err.Error(), "has been running since") {
		t.Errorf("a second rebuild = %q, %v, want that it is refused", out, err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Errorf("an interrupted rebuild ends well: %s", stderr)
	}
	out, err := s.command(t, "rebuild", "--dry-run", p.addr)
	if err != nil || out != "compared 1500 entries: missing 1500, behind 0, different 0, ahead 0, removed 0\n" {
		t.Errorf("rebuild --dry-run = %q, %v", out, err)
	}
	if got := s.count(t, "SELECT count(*) FROM pg_class WHERE relname LIKE 'video_projection_next%'"); got != 0 {
		t.Errorf("%d parts of the shadow are left after --dry-run", got)
	}
	list, err := p.catalog.ListCatalogEntries(t.Context(), &catalogv1.ListCatalogEntriesRequest{})
	if err != nil || len(list.GetCatalogEntries()) != 0 {
		t.Errorf("ListCatalogEntries() = %d entries, %v, want none: --dry-run changes nothing", len(list.GetCatalogEntries()), err)
	}
}

// Without an address the command reads the owner itself, so no service need run. It goes on
// where one with an address was interrupted.
func TestRebuildNeedsNoService(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	p := s.start(t, "ROLES=api")
	s.fillOwner(t, 1500)
	g := newGate(t, p, "list 2")
	cmd, _ := s.startRebuild(t, g.addr)
	<-g.reached
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was interrupted
	if _, err := p.stop(t); err != nil {
		t.Fatal(err)
	}
	out, err := s.command(t, "rebuild", "--reason", "test", "--json")
	if err != nil || !strings.Contains(out, `"entries":1500,"compared":true,"missing":1500`) {
		t.Errorf("rebuild = %q, %v", out, err)
	}
	if n := s.count(t, "SELECT count(*) FROM video_catalog_read.rebuilds WHERE generation = 1"); n != 1 || s.count(t, unlike) != 0 {
		t.Errorf("%d entries differ, want none, and that it was resumed", s.count(t, unlike))
	}
	// It also reads single entries: one that is ahead, and one without an owner.
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
