package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store"
)

// A video that is read back is the video that was written.
func TestCreatedVideoReadsBack(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	videos := store.NewVideos(pool, nil)
	e := created(t, "Ran")
	e.Video.ReleaseYear, e.Video.Duration, e.Video.LanguageCode = 1985, 162*time.Minute, "ja"

	want, err := videos.CreateVideo(t.Context(), uuid.Nil, nil, e)
	must(t, err)
	got, err := videos.GetVideo(t.Context(), e.Video.ID)
	must(t, err)
	same(t, "video read back", want, got)
}

var same, wantCount = pgtest.Same, pgtest.WantCount

// create stores a video.
func create(t testing.TB, videos *store.Videos, e *domain.VideoEvent) {
	t.Helper()
	_, err := videos.CreateVideo(t.Context(), uuid.Nil, nil, e)
	must(t, err)
}

// stored makes a database with a draft, and returns its event.
func stored(t testing.TB, conns int32) (*pgxpool.Pool, *store.Videos, *domain.VideoEvent) {
	t.Helper()
	pool, e := pgtest.Pool(t, conns), created(t, "Ran")
	videos := store.NewVideos(pool, nil)
	create(t, videos, e)
	return pool, videos, e
}

// Every change writes one row of the outbox and one pending row, with the
// version of the row.
func TestEveryChangeHasItsEvent(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	commits := 0
	videos := store.NewVideos(pool, func() { commits++ })
	e := created(t, "Ran")
	create(t, videos, e)
	id := e.Video.ID
	for i, decide := range []domain.VideoDecision{
		domain.PublishVideo(domain.AnyVersion, stamp(t)),
		domain.UnpublishVideo(domain.AnyVersion, stamp(t)),
		domain.DeleteVideo(false, domain.AnyVersion, stamp(t)),
		domain.UndeleteVideo(domain.AnyVersion, stamp(t)),
	} {
		if _, err := videos.ChangeVideo(t.Context(), id, decide); err != nil {
			t.Fatalf("change %d: %v", i, err)
		}
	}
	wantCount(t, pool, 5, "events with pending rows", `SELECT count(*) FROM video_catalog.outbox o JOIN video_catalog.outbox_pending p ON p.id = o.id AND p.version = o.version WHERE o.aggregate_id = $1`, id.String())
	wantCount(t, pool, 5, "version", `SELECT version FROM video_catalog.videos WHERE id = $1`, id)
	if commits != 5 {
		t.Errorf("onCommit was called %d times, want 5", commits)
	}
}

// onCommit is called if the response to the commit was lost, and not if the
// database refused the transaction.
func TestCommitWithoutAResponse(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	cfg := pool.Config()
	var deaf atomic.Bool
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return deafConn{conn, &deaf}, err
	}
	deafPool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	must(t, err)
	defer deafPool.Close()
	commits := 0
	videos := store.NewVideos(deafPool, func() { commits++ })
	e := created(t, "Ran")
	id := e.Video.ID
	deaf.Store(true)
	if _, err := videos.CreateVideo(t.Context(), uuid.Nil, nil, e); kindOf(err) != problem.Unavailable || commits != 1 {
		t.Errorf("create without an answer: %v, and %d calls of onCommit, want Unavailable and 1", err, commits)
	}
	if _, err := videos.CreateVideo(t.Context(), uuid.Nil, nil, e); err == nil || commits != 1 {
		t.Errorf("create once more: %v, and %d calls of onCommit, want an error and no other", err, commits)
	}
	deaf.Store(true)
	if _, err := videos.ChangeVideo(t.Context(), id, domain.PublishVideo(domain.AnyVersion, stamp(t))); kindOf(err) != problem.Unavailable || commits != 2 {
		t.Errorf("change without an answer: %v, and %d calls of onCommit, want Unavailable and 2", err, commits)
	}
	wantCount(t, pool, 2, "events, both committed", "SELECT count(*) FROM video_catalog.outbox WHERE aggregate_id = $1", id.String())
}

// deafConn closes the connection when it reads the response to a COMMIT, once
// each time that deaf is set.
type deafConn struct {
	net.Conn
	deaf *atomic.Bool
}

func (c deafConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if bytes.Contains(b[:n], []byte("COMMIT\x00")) && c.deaf.CompareAndSwap(true, false) {
		return 0, errors.Join(io.ErrUnexpectedEOF, c.Close())
	}
	return n, err
}

// A command that changes nothing writes no event.
func TestNothingChangedWritesNoEvent(t *testing.T) {
	t.Parallel()
	pool, videos, e := stored(t, 2)
	same := domain.UpdateVideo(func(d *domain.VideoDetails) { *d = e.Video.VideoDetails }, domain.AnyVersion, stamp(t))
	got, err := videos.ChangeVideo(t.Context(), e.Video.ID, same)
	must(t, err)
	if got.Version != 1 {
		t.Errorf("version = %d, want 1", got.Version)
	}
	wantCount(t, pool, 1, "events", "SELECT count(*) FROM video_catalog.outbox")
}

// When any statement of the transaction fails, nothing of it stays: no row
// without its event, no event without its row.
func TestFailedTransactionLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"video_catalog.outbox", "video_catalog.outbox_pending", "video_catalog.videos"} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, 2)
			videos := store.NewVideos(pool, nil)
			existing := created(t, "Ran")
			create(t, videos, existing)
			breakTable(t, pool, table)

			if _, err := videos.CreateVideo(t.Context(), uuid.Nil, nil, created(t, "Kagemusha")); err == nil {
				t.Error("CreateVideo() = nil, want an error")
			}
			if _, err := videos.ChangeVideo(t.Context(), existing.Video.ID, domain.PublishVideo(domain.AnyVersion, stamp(t))); err == nil {
				t.Error("ChangeVideo() = nil, want an error")
			}
			for _, sql := range []string{
				"SELECT count(*) FROM video_catalog.videos WHERE version = 1 AND state = 'draft'",
				"SELECT count(*) FROM video_catalog.videos", "SELECT count(*) FROM video_catalog.outbox", "SELECT count(*) FROM video_catalog.outbox_pending",
			} {
				wantCount(t, pool, 1, sql, sql)
			}
		})
	}
}

// breakTable makes every INSERT and UPDATE of a table fail.
func breakTable(t testing.TB, pool *pgxpool.Pool, table string) {
	t.Helper()
	_, err := pool.Exec(t.Context(), fmt.Sprintf(`
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'broken on purpose'; END $$;
		CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON %s FOR EACH ROW EXECUTE FUNCTION refuse()`, table))
	must(t, err)
}

// A failed command leaves its connection fit for the next one.
func TestConnectionSurvivesFailedCommand(t *testing.T) {
	t.Parallel()
	pool, videos, e := stored(t, 1)
	before := pool.Stat().NewConnsCount()
	if _, err := videos.CreateVideo(t.Context(), uuid.Nil, nil, e); err == nil {
		t.Error("CreateVideo() twice with one id = nil, want an error")
	}
	if _, err := videos.ChangeVideo(t.Context(), newID(t), domain.PublishVideo(domain.AnyVersion, stamp(t))); kindOf(err) != problem.NotFound {
		t.Errorf("ChangeVideo() of a missing video = %v, want NotFound", err)
	}
	if _, err := videos.ChangeVideo(t.Context(), e.Video.ID, domain.PublishVideo(7, stamp(t))); kindOf(err) != problem.Conflict {
		t.Errorf("ChangeVideo() of another version = %v, want Conflict", err)
	}
	if _, err := videos.ChangeVideo(t.Context(), e.Video.ID, domain.PublishVideo(1, stamp(t))); err != nil {
		t.Errorf("ChangeVideo() after failures = %v", err)
	}
	if after := pool.Stat().NewConnsCount(); after != before {
		t.Errorf("connections made = %d, want none", after-before)
	}
}

// A decision that panics leaves no transaction open.
func TestPanickingDecisionRollsBack(t *testing.T) {
	t.Parallel()
	_, videos, e := stored(t, 1)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_, _ = videos.ChangeVideo(t.Context(), e.Video.ID, func(domain.Video) (*domain.VideoEvent, error) { panic("on purpose") })
	}()
	if _, err := videos.ChangeVideo(t.Context(), e.Video.ID, domain.PublishVideo(1, stamp(t))); err != nil {
		t.Errorf("ChangeVideo() after a panic = %v", err)
	}
}

// An event that the broker would refuse is refused inside the transaction.
func TestEventBeyondTheBrokersLimitsIsInvalid(t *testing.T) {
	t.Parallel()
	pool, videos, e := stored(t, 2)
	details := e.Video.VideoDetails
	details.Description = strings.Repeat("x", 10_000_000)
	_, err := videos.ChangeVideo(t.Context(), e.Video.ID, domain.UpdateVideo(func(d *domain.VideoDetails) { d.Description = details.Description }, domain.AnyVersion, stamp(t)))
	if kindOf(err) != problem.Invalid {
		t.Errorf("ChangeVideo() = %v, want Invalid", err)
	}
	big := created(t, "Kagemusha")
	big.Video.Description = details.Description
	if _, err := videos.CreateVideo(t.Context(), uuid.Nil, nil, big); kindOf(err) != problem.Invalid {
		t.Errorf("CreateVideo() = %v, want Invalid", err)
	}
	wantCount(t, pool, 1, "events", "SELECT count(*) FROM video_catalog.outbox")
}

// A command whose event has no partition, because a clock is wrong, writes
// nothing, and its error names the clock.
func TestEventWithoutPartitionIsUnavailable(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	e := created(t, "Ran")
	e.ID[0] = 0xff // a UUIDv7 of a far future
	_, err := store.NewVideos(pool, nil).CreateVideo(t.Context(), uuid.Nil, nil, e)
	var refusal *problem.Error
	if !errors.As(err, &refusal) || refusal.Kind != problem.Unavailable || !strings.Contains(refusal.Message, "clock") {
		t.Errorf("CreateVideo() = %v, want Unavailable because of the clock", err)
	}
	wantCount(t, pool, 0, "rows that are left", "SELECT (SELECT count(*) FROM video_catalog.videos) + (SELECT count(*) FROM video_catalog.outbox_pending)")
}

// A text that PostgreSQL cannot store is the caller's mistake.
func TestNulByteIsInvalid(t *testing.T) {
	t.Parallel()
	videos := store.NewVideos(pgtest.Pool(t, 2), nil)
	if _, err := videos.CreateVideo(t.Context(), uuid.Nil, nil, created(t, "a\x00b")); kindOf(err) != problem.Invalid {
		t.Errorf("CreateVideo() = %v, want Invalid", err)
	}
}

// A repeated request makes no second video, also when both come at once, and is no error in
// the log of the server.
func TestRepeatedRequestCreatesOneVideo(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 8)
	videos := store.NewVideos(pool, nil)
	request := uuid.New()
	var wg sync.WaitGroup
	ids := make([]uuid.UUID, 8)
	for i := range ids {
		e := created(t, "Ran")
		wg.Go(func() {
			v, err := videos.CreateVideo(t.Context(), request, []byte("same"), e)
			if err != nil {
				t.Errorf("CreateVideo() = %v", err)
			}
			ids[i] = v.ID
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Errorf("ids = %v, want all alike", ids)
			break
		}
	}
	wantCount(t, pool, 1, "events", "SELECT count(*) FROM video_catalog.outbox")
	if _, err := videos.CreateVideo(t.Context(), request, []byte("other"), created(t, "Ran")); kindOf(err) != problem.Exists || strings.Contains(err.Error(), "request_id") { // REST has another name
		t.Errorf("CreateVideo() with another fingerprint = %v, want Exists", err)
	}
	if errs := pgtest.Errors(t, pool); len(errs) > 0 {
		t.Errorf("log of the server: %q, want no error", errs)
	}
	// The age of a request is by the clock of the database: the video was made at epoch.
	if n, err := pg.NewOutbox(pool).PruneRequests(t.Context(), time.Hour, 10); n != 0 || err != nil {
		t.Errorf("PruneRequests() of an hour = %d, %v, want 0, nil", n, err)
	}
	if n, err := pg.NewOutbox(pool).PruneRequests(t.Context(), 0, 10); n != 1 || err != nil {
		t.Errorf("PruneRequests() = %d, %v, want 1, nil", n, err)
	}
	// A forgotten request is a new one.
	if v, err := videos.CreateVideo(t.Context(), request, []byte("same"), created(t, "Ran")); err != nil || v.ID == ids[0] {
		t.Errorf("CreateVideo() with a forgotten request = %v, %v, want another video than %v", v.ID, err, ids[0])
	}
}

// Writers of one video wait for one another: no version is given twice.
func TestConcurrentChangesGetTheirOwnVersions(t *testing.T) {
	t.Parallel()
	pool, videos, e := stored(t, 8)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 20 {
				id, err := uuid.NewV7()
				if err != nil {
					t.Error(err)
				}
				title := domain.VideoDetails{Title: fmt.Sprintf("%d/%d", w, i)}
				if _, err := videos.ChangeVideo(t.Context(), e.Video.ID, domain.UpdateVideo(func(d *domain.VideoDetails) { d.Title = title.Title }, domain.AnyVersion, domain.Stamp{EventID: id, Time: epoch})); err != nil {
					t.Errorf("ChangeVideo() = %v", err)
				}
			}
		})
	}
	wg.Wait()
	wantCount(t, pool, 161, "distinct versions", "SELECT count(DISTINCT version) FROM video_catalog.outbox")
	wantCount(t, pool, 0, "pending rows out of version order", `SELECT count(*) FROM (SELECT version, lag(version) OVER (ORDER BY seq) AS before FROM video_catalog.outbox_pending) p WHERE version <> before + 1`)
}

// The pages of a list have each video once, whatever is written in between.
func TestListVideosPagesThrough(t *testing.T) {
	t.Parallel()
	for _, oldestFirst := range []bool{false, true} {
		t.Run(fmt.Sprintf("oldestFirst=%t", oldestFirst), func(t *testing.T) {
			t.Parallel()
			videos := store.NewVideos(pgtest.Pool(t, 2), nil)
			want := map[uuid.UUID]bool{}
			for range 25 {
				e := created(t, "Ran")
				create(t, videos, e)
				want[e.Video.ID] = true
			}
			var after *domain.VideoCursor
			var last domain.Video
			seen := map[uuid.UUID]int{}
			for {
				page, _, err := videos.ListVideos(t.Context(), domain.VideoQuery{OldestFirst: oldestFirst, After: after, Limit: 4, State: domain.VideoStateDraft})
				must(t, err)
				for _, v := range page {
					if last.ID != uuid.Nil && (v.ID.String() > last.ID.String()) != oldestFirst {
						t.Errorf("%s comes after %s", v.ID, last.ID)
					}
					seen[v.ID]++
					last = v
				}
				if len(page) < 4 {
					break
				}
				after = &domain.VideoCursor{CreateTime: last.CreateTime, ID: last.ID}
				// A write between the pages: it moves no video to another page.
				_, err = videos.ChangeVideo(t.Context(), last.ID, domain.UpdateVideo(func(d *domain.VideoDetails) { d.Title = "A" }, domain.AnyVersion, stamp(t)))
				must(t, err)
			}
			for id := range want {
				if seen[id] != 1 {
					t.Errorf("video %s was seen %d times, want once", id, seen[id])
				}
			}
		})
	}
}

// A connection that is cut in the middle of a transaction is Unavailable, and
// leaves nothing.
func TestCutConnectionLeavesNothing(t *testing.T) {
	t.Parallel()
	pool, videos, e := stored(t, 2)
	_, err := videos.ChangeVideo(t.Context(), e.Video.ID, func(v domain.Video) (*domain.VideoEvent, error) {
		if _, err := pool.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"); err != nil {
			t.Error(err)
		}
		return domain.PublishVideo(domain.AnyVersion, stamp(t))(v)
	})
	if kindOf(err) != problem.Unavailable {
		t.Errorf("ChangeVideo() = %v, want Unavailable", err)
	}
	if v, err := videos.GetVideo(t.Context(), e.Video.ID); err != nil || v.Version != 1 {
		t.Errorf("GetVideo() = version %d, %v, want 1, nil", v.Version, err)
	}
}

// created is the first event of a new video.
func created(t testing.TB, title string) *domain.VideoEvent {
	t.Helper()
	e, err := domain.CreateVideo(newID(t), domain.VideoDetails{Title: title, Tags: []string{`drama`, `a "quoted", {odd} \tag`}}, stamp(t))
	must(t, err)
	return e
}
