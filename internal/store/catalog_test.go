package store_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store"
)

// after is the event that a decision makes of a video.
func after(t testing.TB, v domain.Video, decide domain.VideoDecision) domain.VideoEvent {
	t.Helper()
	e, err := decide(v)
	if err != nil || e == nil {
		t.Fatalf("decide() = %v, %v, want an event", e, err)
	}
	return *e
}

// life is the events of one video in order: it is created, published, and then
// renamed.
func life(t testing.TB, title string, versions int) []domain.VideoEvent {
	t.Helper()
	events := []domain.VideoEvent{*created(t, title)}
	for len(events) < versions {
		v := events[len(events)-1].Video
		decide := domain.PublishVideo(v.Version, stamp(t))
		if v.State == domain.VideoStatePublished {
			renamed := domain.VideoDetails{Title: title + "!"}
			if v.Title == renamed.Title {
				renamed.Title = title
			}
			decide = domain.UpdateVideo(func(d *domain.VideoDetails) { d.Title = renamed.Title }, v.Version, domain.Stamp{EventID: newID(t), Time: v.UpdateTime.Add(time.Second)})
		}
		events = append(events, after(t, v, decide))
	}
	return events
}

// project applies events for a consumer and fails the test when that fails.
func project(t testing.TB, catalog *store.Catalog, consumerName string, events ...domain.VideoEvent) []envelope.Outcome {
	t.Helper()
	outcomes, err := catalog.Project(t.Context(), consumerName, events)
	must(t, err)
	return outcomes
}

// checkEntry compares the entry of a video with the event from which it was built.
func checkEntry(t testing.TB, catalog *store.Catalog, e domain.VideoEvent) {
	t.Helper()
	got, err := catalog.GetEntry(t.Context(), e.Video.ID)
	must(t, err)
	same(t, "entry", domain.EntryOf(e.Video), got, cmpopts.EquateEmpty())
}

// visible returns the ids of the entries that the catalog lists.
func visible(t testing.TB, catalog *store.Catalog) []uuid.UUID {
	t.Helper()
	entries, _, err := catalog.ListEntries(t.Context(), domain.EntryQuery{Limit: 1000})
	must(t, err)
	ids := make([]uuid.UUID, len(entries))
	for i, entry := range entries {
		ids[i] = entry.VideoID
	}
	return ids
}

// A projector looks its rows up by their key, also in a session that planned its
// statements while the projection was empty, and whatever the size of its batches.
func TestProjectLooksRowsUp(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 1)
	catalog := store.NewCatalog(pool)
	for _, table := range []string{"video_projection", "inbox"} { // autovacuum would make new statistics
		execute(t, pool, "ALTER TABLE video_catalog_read."+table+" SET (autovacuum_enabled = off)")
	}
	for n := range 24 { // enough for a generic plan
		var batch []domain.VideoEvent
		for range 1 + n%4 {
			batch = append(batch, *created(t, "Ran"))
		}
		project(t, catalog, "catalog", batch...)
	}
	execute(t, pool, "SELECT pg_stat_force_next_flush()")
	wantCount(t, pool, 0, "tables of the catalog that were read as a whole", "SELECT sum(seq_scan) FROM pg_stat_user_tables WHERE schemaname = 'video_catalog_read'")
}

// When any statement of the transaction fails, nothing of it stays: an event is
// in the inbox only if the row has it.
func TestFailedProjectLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"video_catalog_read.inbox", "video_catalog_read.video_projection"} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, 2)
			catalog := store.NewCatalog(pool)
			events, other := life(t, "Ran", 2), life(t, "Kagemusha", 1)
			project(t, catalog, "catalog", events[0])
			changed := catalog.Changed()
			breakTable(t, pool, table)

			if _, err := catalog.Project(t.Context(), "catalog", []domain.VideoEvent{other[0], events[1]}); err == nil || kindOf(err) != 0 {
				t.Errorf("Project() = %v, want an error of no kind", err)
			}
			for _, sql := range []string{
				"SELECT count(*) FROM video_catalog_read.video_projection", "SELECT version FROM video_catalog_read.video_projection", "SELECT count(*) FROM video_catalog_read.inbox",
			} {
				wantCount(t, pool, 1, sql, sql)
			}
			checkClosed(t, changed, false, "a failure")

			execute(t, pool, "DROP TRIGGER refuse ON "+table)
			want := []envelope.Outcome{envelope.Applied, envelope.Applied}
			same(t, "outcomes of the repetition", want, project(t, catalog, "catalog", other[0], events[1]))
		})
	}
}

// An event that PostgreSQL cannot store makes its whole batch fail. Without
// it, the other events are applied.
func TestProjectRefusesABatchWithPoison(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	catalog := store.NewCatalog(pool)
	good, poison := life(t, "Ran", 1), life(t, "a\x00b", 1)
	if _, err := catalog.Project(t.Context(), "catalog", []domain.VideoEvent{good[0], poison[0]}); kindOf(err) != problem.Invalid {
		t.Errorf("Project() = %v, want Invalid", err)
	}
	wantCount(t, pool, 0, "rows of the inbox", "SELECT count(*) FROM video_catalog_read.inbox")
	project(t, catalog, "catalog", good[0])
	checkEntry(t, catalog, good[0])
}

// A statement timeout or a lock timeout of the database is no fault of the event
// or of the service: the error is Unavailable, and for a projector also a
// DeadlineExceeded.
func TestTimeoutIsNobodysFault(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{"statement_timeout", "lock_timeout"} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			timeoutIsNobodysFault(t, setting)
		})
	}
}

func timeoutIsNobodysFault(t *testing.T, setting string) {
	t.Helper()
	address, err := url.Parse(pgtest.Direct(t, pgtest.URL(t)))
	must(t, err)
	holds, err := pgx.Connect(t.Context(), address.String())
	must(t, err)
	defer holds.Close(context.WithoutCancel(t.Context()))
	events := life(t, "Ran", 2)
	project(t, store.NewCatalog(pgtest.Open(t, address.String(), 1)), "catalog", events[0])
	query := address.Query()
	query.Set(setting, "100ms")
	address.RawQuery = query.Encode()
	pool := pgtest.Open(t, address.String(), 2)
	catalog := store.NewCatalog(pool)
	execute(t, holds, "BEGIN; LOCK TABLE video_catalog_read.video_projection, video_catalog.videos IN SHARE MODE")
	if _, err := catalog.Project(t.Context(), "catalog", events[1:]); kindOf(err) != problem.Unavailable || !errors.Is(err, envelope.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Project() = %v, want Unavailable, as a DeadlineExceeded", err)
	}
	_, err = store.NewVideos(pool, nil).CreateVideo(t.Context(), uuid.Nil, nil, &events[0])
	if kindOf(err) != problem.Unavailable {
		t.Errorf("CreateVideo() = %v, want Unavailable", err)
	}
}

// A video is found while it is published, and not before or after.
func TestOnlyPublishedVideosAreFound(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	catalog := store.NewCatalog(pool)
	video := created(t, "Ran").Video
	events := []domain.VideoEvent{{ID: newID(t), Type: domain.VideoCreated, Video: video, OccurredAt: epoch}}
	for _, decide := range []domain.VideoDecision{
		domain.PublishVideo(domain.AnyVersion, stamp(t)),
		domain.UnpublishVideo(domain.AnyVersion, stamp(t)),
		domain.PublishVideo(domain.AnyVersion, stamp(t)),
		domain.DeleteVideo(false, domain.AnyVersion, stamp(t)),
		domain.UndeleteVideo(domain.AnyVersion, stamp(t)),
	} {
		events = append(events, after(t, events[len(events)-1].Video, decide))
	}
	for _, e := range events {
		project(t, catalog, "catalog", e)
		checkEntry(t, catalog, e)
		want := 0
		if e.Type == domain.VideoPublished || e.Type == domain.VideoUndeleted {
			want = 1
		}
		byTitle, _, err := catalog.ListEntries(t.Context(), domain.EntryQuery{ByTitle: true, Limit: 10})
		must(t, err)
		matches, _, err := catalog.SearchEntries(t.Context(), domain.SearchQuery{Words: "ran", Limit: 10})
		must(t, err)
		if byTime := visible(t, catalog); len(byTime) != want || len(byTitle) != want || len(matches) != want {
			t.Errorf("after %s: listed by time %d, by title %d, found %d, want %d", e.Type, len(byTime), len(byTitle), len(matches), want)
		}
		wantCount(t, pool, want, fmt.Sprintf("rows with words to search after %s", e.Type), "SELECT count(*) FROM video_catalog_read.video_projection WHERE search <> ''")
	}
}

// An entry without a row is not found, and a duplicate does not make the row.
func TestUnseenEntryDoesNotExist(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	catalog := store.NewCatalog(pool)
	events := life(t, "Ran", 1)
	project(t, catalog, "catalog", events...)
	execute(t, pool, "TRUNCATE video_catalog_read.video_projection")
	project(t, catalog, "catalog", events...) // a duplicate makes no row either
	if _, err := catalog.GetEntry(t.Context(), events[0].Video.ID); kindOf(err) != problem.NotFound {
		t.Errorf("GetEntry() = %v, want NotFound", err)
	}
}

// Text is read as it was written, also with characters that have a meaning in
// SQL, in an array literal or in a pattern.
func TestProjectionKeepsAnyText(t *testing.T) {
	t.Parallel()
	catalog := store.NewCatalog(pgtest.Pool(t, 2))
	odd := []string{
		`"`, `""`, `'`, `''`, `\`, `\\`, `\"`, `{`, `}`, `{}`, `{a,b}`, `,`, `a,b`, "", " ", "  a  ", "NULL", "null", "\n", "\t\r", "\v",
		"$1", "%s", "%", "七人の侍", "🎬👩‍👩‍👧", "e\u0301", "\u202eabc", "\ufeff", "\U0010ffff", "\x01\x7f",
	}
	var batch []domain.VideoEvent
	add := func(details domain.VideoDetails) {
		e, err := domain.CreateVideo(newID(t), domain.VideoDetails{Title: details.Title}, stamp(t))
		must(t, err)
		e.Video.VideoDetails = details // also values that today's rules refuse
		batch = append(batch, *e)
	}
	add(domain.VideoDetails{Title: "all", Tags: odd})
	add(domain.VideoDetails{Title: "none"})
	add(domain.VideoDetails{Title: "empty", Tags: []string{}})
	for _, text := range odd {
		add(domain.VideoDetails{Title: "_" + text, Description: text, LanguageCode: text, Tags: []string{text}})
		add(domain.VideoDetails{Title: "_" + text, Tags: []string{text, text}})
	}
	for i := range batch { // so that the words for the search are made of the text, too
		batch[i].Video.State, batch[i].Video.PublishTime = domain.VideoStatePublished, epoch
	}
	project(t, catalog, "catalog", batch...)
	for _, e := range batch {
		checkEntry(t, catalog, e)
	}
	for _, text := range odd {
		got, _, err := catalog.ListEntries(t.Context(), domain.EntryQuery{Tags: []string{text}, Limit: 100})
		if err != nil {
			t.Fatalf("ListEntries() with tag %q = %v", text, err)
		}
		if len(got) != 3 {
			t.Errorf("entries with tag %q = %d, want 3", text, len(got))
		}
	}
}

// Numbers and times of any size that an event can carry come back too.
func TestProjectionKeepsAnyNumber(t *testing.T) {
	t.Parallel()
	catalog := store.NewCatalog(pgtest.Pool(t, 2))
	first, last := time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 999_000_000, time.UTC)
	for i, change := range []func(*domain.Video){
		func(v *domain.Video) {
			v.ReleaseYear, v.Duration, v.Version = -1<<31, -1<<63/1_000_000*time.Millisecond, 1<<63-1
		},
		func(v *domain.Video) { v.ReleaseYear, v.Duration = 1<<31-1, (1<<63-1)/1_000_000*time.Millisecond },
		func(v *domain.Video) { v.UpdateTime, v.PublishTime = first, first.Add(time.Millisecond) },
		func(v *domain.Video) { v.UpdateTime, v.PublishTime = last, last },
	} {
		e := life(t, fmt.Sprint(i), 1)[0]
		change(&e.Video)
		project(t, catalog, "catalog", e)
		checkEntry(t, catalog, e)
	}
}

// checkClosed checks whether a channel is closed.
func checkClosed(t testing.TB, changed <-chan struct{}, want bool, cause string) {
	t.Helper()
	select {
	case <-changed:
		if !want {
			t.Errorf("Changed() is closed by %s", cause)
		}
	default:
		if want {
			t.Errorf("Changed() is not closed by %s", cause)
		}
	}
}

// The channel of Changed is closed by a change, and by nothing else.
func TestChangedIsClosedByChanges(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	changes := store.NewChanges()
	catalog := changes.Catalog(pool)
	events := life(t, "Ran", 3)
	failed := func() error {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := catalog.Project(ctx, "catalog", events)
		if err == nil {
			return errors.New("Project() = nil, want an error")
		}
		return nil
	}
	projected := func(events ...domain.VideoEvent) func() error {
		return func() error {
			_, err := catalog.Project(t.Context(), "catalog", events)
			return err
		}
	}
	for _, step := range []struct {
		cause string
		do    func() error
		want  bool
	}{
		{"nothing", func() error { return nil }, false},
		{"a failure", failed, false},
		{"an event", projected(events[0]), true},
		{"a duplicate", projected(events[0]), false},
		{"an event after a gap", projected(events[2]), true},
		{"a stale event", projected(events[1]), false},
		{"no events", projected(), false},
	} {
		first, second := catalog.Changed(), changes.Changed()
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.cause, err)
		}
		checkClosed(t, first, step.want, step.cause)
		checkClosed(t, second, step.want, step.cause)
		checkClosed(t, catalog.Changed(), false, "what was before")
	}
}

// When the channel of Changed is closed, the change can be read.
func TestChangedIsClosedAfterTheCommit(t *testing.T) {
	t.Parallel()
	catalog := store.NewCatalog(pgtest.Pool(t, 4))
	for _, e := range life(t, "Ran", 20) {
		changed := catalog.Changed()
		var wg sync.WaitGroup
		wg.Go(func() {
			<-changed
			if got, err := catalog.GetEntry(t.Context(), e.Video.ID); err != nil || got.Version != e.Video.Version {
				t.Errorf("GetEntry() = version %d, %v, want %d, nil", got.Version, err, e.Video.Version)
			}
		})
		project(t, catalog, "catalog", e)
		wg.Wait()
	}
}

// receivedAt projects an event of one time, and makes the inbox have received it at another time.
func receivedAt(t testing.TB, catalog *store.Catalog, exec func(sql string, args ...any), consumerName string, happened, received time.Time) domain.VideoEvent {
	t.Helper()
	e := *created(t, "Ran")
	ms := happened.UnixMilli()
	for i := range 6 {
		e.ID[i] = byte(ms >> (40 - 8*i))
	}
	project(t, catalog, consumerName, e)
	exec("UPDATE video_catalog_read.inbox SET received_at = $1 WHERE event_id = $2", received, e.ID)
	return e
}

// PruneInbox deletes ids of one consumer that are old by both clocks, the
// producer's and the database's: a bounded number at a time, the oldest first. A duplicate
// of such an event is recognized by its version.
func TestPruneInboxForgetsOnlyWhatIsOld(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	catalog := store.NewCatalog(pool)
	exec := func(sql string, args ...any) {
		t.Helper()
		execute(t, pool, sql, args...)
	}
	const olderThan = 24 * time.Hour
	now := pgtest.Column[time.Time](t, pool, "SELECT now()")[0] // by the database's clock
	old, older, recent := now.Add(-olderThan), now.Add(-2*olderThan), now.Add(10*time.Minute-olderThan)
	var forgotten []domain.VideoEvent
	for range 5 {
		forgotten = append(forgotten, receivedAt(t, catalog, exec, "catalog", old, old))
	}
	oldest := receivedAt(t, catalog, exec, "catalog", older, older)
	kept := []domain.VideoEvent{
		receivedAt(t, catalog, exec, "catalog", recent, recent),
		receivedAt(t, catalog, exec, "catalog", older, recent), // came late: it may come again
		receivedAt(t, catalog, exec, "catalog", recent, older), // a clock that is ahead
	}
	receivedAt(t, catalog, exec, "other", older, older)

	prune := func(maxRows int, want int64) {
		t.Helper()
		if got, err := pg.NewInbox(pool).PruneInbox(t.Context(), "catalog", olderThan, maxRows); got != want || err != nil {
			t.Errorf("PruneInbox() = %d, %v, want %d, nil", got, err, want)
		}
	}
	known := func(e domain.VideoEvent) int {
		return count(t, pool, "SELECT count(*) FROM video_catalog_read.inbox WHERE consumer = 'catalog' AND event_id = $1", e.ID)
	}
	prune(1, 1)
	if known(oldest) != 0 {
		t.Error("the oldest event was not forgotten first")
	}
	prune(3, 3)
	prune(100, 2)
	prune(100, 0)
	for i, e := range kept {
		if known(e) != 1 {
			t.Errorf("event %d was forgotten, want it kept", i)
		}
	}
	for i, e := range forgotten {
		if known(e) != 0 {
			t.Errorf("old event %d was kept", i)
		}
	}
	wantCount(t, pool, 1, "rows of the other consumer", "SELECT count(*) FROM video_catalog_read.inbox WHERE consumer = 'other'")
	if got := project(t, catalog, "catalog", forgotten[0])[0]; got != envelope.Stale {
		t.Errorf("outcome of a forgotten event = %s, want %s", got, envelope.Stale)
	}
}
