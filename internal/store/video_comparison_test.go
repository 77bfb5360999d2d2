package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/reconcile"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
)

// sides are the two sides, in two databases, and their comparison.
type sides struct {
	*testing.T
	commands, queries *pgxpool.Pool
	videos            *store.Videos
	catalog           *store.Catalog
	comparison        *store.VideoComparison
}

func newSides(t *testing.T) *sides {
	t.Helper()
	s := &sides{T: t, commands: storetest.Pool(t, 4), queries: storetest.Pool(t, 4)}
	s.videos, s.catalog = store.NewVideos(s.commands, nil), store.NewCatalog(s.queries)
	s.comparison = store.NewVideoComparison(s.commands, s.queries)
	return s
}

// publish makes a video of some versions, whose events are published and applied.
func (s *sides) publish(title string, versions int) domain.Video {
	s.Helper()
	events := life(s.T, title, versions)
	s.record(events)
	project(s.T, s.catalog, "catalog", events...)
	s.exec(s.commands, "DELETE FROM video_catalog.outbox_pending")
	return events[versions-1].Video
}

// record writes the events of a new video and what follows.
func (s *sides) record(events []domain.Event) {
	s.Helper()
	for i := range events {
		var err error
		if i == 0 {
			_, err = s.videos.CreateVideo(s.Context(), uuid.Nil, nil, &events[i])
		} else {
			_, err = s.videos.ChangeVideo(s.Context(), events[i].Video.ID, func(domain.Video) (*domain.Event, error) { return &events[i], nil })
		}
		if err != nil {
			s.Fatal(err)
		}
	}
}

func (s *sides) exec(pool *pgxpool.Pool, sql string, args ...any) {
	s.Helper()
	tag, err := pool.Exec(s.Context(), sql, args...)
	if err != nil || tag.RowsAffected() == 0 {
		s.Fatalf("%s = %v, %v", sql, tag, err)
	}
}

// compare compares everything. It waits no longer for events than it must.
func (s *sides) compare(wait time.Duration) reconcile.Result {
	s.Helper()
	result, err := reconcile.Compare(s.Context(), reconcile.Config{Wait: wait, Rate: 1e6}, s.comparison.Source(), uuid.Nil, 1e6, nil)
	if err != nil {
		s.Fatal(err)
	}
	slices.SortFunc(result.Differences, func(a, b reconcile.Difference) int { return slices.Compare(a.ID[:], b.ID[:]) })
	return result
}

func (s *sides) repair(result reconcile.Result) admin.Result {
	s.Helper()
	var ids []uuid.UUID
	for _, d := range result.Differences {
		ids = append(ids, d.ID)
	}
	return s.repairNamed(ids...)
}

func (s *sides) repairNamed(ids ...uuid.UUID) admin.Result {
	s.Helper()
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = id.String()
	}
	repaired, err := admin.NewProjections(reconcile.Config{}, s.comparison).Repair(s.Context(), admin.Request{
		Filter: admin.Filter{Type: event.AggregateVideo, ID: strings.Join(texts, ",")}, Reason: "test", Actor: admin.Actor{Name: "ann@desk", Via: "command"},
	})
	if err != nil {
		s.Errorf("Repair() = %v", err)
	}
	return repaired.Result
}

const aShortWait = 80 * time.Millisecond

// An entry that was changed by hand, in any column, is found with the names of these, and
// so is one that was deleted, one of a version that does not exist, one without a video, and
// one that has missed its event. A repair gives all of them the state of the owner.
func TestCorruptionIsFoundAndRepaired(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	var want []reconcile.Difference
	corrupt := func(kind reconcile.Kind, version int64, fields []string, set string) domain.Video {
		t.Helper()
		v := s.publish("Ran", 3)
		s.exec(s.queries, set, v.ID)
		want = append(want, reconcile.Difference{Type: "video", ID: v.ID, Kind: kind, OwnerVersion: 3, Version: version, Fields: fields})
		return v
	}
	for field, value := range map[string]string{
		"title": "'Ren'", "description": "'x'", "release_year": "1985", "duration_ms": "1", "language_code": "'ja'", "tags": "'{}'",
		"visible": "false", "publish_time": "NULL", "update_time": "update_time + interval '1 microsecond'",
	} {
		corrupt(reconcile.Different, 3, []string{field}, "UPDATE video_catalog_read.video_projection SET "+field+" = "+value+" WHERE video_id = $1")
	}
	renamed := corrupt(reconcile.Different, 3, []string{"title", "deleted"}, "UPDATE video_catalog_read.video_projection SET title = '', deleted = true WHERE video_id = $1")
	corrupt(reconcile.Missing, 0, nil, "DELETE FROM video_catalog_read.video_projection WHERE video_id = $1")
	corrupt(reconcile.Ahead, 9, nil, "UPDATE video_catalog_read.video_projection SET version = 9 WHERE video_id = $1")
	corrupt(reconcile.Behind, 2, nil, "UPDATE video_catalog_read.video_projection SET version = 2, visible = false WHERE video_id = $1")
	stranger := life(t, "Nobody's", 2)
	project(t, s.catalog, "catalog", stranger...)
	want = append(want, reconcile.Difference{Type: "video", ID: stranger[0].Video.ID, Kind: reconcile.Extra, Version: 2})
	s.publish("Ikiru", 1) // a draft
	deleted := s.publish("Kagemusha", 2)
	removal := after(t, deleted, domain.Delete(false, 2, stamp(t)))
	if _, err := s.videos.ChangeVideo(t.Context(), deleted.ID, func(domain.Video) (*domain.Event, error) { return &removal, nil }); err != nil {
		t.Fatal(err)
	}
	project(t, s.catalog, "catalog", removal)

	got := s.compare(aShortWait)
	slices.SortFunc(want, func(a, b reconcile.Difference) int { return slices.Compare(a.ID[:], b.ID[:]) })
	if diff := cmp.Diff(want, got.Differences); diff != "" || got.Rows != 15 || got.Pending != 0 {
		t.Errorf("Compare() = %d rows, %d pending, want 15, 0; differences (-want +got):\n%s", got.Rows, got.Pending, diff)
	}
	if result := s.repair(got); result.Done != int64(len(want)) || result.Failures > 0 {
		t.Errorf("Repair() = %+v, want %d repaired", result, len(want))
	}
	if again := s.compare(aShortWait); len(again.Differences) > 0 || again.Rows != 15 {
		t.Errorf("after the repair: %d rows, %+v, want no difference", again.Rows, again.Differences)
	}
	if entry, err := s.catalog.GetEntry(t.Context(), renamed.ID); err != nil || !cmp.Equal(entry.Details, renamed.Details) || !entry.Visible {
		t.Errorf("repaired entry = %+v, %v, want %+v", entry, err, renamed)
	}
	if entry, err := s.catalog.GetEntry(t.Context(), stranger[0].Video.ID); err != nil || !entry.Deleted || entry.Title != "" || entry.Version != 2 {
		t.Errorf("entry without a video = %+v, %v, want a tombstone of its version", entry, err)
	}
	if got := count(t, s.queries, "SELECT jsonb_array_length(before) FROM video_catalog_read.audit WHERE items = $1 AND action = 'projection.repair' AND actor = 'ann@desk'", len(want)); got != len(want)-1 {
		t.Errorf("the audit has %d entries as they were, want %d: all but the missing one", got, len(want)-1)
	}
}

// An entry whose event is in the outbox is pending, also if it waits there for a person. It
// is found once the event was given up.
func TestPendingEntriesAreNoDifference(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	s.publish("Ran", 2)
	waiting := created(t, "Ikiru")
	if _, err := s.videos.CreateVideo(t.Context(), uuid.Nil, nil, waiting); err != nil {
		t.Fatal(err)
	}
	if got := s.compare(aShortWait); len(got.Differences) > 0 || got.Pending != 1 {
		t.Errorf("Compare() = %+v, want one pending", got)
	}
	s.exec(s.commands, "UPDATE video_catalog.outbox_pending SET lane = -1")
	if got := s.compare(aShortWait); len(got.Differences) > 0 || got.Pending != 1 {
		t.Errorf("Compare() = %+v with the event set aside, want one pending", got)
	}
	s.exec(s.commands, "DELETE FROM video_catalog.outbox_pending")
	if got := s.compare(aShortWait); len(got.Differences) != 1 || got.Differences[0].ID != waiting.Video.ID || got.Pending != 0 {
		t.Errorf("Compare() = %+v with the event given up, want that entry", got)
	}
}

// untilBlocked waits until a statement waits for a lock on the query side.
func (s *sides) untilBlocked() {
	s.Helper()
	for waits := 0; waits == 0; time.Sleep(5 * time.Millisecond) {
		waits = count(s.T, s.queries, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
	}
}

// The projection is read before its owner: a version that comes to both between the two
// readings is not ahead. The lock of the test holds the reading of the projection.
func TestLookReadsTheProjectionFirst(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	v := s.publish("Ran", 2)
	held, err := s.queries.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it may be committed
	if _, err := held.Exec(t.Context(), "LOCK TABLE video_catalog_read.video_projection"); err != nil {
		t.Fatal(err)
	}
	type answer struct {
		seen map[uuid.UUID]reconcile.Seen
		err  error
	}
	answered := make(chan answer, 1)
	go func() {
		seen, err := s.comparison.Look(t.Context(), []uuid.UUID{v.ID})
		answered <- answer{seen, err}
	}()
	s.untilBlocked()
	s.exec(s.commands, "UPDATE video_catalog.videos SET version = 3")
	if _, err := held.Exec(t.Context(), "UPDATE video_catalog_read.video_projection SET version = 3"); err != nil {
		t.Fatal(err)
	}
	if err := held.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-answered; got.err != nil || len(got.seen) > 0 {
		t.Errorf("Look() = %+v, %v, want no difference", got.seen, got.err)
	}
}

// A repair does not overwrite what a projector writes at the same time. The lock of the test
// holds it between its reading and its writing.
func TestRepairYieldsToTheProjector(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	events := life(t, "Ran", 3)
	s.record(events)
	id := events[0].Video.ID
	project(t, s.catalog, "catalog", events[0]) // and two are lost
	held, err := s.queries.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it may be committed
	if _, err := held.Exec(t.Context(), "SELECT FROM video_catalog_read.video_projection WHERE video_id = $1 FOR UPDATE", id); err != nil {
		t.Fatal(err)
	}
	type answer struct {
		repaired int
		changed  []uuid.UUID
		err      error
	}
	answered := make(chan answer, 1)
	go func() {
		repaired, changed, err := s.comparison.RepairEntries(t.Context(), []uuid.UUID{id}, admin.Entry{Filter: []byte("{}")})
		answered <- answer{repaired, changed, err}
	}()
	s.untilBlocked()
	// What the projector does with another event of the same version.
	if _, err := held.Exec(t.Context(), "UPDATE video_catalog_read.video_projection SET title = 'Kagemusha', change_xid = pg_current_xact_id() WHERE video_id = $1", id); err != nil {
		t.Fatal(err)
	}
	if err := held.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-answered; got.err != nil || got.repaired != 0 || !slices.Equal(got.changed, []uuid.UUID{id}) {
		t.Errorf("RepairEntries() = %+v, want the entry named as changed", got)
	}
	if entry, err := s.catalog.GetEntry(t.Context(), id); err != nil || entry.Title != "Kagemusha" {
		t.Errorf("entry = %+v, %v, want that of the projector", entry, err)
	}
	if got := count(t, s.queries, "SELECT count(*) FROM video_catalog_read.audit"); got != 0 {
		t.Errorf("the audit has %d entries, want none", got)
	}
}

// A repair that lowers an entry reads the owner once more, because the entry has taken a later
// event of the owner for too old meanwhile.
func TestRepairReadsTheOwnerOfALoweredEntryAgain(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	events := life(t, "Ran", 2)
	s.record(events[:1])
	id := events[0].Video.ID
	project(t, s.catalog, "catalog", events[0])
	execute(t, s.queries, "UPDATE video_catalog_read.video_projection SET version = 9")
	held, err := s.queries.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it may have ended
	if _, err := held.Exec(t.Context(), "SELECT FROM video_catalog_read.video_projection FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	repairing := make(chan admin.Result, 1)
	go func() { repairing <- s.repairNamed(id) }()
	s.untilBlocked() // it has read the owner
	if _, err := s.videos.ChangeVideo(t.Context(), id, func(domain.Video) (*domain.Event, error) { return &events[1], nil }); err != nil {
		t.Fatal(err)
	}
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-repairing; got.Done != 1 || got.Failures != 0 {
		t.Errorf("Repair() = %+v, want one repaired", got)
	}
	if entry, err := s.catalog.GetEntry(t.Context(), id); err != nil || entry.Version != 2 {
		t.Errorf("entry = %+v, %v, want version 2 of the owner", entry, err)
	}
}

// An entry to which an event brings a later version during its repair is left to the events. So a
// repair does not fail for entries that change all the time.
func TestRepairLeavesAnEntryToItsEvents(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	v := s.publish("Ran", 3)
	s.exec(s.queries, "UPDATE video_catalog_read.video_projection SET version = 1")
	held, err := s.queries.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it may have ended
	if _, err := held.Exec(t.Context(), "UPDATE video_catalog_read.video_projection SET version = 2"); err != nil {
		t.Fatal(err)
	}
	repairing := make(chan admin.Result, 1)
	go func() { repairing <- s.repairNamed(v.ID) }()
	s.untilBlocked()
	if err := held.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-repairing; got.Matched != 1 || got.Done != 0 || got.Failures != 0 {
		t.Errorf("Repair() = %+v, want none repaired, and no failure", got)
	}
	if entry, err := s.catalog.GetEntry(t.Context(), v.ID); err != nil || entry.Version != 2 {
		t.Errorf("entry = %+v, %v, want version 2", entry, err)
	}
}

// A tombstone that the catalog lacks is no difference: it may have been pruned. A repair of all
// writes it, so that in an empty catalog no event of before the purge brings anything back.
func TestRepairCarriesTombstones(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	events := life(t, marker, 2)
	s.record(events)
	kept := s.publish("Ikiru", 1)
	for _, change := range []func(domain.Video) (*domain.Event, error){domain.Delete(false, 2, stamp(t)), domain.Purge(3, stamp(t))} {
		if _, err := s.videos.ChangeVideo(t.Context(), events[0].Video.ID, change); err != nil {
			t.Fatal(err)
		}
	}
	execute(t, s.queries, "TRUNCATE video_catalog_read.video_projection, video_catalog_read.inbox")
	if got := s.compare(aShortWait); len(got.Differences) != 1 || got.Differences[0].ID != kept.ID {
		t.Errorf("Compare() = %+v, want that only the other video is missing", got)
	}
	all := admin.Request{Filter: admin.Filter{Type: event.AggregateVideo}, Reason: "test", Actor: admin.Actor{Name: "ann@desk", Via: "command"}}
	for _, want := range []int64{2, 0} {
		if got, err := admin.NewProjections(reconcile.Config{}, s.comparison).Repair(t.Context(), all); err != nil || got.Done != want || got.Compared != 2 {
			t.Errorf("Repair() = %+v, %v, want %d repaired of 2", got, err, want)
		}
	}
	if got, want := project(t, s.catalog, "catalog", events...), []envelope.Outcome{envelope.Stale, envelope.Stale}; !slices.Equal(got, want) {
		t.Errorf("outcomes = %q, want %q", got, want)
	}
	if got := tablesWith(t, s.queries, marker); len(got) > 0 {
		t.Errorf("%s is in %q, want nowhere", marker, got)
	}
}

// relay publishes and applies events until ctx ends, with a pause between, in which they are
// neither in the outbox nor in the catalog.
func (s *sides) relay(ctx context.Context) error {
	events := store.NewOutbox(s.commands)
	for ctx.Err() == nil {
		claim, err := events.ClaimEvents(s.Context(), 50, 1<<20, time.Minute, envelope.Aggregate{})
		if err != nil {
			return err
		}
		settlement := outbox.Settlement{Lane: claim.Lane, Token: claim.Token}
		var decoded []domain.Event
		for _, claimed := range claim.Events {
			e, err := event.Decode(claimed.Message)
			if err != nil {
				return err
			}
			decoded = append(decoded, e)
			settlement.Done = append(settlement.Done, claimed.Seq)
			settlement.Tail = claimed.Seq
		}
		if len(decoded) == 0 {
			time.Sleep(time.Millisecond)
			continue
		}
		settlement.Head = settlement.Done[0]
		if _, err := events.SettleClaim(s.Context(), settlement); err != nil {
			return err
		}
		time.Sleep(rand.N(20 * time.Millisecond))
		if _, err := s.catalog.Project(s.Context(), "catalog", decoded); err != nil {
			return err
		}
	}
	return nil
}

// While videos are written and their events are on their way, a comparison finds nothing, but
// for an entry that was changed by hand. A repair at the same time loses no event.
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
			if _, err := s.videos.ChangeVideo(t.Context(), ids[rand.N(len(ids))], domain.Update([]domain.Field{domain.FieldTitle}, domain.Details{Title: fmt.Sprint("Ran ", n)}, domain.AnyVersion, stamp(t))); err != nil {
				return err
			}
		}
		return nil
	})
	const longer = time.Minute // than any event takes; the comparison waits only while one is missing
	for round := range 3 {
		if got := s.compare(longer); len(got.Differences) > 0 || got.Pending > 0 {
			t.Errorf("Compare() = %+v, want no difference", got)
		}
		var hurt uuid.UUID
		for hurt == uuid.Nil { // until the first entry is there
			_ = s.queries.QueryRow(t.Context(), "UPDATE video_catalog_read.video_projection SET version = version + 1000 WHERE video_id = (SELECT video_id FROM video_catalog_read.video_projection LIMIT 1) RETURNING video_id").Scan(&hurt)
		}
		got := s.compare(longer)
		if len(got.Differences) != 1 || got.Differences[0].ID != hurt || got.Differences[0].Kind != reconcile.Ahead {
			t.Errorf("round %d: Compare() = %+v, want %s alone, ahead", round, got, hurt)
		}
		s.repair(got)
	}
	stop()
	running.Wait()
	for count(t, s.commands, "SELECT count(*) FROM video_catalog.outbox_pending") > 0 { // what the relay has left
		ctx, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if err := s.relay(ctx); err != nil {
			t.Fatal(err)
		}
		stop()
	}
	if got := s.compare(aShortWait); len(got.Differences) > 0 || got.Pending > 0 {
		t.Errorf("Compare() = %+v at the end, want no difference", got)
	}
}

// A person compares with the role of people. Repairing needs the role of the query side. Each
// side needs only its own.
func TestRolesOfAComparison(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	hurt := s.publish("Ran", 2)
	s.exec(s.queries, "UPDATE video_catalog_read.video_projection SET version = 1")
	look := store.NewVideoComparison(userPool(t, s.commands, supportRole), userPool(t, s.queries, supportRole))
	got, err := reconcile.Compare(t.Context(), reconcile.Config{Wait: aShortWait}, look.Source(), uuid.Nil, 100, nil)
	if err != nil || len(got.Differences) != 1 {
		t.Errorf("Compare() as %s = %+v, %v, want the difference", supportRole, got, err)
	}
	if _, _, err := look.RepairEntries(t.Context(), []uuid.UUID{hurt.ID}, admin.Entry{Filter: []byte("{}")}); err == nil {
		t.Errorf("RepairEntries() as %s = nil, want it refused", supportRole)
	}
	commands, queries := userPool(t, s.commands, videoRole), userPool(t, s.queries, catalogRole)
	act := store.NewVideoComparison(commands, queries)
	progress := store.NewComparisons(queries)
	slice, ok, err := progress.Claim(t.Context(), event.AggregateVideo, 0)
	if !ok || err != nil {
		t.Fatalf("Claim() as %s = %t, %v", catalogRole, ok, err)
	}
	got, err = reconcile.Compare(t.Context(), reconcile.Config{Wait: aShortWait}, act.Source(), uuid.Nil, 100, nil)
	if err != nil || len(got.Differences) != 1 {
		t.Errorf("Compare() as the service = %+v, %v, want the difference", got, err)
	}
	if saved, err := progress.Save(t.Context(), slice, got, time.Hour); !saved || err != nil {
		t.Errorf("Save() as %s = %t, %v", catalogRole, saved, err)
	}
	if n, _, err := act.RepairEntries(t.Context(), []uuid.UUID{hurt.ID}, admin.Entry{Filter: []byte("{}")}); n != 1 || err != nil {
		t.Errorf("RepairEntries() as the service = %d, %v, want 1", n, err)
	}
	if slice, ok, err := progress.Claim(t.Context(), event.AggregateVideo, 0); !ok || err != nil || slice.After != uuid.Nil {
		t.Errorf("Claim() after a repair = %+v, %t, %v, want a new pass at once", slice, ok, err)
	}
}

// BenchmarkCompare measures a pass over 100,000 videos that finds nothing: per row, and with
// one entry per page that differs.
func BenchmarkCompare(b *testing.B) {
	const rows = 100_000
	commands, queries := storetest.Pool(b, 2), storetest.Pool(b, 2)
	library := newLibrary()
	for range rows / 1000 {
		entries := make([]domain.Entry, 1000)
		for i := range entries {
			entries[i] = library.entry(b)
		}
		if err := store.PutEntries(b.Context(), store.NewCatalog(queries), entries); err != nil {
			b.Fatal(err)
		}
		if _, err := commands.CopyFrom(b.Context(), pgx.Identifier{"video_catalog", "videos"},
			[]string{"id", "title", "description", "release_year", "duration_ms", "language_code", "tags", "state", "version", "create_time", "update_time", "publish_time"},
			pgx.CopyFromSlice(len(entries), func(i int) ([]any, error) {
				e := entries[i]
				return []any{e.VideoID, e.Title, e.Description, e.ReleaseYear, e.Duration.Milliseconds(), e.LanguageCode, e.Tags, "published", e.Version, e.UpdateTime, e.UpdateTime, e.PublishTime}, nil
			})); err != nil {
			b.Fatal(err)
		}
	}
	for _, pool := range []*pgxpool.Pool{commands, queries} {
		if _, err := pool.Exec(b.Context(), "VACUUM (ANALYZE)"); err != nil {
			b.Fatal(err)
		}
	}
	pass := func(b *testing.B, want int) {
		b.Helper()
		source := store.NewVideoComparison(commands, queries).Source()
		for b.Loop() {
			got, err := reconcile.Compare(b.Context(), reconcile.Config{Rate: 1e9}, source, uuid.Nil, 2*rows, nil)
			if err != nil || got.Rows != rows || len(got.Differences) != want {
				b.Fatalf("Compare() = %d rows, %d differences, %v, want %d and %d", got.Rows, len(got.Differences), err, rows, want)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/rows, "µs/row")
	}
	b.Run("equal", func(b *testing.B) { pass(b, 0) })
	if _, err := queries.Exec(b.Context(), `UPDATE video_catalog_read.video_projection SET title = title || '!' WHERE video_id IN (
		SELECT video_id FROM (SELECT video_id, row_number() OVER (ORDER BY video_id) AS n FROM video_catalog_read.video_projection) p WHERE n % 1000 = 500)`); err != nil {
		b.Fatal(err)
	}
	b.Run("one of 1000 differs", func(b *testing.B) { pass(b, rows/1000) })
}
