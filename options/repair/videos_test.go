package repair

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/operate"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/store"
)

// created is the first event of a video.
func created(t testing.TB, title string) *domain.VideoEvent {
	t.Helper()
	e, err := domain.CreateVideo(uuid.Must(uuid.NewV7()), domain.VideoDetails{Title: title, Tags: []string{`drama`, `a "quoted", {odd} \tag`}}, stamp())
	must(t, err)
	return e
}

// stamp returns the stamp that a handler passes to a decision.
func stamp() domain.Stamp {
	return domain.Stamp{EventID: uuid.Must(uuid.NewV7()), Time: time.Now().Truncate(time.Microsecond)}
}

// next is the event that a decision makes of a video.
func next(t testing.TB, v domain.Video, decide domain.VideoDecision) domain.VideoEvent {
	t.Helper()
	e, err := decide(v)
	if err != nil || e == nil {
		t.Fatalf("decide() = %v, %v, want an event", e, err)
	}
	return *e
}

// life returns the events of one video in order: it is created, published, and then renamed.
func life(t testing.TB, title string, versions int) []domain.VideoEvent {
	t.Helper()
	events := []domain.VideoEvent{*created(t, title)}
	for len(events) < versions {
		v := events[len(events)-1].Video
		decide := domain.PublishVideo(v.Version, stamp())
		if v.State == domain.VideoStatePublished {
			decide = domain.UpdateVideo(func(d *domain.VideoDetails) { d.Title = v.Title + "!" }, v.Version, stamp())
		}
		events = append(events, next(t, v, decide))
	}
	return events
}

// sides are the two sides, in two databases, and their comparison.
type sides struct {
	*testing.T

	commands, queries *pgxpool.Pool
	videos            *store.Videos
	catalog           *store.Catalog
	compared          projection
}

func newSides(t *testing.T) *sides {
	t.Helper()
	s := &sides{T: t, commands: pgtest.Pool(t, 4), queries: pgtest.Pool(t, 4)}
	s.videos, s.catalog = store.NewVideos(s.commands, nil), store.NewCatalog(s.queries)
	s.compared = newVideos(s.commands, s.queries)
	return s
}

// project applies events.
func (s *sides) project(events ...domain.VideoEvent) []envelope.Outcome {
	s.Helper()
	outcomes, err := s.catalog.Project(s.Context(), "catalog", events)
	must(s, err)
	return outcomes
}

func (s *sides) count(sql string, args ...any) int {
	s.Helper()
	return pgtest.Count(s, s.queries, sql, args...)
}

// publish makes a video of some versions, whose events are published and applied.
func (s *sides) publish(title string, versions int) domain.Video {
	s.Helper()
	events := life(s.T, title, versions)
	s.record(events)
	s.project(events...)
	s.exec(s.commands, "DELETE FROM video_catalog.outbox_pending")
	return events[versions-1].Video
}

// record writes the events of a new video to the command side.
func (s *sides) record(events []domain.VideoEvent) {
	s.Helper()
	for i := range events {
		var err error
		if i == 0 {
			_, err = s.videos.CreateVideo(s.Context(), uuid.Nil, nil, &events[i])
		} else {
			_, err = s.videos.ChangeVideo(s.Context(), events[i].Video.ID, func(domain.Video) (*domain.VideoEvent, error) { return &events[i], nil })
		}
		must(s, err)
	}
}

func (s *sides) exec(pool *pgxpool.Pool, sql string, args ...any) {
	s.Helper()
	tag, err := pool.Exec(s.Context(), sql, args...)
	if err != nil || tag.RowsAffected() == 0 {
		s.Fatalf("%s = %v, %v", sql, tag, err)
	}
}

// compare compares everything. It waits at most this long for events that are on their way.
func (s *sides) compare(wait time.Duration) compared {
	s.Helper()
	return s.compareBy(s.compared, wait)
}

func (s *sides) compareBy(v projection, wait time.Duration) compared {
	s.Helper()
	result, err := comparison{source: v.source(false), rate: 1e6, wait: wait, beat: func() {}}.compare(s.Context(), uuid.Nil, 1e6)
	must(s, err)
	slices.SortFunc(result.differences, func(a, b difference) int { return compareIDs(a.ID, b.ID) })
	return result
}

// repair repairs entries, or all if there are none.
func (s *sides) repair(ids ...uuid.UUID) repaired {
	s.Helper()
	result, err := repair(s.Context(), s.compared, ids, operate.Operation{Reason: "test", Actor: pg.Actor{Name: "ann@desk", Via: "command"}})
	if err != nil {
		s.Errorf("repair() = %v", err)
	}
	return result
}

func idsOf(differences []difference) (ids []uuid.UUID) {
	for _, d := range differences {
		ids = append(ids, d.ID)
	}
	return ids
}

const aShortWait = 80 * time.Millisecond

// A comparison finds an entry that was changed by hand, with the names of the columns. It also finds
// an entry that was deleted, has a version that does not exist, has no video, or has missed its
// event. A repair gives all of them the state of the owner.
func TestCorruptionIsFoundAndRepaired(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	var want []difference
	corrupt := func(how kind, version int64, fields []string, set string) domain.Video {
		t.Helper()
		v := s.publish("Ran", 3)
		s.exec(s.queries, set, v.ID)
		want = append(want, difference{Type: "video", ID: v.ID, Kind: how, OwnerVersion: 3, Version: version, Fields: fields})
		return v
	}
	for field, value := range map[string]string{
		"title": "'Ren'", "description": "'x'", "release_year": "1985", "duration_ms": "1", "language_code": "'ja'", "tags": "'{}'",
		"visible": "false", "publish_time": "NULL", "update_time": "update_time + interval '1 microsecond'",
		"create_user": "'x'", "update_user": "'x'",
	} {
		corrupt(different, 3, []string{field}, "UPDATE video_catalog_read.video_projection SET "+field+" = "+value+" WHERE video_id = $1")
	}
	renamed := corrupt(different, 3, []string{"deleted", "title"}, "UPDATE video_catalog_read.video_projection SET title = '', deleted = true WHERE video_id = $1")
	corrupt(missing, 0, nil, "DELETE FROM video_catalog_read.video_projection WHERE video_id = $1")
	corrupt(ahead, 9, nil, "UPDATE video_catalog_read.video_projection SET version = 9 WHERE video_id = $1")
	corrupt(behind, 2, nil, "UPDATE video_catalog_read.video_projection SET version = 2, visible = false WHERE video_id = $1")
	stranger := life(t, "Nobody's", 2)
	s.project(stranger...)
	want = append(want, difference{Type: "video", ID: stranger[0].Video.ID, Kind: extra, Version: 2})
	s.publish("Ikiru", 1) // a draft
	deleted := s.publish("Kagemusha", 2)
	removal := next(t, deleted, domain.DeleteVideo(false, 2, stamp()))
	_, err := s.videos.ChangeVideo(t.Context(), deleted.ID, func(domain.Video) (*domain.VideoEvent, error) { return &removal, nil })
	must(t, err)
	s.project(removal)

	got := s.compare(aShortWait)
	slices.SortFunc(want, func(a, b difference) int { return slices.Compare(a.ID[:], b.ID[:]) })
	if diff := cmp.Diff(want, got.differences); diff != "" || got.rows != 17 || got.pending != 0 {
		t.Errorf("Compare() = %d rows, %d pending, want 17, 0; differences (-want +got):\n%s", got.rows, got.pending, diff)
	}
	if result := s.repair(idsOf(got.differences)...); result.Done != int64(len(want)) || result.Failures > 0 {
		t.Errorf("Repair() = %+v, want %d repaired", result, len(want))
	}
	if again := s.compare(aShortWait); len(again.differences) > 0 || again.rows != 17 {
		t.Errorf("after the repair: %d rows, %+v, want no difference", again.rows, again.differences)
	}
	if entry, err := s.catalog.GetEntry(t.Context(), renamed.ID); err != nil || !cmp.Equal(entry.VideoDetails, renamed.VideoDetails) || !entry.Visible {
		t.Errorf("repaired entry = %+v, %v, want %+v", entry, err, renamed)
	}
	if entry, err := s.catalog.GetEntry(t.Context(), stranger[0].Video.ID); err != nil || !entry.Deleted || entry.Title != "" || entry.Version != 2 {
		t.Errorf("entry without a video = %+v, %v, want a tombstone of its version", entry, err)
	}
	pgtest.WantCount(t, s.queries, len(want)-1, "entries in the audit as they were, all but the missing one", "SELECT jsonb_array_length(before) FROM video_catalog_read.audit WHERE items = $1 AND action = 'projection.repair' AND actor = 'ann@desk'", len(want))
}

// An entry whose event is in the outbox is pending, also if it waits there for a person. It
// is a difference once the event was given up.
func TestPendingEntriesAreNoDifference(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	s.publish("Ran", 2)
	waiting := created(t, "Ikiru")
	_, err := s.videos.CreateVideo(t.Context(), uuid.Nil, nil, waiting)
	must(t, err)
	if got := s.compare(aShortWait); len(got.differences) > 0 || got.pending != 1 {
		t.Errorf("Compare() = %+v, want one pending", got)
	}
	s.exec(s.commands, "WITH gone AS (DELETE FROM video_catalog.outbox_pending RETURNING *) INSERT INTO video_catalog.outbox_deferred SELECT * FROM gone")
	if got := s.compare(aShortWait); len(got.differences) > 0 || got.pending != 1 {
		t.Errorf("Compare() = %+v with the event deferred, want one pending", got)
	}
	s.exec(s.commands, "DELETE FROM video_catalog.outbox_deferred")
	if got := s.compare(aShortWait); len(got.differences) != 1 || got.differences[0].ID != waiting.Video.ID || got.pending != 0 {
		t.Errorf("Compare() = %+v with the event given up, want that entry", got)
	}
}

// hold runs a statement in a transaction of the query side, which stays open.
func (s *sides) hold(sql string) pgx.Tx {
	s.Helper()
	tx, err := s.queries.Begin(s.Context())
	must(s, err)
	s.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(s.Context())) }) // it may have ended
	pgtest.Execute(s, tx, sql)
	return tx
}

// untilBlocked waits until a statement waits for a lock on the query side.
func (s *sides) untilBlocked() {
	s.Helper()
	for waits := 0; waits == 0; time.Sleep(5 * time.Millisecond) {
		waits = s.count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
	}
}

// The projection is read before its owner: a version that comes to both between the two
// readings is not ahead. The lock of the test holds the reading of the projection.
func TestLookReadsTheProjectionFirst(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	v := s.publish("Ran", 2)
	held := s.hold("LOCK TABLE video_catalog_read.video_projection")
	looked := make(chan map[uuid.UUID]seen, 1)
	go func() {
		seen, err := s.compared.source(false).look(t.Context(), []uuid.UUID{v.ID})
		if err != nil {
			t.Error(err)
		}
		looked <- seen
	}()
	s.untilBlocked()
	s.exec(s.commands, "UPDATE video_catalog.videos SET version = 3")
	pgtest.Execute(t, held, "UPDATE video_catalog_read.video_projection SET version = 3")
	must(t, held.Commit(t.Context()))
	if got := <-looked; len(got) > 0 {
		t.Errorf("look() = %+v, want no difference", got)
	}
}

// A repair that lowers an entry reads the owner once more before it ends: meanwhile a projector may
// have ignored a later event as stale. The lock of the test holds the repair before its commit.
func TestRepairReadsTheOwnerOfALoweredEntryAgain(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	events := life(t, "Ran", 2)
	s.record(events[:1])
	id := events[0].Video.ID
	s.project(events[0])
	s.exec(s.queries, "UPDATE video_catalog_read.video_projection SET version = 9")
	held := s.hold("LOCK TABLE video_catalog_read.audit")
	repairing := make(chan repaired, 1)
	go func() { repairing <- s.repair(id) }()
	s.untilBlocked() // it has read the owner
	_, err := s.videos.ChangeVideo(t.Context(), id, func(domain.Video) (*domain.VideoEvent, error) { return &events[1], nil })
	must(t, err)
	if got, want := s.project(events[1]), []envelope.Outcome{envelope.Stale}; !slices.Equal(got, want) {
		t.Errorf("outcomes = %q, want %q", got, want)
	}
	must(t, held.Rollback(t.Context()))
	if got := <-repairing; got.Done != 1 || got.Failures != 0 {
		t.Errorf("Repair() = %+v, want one repaired", got)
	}
	if entry, err := s.catalog.GetEntry(t.Context(), id); err != nil || entry.Version != 2 {
		t.Errorf("entry = %+v, %v, want version 2 of the owner", entry, err)
	}
}

// A tombstone that the catalog lacks is no difference: it may have been pruned. A repair of all
// writes it, so that in an empty catalog no earlier event brings content back.
func TestRepairCarriesTombstones(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	events := life(t, "Kagemusha", 2)
	s.record(events)
	kept := s.publish("Ikiru", 1)
	for _, change := range []func(domain.Video) (*domain.VideoEvent, error){domain.DeleteVideo(false, 2, stamp()), domain.PurgeVideo(3, stamp())} {
		_, err := s.videos.ChangeVideo(t.Context(), events[0].Video.ID, change)
		must(t, err)
	}
	s.exec(s.queries, "DELETE FROM video_catalog_read.video_projection")
	s.exec(s.queries, "DELETE FROM video_catalog_read.inbox")
	if got := s.compare(aShortWait); len(got.differences) != 1 || got.differences[0].ID != kept.ID {
		t.Errorf("compare() = %+v, want that only the other video is missing", got)
	}
	if got, err := s.compared.source(false).look(t.Context(), []uuid.UUID{events[0].Video.ID}); err != nil || len(got) > 0 {
		t.Errorf("look() = %+v, %v, want no difference", got, err)
	}
	for _, want := range []int64{2, 0} {
		if got := s.repair(); got.Done != want || got.Compared != 2 {
			t.Errorf("repair() = %+v, want %d repaired of 2", got, want)
		}
	}
	s.exec(s.commands, "DELETE FROM video_catalog.videos WHERE title = ''")
	if got := s.compare(aShortWait); len(got.differences) != 0 {
		t.Errorf("compare() = %+v, want no difference: the owner has pruned the tombstone", got)
	}
	if got, want := s.project(events...), []envelope.Outcome{envelope.Stale, envelope.Stale}; !slices.Equal(got, want) {
		t.Errorf("outcomes = %q, want %q", got, want)
	}
	pgtest.WantCount(t, s.queries, 0, "entries with the title of the purged video", "SELECT count(*) FROM video_catalog_read.video_projection p WHERE p::text ILIKE '%kagemusha%'")
}

// relay publishes and applies events until ctx has ended and the outbox is empty, with a pause
// between, in which they are neither in the outbox nor in the catalog.
func (s *sides) relay(ctx context.Context) error {
	events := pg.NewOutbox(s.commands)
	for {
		claim, err := events.ClaimEvents(s.Context(), outbox.Limits{Lanes: 1, Events: 50, Bytes: 1 << 20, Lease: time.Minute})
		if err != nil {
			return err
		}
		settlement := outbox.Settlement{Lease: claim.Lease}
		var decoded []domain.VideoEvent
		for _, claimed := range claim.Events {
			e, err := event.DecodeVideo(claimed.Message)
			if err != nil {
				return err
			}
			decoded = append(decoded, e)
			settlement.Published = append(settlement.Published, claimed.Seq)
		}
		if len(decoded) == 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(time.Millisecond):
				continue
			}
		}
		if _, err := events.SettleClaim(s.Context(), settlement); err != nil {
			return err
		}
		time.Sleep(rand.N(20 * time.Millisecond))
		if _, err := s.catalog.Project(s.Context(), "catalog", decoded); err != nil {
			return err
		}
	}
}

// While videos are written and their events are on their way, a comparison finds only an entry
// that was changed by hand. A repair at the same time loses no event.
func TestComparisonUnderWritersHasNoFalseDifference(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	run := func(what string, do func() error) {
		running.Go(func() {
			if err := do(); err != nil {
				t.Errorf("%s = %v", what, err)
			}
		})
	}
	run("relay", func() error { return s.relay(ctx) })
	run("write", func() error {
		var ids []uuid.UUID
		for n := 0; ctx.Err() == nil; n++ {
			if n%5 == 0 {
				e := created(t, fmt.Sprint("Ran ", n))
				if _, err := s.videos.CreateVideo(t.Context(), uuid.Nil, nil, e); err != nil {
					return err
				}
				ids = append(ids, e.Video.ID)
				continue
			}
			if _, err := s.videos.ChangeVideo(t.Context(), ids[rand.N(len(ids))], domain.UpdateVideo(func(d *domain.VideoDetails) { d.Title = fmt.Sprint("Ran ", n) }, domain.AnyVersion, stamp())); err != nil {
				return err
			}
		}
		return nil
	})
	const longer = time.Minute // longer than any event takes; the comparison waits only while an event is missing
	for round := range 3 {
		if got := s.compare(longer); len(got.differences) > 0 || got.pending > 0 {
			t.Errorf("Compare() = %+v, want no difference", got)
		}
		var hurt uuid.UUID
		for hurt == uuid.Nil { // until the first entry exists
			_ = s.queries.QueryRow(t.Context(), "UPDATE video_catalog_read.video_projection SET version = version + 1000 WHERE video_id = (SELECT video_id FROM video_catalog_read.video_projection LIMIT 1) RETURNING video_id").Scan(&hurt)
		}
		got := s.compare(longer)
		if len(got.differences) != 1 || got.differences[0].ID != hurt || got.differences[0].Kind != ahead {
			t.Errorf("round %d: Compare() = %+v, want %s alone, ahead", round, got, hurt)
		}
		s.repair(idsOf(got.differences)...)
	}
	stop()
	running.Wait()
	must(t, s.relay(ctx)) // the last write may be later than the last claim
	if got := s.compare(aShortWait); len(got.differences) > 0 || got.pending > 0 {
		t.Errorf("Compare() = %+v at the end, want no difference", got)
	}
}

// userPool connects as a new user of a role.
func (s *sides) userPool(owner *pgxpool.Pool, role string) *pgxpool.Pool {
	s.Helper()
	cfg := owner.Config()
	user := role + "_" + cfg.ConnConfig.Database // users belong to the whole server
	pgtest.Execute(s, owner, "CREATE USER "+pgx.Identifier{user}.Sanitize()+" IN ROLE "+role)
	s.Cleanup(func() {
		if _, err := owner.Exec(context.WithoutCancel(s.Context()), "DROP USER "+pgx.Identifier{user}.Sanitize()); err != nil {
			s.Error(err)
		}
	})
	cfg.ConnConfig.User = user
	pool, err := pgxpool.NewWithConfig(s.Context(), cfg)
	must(s, err)
	s.Cleanup(pool.Close)
	return pool
}

// The role of people may compare. A repair and the background comparison need the service's role of
// the query side. Each side needs only its own role.
func TestRolesOfAComparison(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	hurt := s.publish("Ran", 2)
	s.exec(s.queries, "UPDATE video_catalog_read.video_projection SET version = 1")
	entry := pg.Entry{Action: actionRepair, Filter: []byte("{}"), Reason: "test"}
	rewrite := func(p projection, e pg.Entry) (int, error) {
		done, _, err := (&run{projection: p, whole: p.source(true), entry: e}).rewrite(t.Context(), []uuid.UUID{hurt.ID})
		return done, err
	}
	look := newVideos(s.userPool(s.commands, "support_ro"), s.userPool(s.queries, "support_ro"))
	if got := s.compareBy(look, aShortWait); len(got.differences) != 1 {
		t.Errorf("compare() as a person = %+v, want the difference", got)
	}
	if _, err := rewrite(look, entry); err == nil {
		t.Error("repair() as a person = nil, want it refused")
	}
	commands, queries := s.userPool(s.commands, "video_catalog_rw"), s.userPool(s.queries, "video_catalog_read_rw")
	act, progress := newVideos(commands, queries), comparisonsIn(queries)
	next, ok, err := progress.claim(t.Context(), event.AggregateVideo, 0)
	if !ok || err != nil {
		t.Fatalf("claim() as the service = %t, %v", ok, err)
	}
	got := s.compareBy(act, aShortWait)
	if saved, err := progress.save(t.Context(), next, got, time.Hour); len(got.differences) != 1 || !saved || err != nil {
		t.Errorf("compare() as the service = %+v, saved %t, %v, want the difference", got, saved, err)
	}
	if _, err := rewrite(act, pg.Entry{}); err == nil || len(s.compare(aShortWait).differences) != 1 {
		t.Errorf("repair() that the audit refuses = %v, want nothing repaired", err)
	}
	if n, err := rewrite(act, entry); n != 1 || err != nil {
		t.Errorf("repair() as the service = %d, %v, want 1", n, err)
	}
	if next, ok, err := progress.claim(t.Context(), event.AggregateVideo, 0); !ok || err != nil || next.after != uuid.Nil {
		t.Errorf("claim() after a repair = %+v, %t, %v, want a new pass at once", next, ok, err)
	}
	for _, d := range []*database{commandDatabase(commands), queryDatabase(queries)} {
		if err := errors.Join(d.find(t.Context()), d.accept(t.Context(), entry)); err != nil {
			t.Errorf("accept() of %s as the service = %v", d.Side, err)
		}
	}
}

// Entries whose transaction id is in the future, as after a restore into a younger cluster, become
// visible to watches.
func TestChangesOfTheFutureAreMoved(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	for range 5 {
		s.publish("Ran", 1)
	}
	s.exec(s.queries, "UPDATE video_catalog_read.video_projection SET change_xid = (1::bigint << 60)::text::xid8")
	if page, err := s.catalog.ListChanges(t.Context(), domain.Position{}, 10); err != nil || len(page.Changes) != 0 {
		t.Fatalf("ListChanges() = %d changes, %v, want none of the future", len(page.Changes), err)
	}
	if more, err := newVideos(nil, s.userPool(s.queries, "video_catalog_read_rw")).moveFuture(t.Context()); more || err != nil {
		t.Errorf("moveFuture() = %t, %v, want all moved", more, err)
	}
	for seen := 0; seen < 5; time.Sleep(5 * time.Millisecond) { // until older transactions of the server have ended
		page, err := s.catalog.ListChanges(t.Context(), domain.Position{}, 10)
		must(t, err)
		seen = len(page.Changes)
	}
}
