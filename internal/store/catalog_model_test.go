package store_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/store"
)

// catalogModel has the expected effect of deliveries on the catalog.
type catalogModel struct {
	rows map[uuid.UUID]domain.Video // the newest version of each video that came
	seen map[seenEvent]bool         // the inbox
}

type seenEvent struct {
	consumer string
	event    uuid.UUID
}

func (m *catalogModel) clone() catalogModel {
	return catalogModel{rows: maps.Clone(m.rows), seen: maps.Clone(m.seen)}
}

// deliver applies events for a consumer and returns the outcome of each event.
func (m *catalogModel) deliver(consumerName string, events []domain.VideoEvent) []envelope.Outcome {
	outcomes := make([]envelope.Outcome, len(events))
	for i, e := range events {
		key, version := seenEvent{consumerName, e.ID}, m.rows[e.Video.ID].Version
		switch {
		case m.seen[key]:
			outcomes[i] = envelope.Duplicate
		case e.Video.Version <= version:
			outcomes[i] = envelope.Stale
		case e.Video.Version == version+1, e.Video.Purged(): // a purge erases what was before it
			outcomes[i] = envelope.Applied
		default:
			outcomes[i] = envelope.AppliedAfterGap
		}
		m.seen[key] = true
		if e.Video.Version > version {
			m.rows[e.Video.ID] = e.Video
		}
	}
	return outcomes
}

// prune forgets the oldest events of a consumer.
func (m *catalogModel) prune(consumerName string, n int) (pruned int64) {
	var ids []uuid.UUID
	for key := range m.seen {
		if key.consumer == consumerName {
			ids = append(ids, key.event)
		}
	}
	slices.SortFunc(ids, compareIDs)
	for _, id := range ids[:min(n, len(ids))] {
		delete(m.seen, seenEvent{consumerName, id})
		pruned++
	}
	return pruned
}

// catalogMachine drives PostgreSQL and the model with the same deliveries.
type catalogMachine struct {
	pool    *pgxpool.Pool
	catalog *store.Catalog
	model   catalogModel
	events  []domain.VideoEvent // that ever happened, of all videos
	ids     int                 // that were given out
	tally   map[string]int      // what has happened, over all sequences
}

const modelProjectors = 3

// Events are delivered repeatedly, in any order and batches, to several projectors
// at once, which crash anywhere. Every event has the outcome of the model, and
// every row has the newest version delivered. -rapid.checks=10000 makes a
// longer run. A failure prints the flag that repeats it.
func TestCatalogBehavesLikeItsModel(t *testing.T) {
	t.Parallel()
	m := newCatalogMachine(t)
	rapid.Check(t, func(t *rapid.T) {
		m.reset(t)
		t.Repeat(map[string]func(*rapid.T){
			"deliver":         m.deliver,
			"deliver in turn": m.deliverInTurn,
			"together":        m.deliverTogether,
			"crash":           m.crashBeforeCommit,
			"prune":           m.prune,
			"":                m.compare,
		})
		m.deliverAll(t)
		m.compare(t)
		m.checkNewest(t)
	})
	t.Log(m.tally)
}

// newCatalogMachine makes a database with two faults, each in force while it
// has a row in video_catalog_read.fault: crash makes every transaction that takes a new
// event fail at its commit; slow delays every row that a transaction inserts.
func newCatalogMachine(t *testing.T) *catalogMachine {
	t.Helper()
	pool := pgtest.Pool(t, modelProjectors+1)
	if _, err := pool.Exec(t.Context(), `
		CREATE TABLE video_catalog_read.fault (kind text);
		CREATE FUNCTION crash() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF EXISTS (SELECT FROM video_catalog_read.fault WHERE kind = 'crash') THEN RAISE 'crash'; END IF;
			RETURN NULL;
		END $$;
		CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF EXISTS (SELECT FROM video_catalog_read.fault WHERE kind = 'slow') THEN PERFORM pg_sleep(random() * 0.0005); END IF;
			RETURN NEW;
		END $$;
		CREATE CONSTRAINT TRIGGER crash AFTER INSERT ON video_catalog_read.inbox DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION crash();
		CREATE TRIGGER slow BEFORE INSERT ON video_catalog_read.inbox FOR EACH ROW EXECUTE FUNCTION slow();
		CREATE TRIGGER slow BEFORE INSERT ON video_catalog_read.video_projection FOR EACH ROW EXECUTE FUNCTION slow()`); err != nil {
		t.Fatal(err)
	}
	return &catalogMachine{pool: pool, catalog: store.NewCatalog(pool), tally: make(map[string]int)}
}

// reset forgets everything, and draws the lives of some videos.
func (m *catalogMachine) reset(t *rapid.T) {
	m.exec(t, "DELETE FROM video_catalog_read.inbox; DELETE FROM video_catalog_read.video_projection; DELETE FROM video_catalog_read.fault")
	m.model = catalogModel{rows: make(map[uuid.UUID]domain.Video), seen: make(map[seenEvent]bool)}
	m.events, m.ids = nil, 0
	for range rapid.IntRange(1, 4).Draw(t, "videos") {
		e, err := domain.CreateVideo(m.newID(), drawDetails(t), m.stamp())
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 8).Draw(t, "commands") {
			m.events = append(m.events, *e)
			if rapid.IntRange(0, 4).Draw(t, "a type of the future if 0") == 0 {
				m.events[len(m.events)-1].Type = "" // as event.DecodeVideo leaves it
			}
			if e = m.drawCommand(t, e.Video); e == nil {
				break
			}
		}
	}
}

// drawCommand returns the event of a command that suits a video; nil if the
// command changed nothing.
func (m *catalogMachine) drawCommand(t *rapid.T, v domain.Video) *domain.VideoEvent {
	stamp := m.stamp()
	stamp.Time = v.UpdateTime.Add(time.Second)
	decisions := []domain.VideoDecision{
		domain.UpdateVideo(func(d *domain.VideoDetails) { *d = drawDetails(t) }, v.Version, stamp),
		domain.DeleteVideo(false, v.Version, stamp),
		domain.PublishVideo(v.Version, stamp),
	}
	switch {
	case v.Purged():
		decisions = []domain.VideoDecision{domain.PurgeVideo(v.Version, stamp)}
	case v.Deleted():
		decisions = []domain.VideoDecision{domain.UndeleteVideo(v.Version, stamp), domain.PurgeVideo(v.Version, stamp)}
	case v.State == domain.VideoStatePublished:
		decisions[2] = domain.UnpublishVideo(v.Version, stamp)
	}
	e, err := decisions[rapid.IntRange(0, len(decisions)-1).Draw(t, "command")](v)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func drawDetails(t *rapid.T) domain.VideoDetails {
	return domain.VideoDetails{
		Title:        rapid.SampledFrom([]string{"Ran", "七人の侍", `"Ikiru"`, "a, b"}).Draw(t, "title"),
		Tags:         rapid.SliceOfN(rapid.SampledFrom([]string{"drama", `"{},\`, " a ", "NULL"}), 0, 3).Draw(t, "tags"),
		ReleaseYear:  rapid.Int32Range(0, 2).Draw(t, "year"),
		LanguageCode: rapid.SampledFrom([]string{"", "ja"}).Draw(t, "language"),
	}
}

// newID is a UUIDv7 that is the same when a sequence is repeated.
func (m *catalogMachine) newID() uuid.UUID {
	m.ids++
	return uuid.MustParse(fmt.Sprintf("019b7c00-0000-7000-8000-%012d", m.ids))
}

func (m *catalogMachine) stamp() domain.Stamp { return domain.Stamp{EventID: m.newID(), Time: epoch} }

func (m *catalogMachine) exec(t *rapid.T, sql string) {
	t.Helper()
	if _, err := m.pool.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func drawConsumer(t *rapid.T) string {
	return rapid.SampledFrom([]string{"catalog", "catalog-2"}).Draw(t, "consumer")
}

// drawBatch draws events in any order, some of them more than once.
func (m *catalogMachine) drawBatch(t *rapid.T) (batch []domain.VideoEvent) {
	for _, i := range rapid.SliceOfN(rapid.IntRange(0, len(m.events)-1), 1, 6).Draw(t, "batch") {
		batch = append(batch, m.events[i])
	}
	return batch
}

// project delivers a batch and compares the outcomes of its events.
func (m *catalogMachine) project(t *rapid.T, consumerName string, batch []domain.VideoEvent) {
	t.Helper()
	got, err := m.catalog.Project(t.Context(), consumerName, batch)
	if err != nil {
		t.Fatalf("Project() = %v", err)
	}
	if diff := cmp.Diff(m.model.deliver(consumerName, batch), got); diff != "" {
		t.Fatalf("outcomes of %s (-want +got):\n%s", describe(batch), diff)
	}
	m.count(got)
}

func (m *catalogMachine) count(outcomes []envelope.Outcome) {
	names := map[envelope.Outcome]string{
		envelope.Applied: "applied", envelope.AppliedAfterGap: "after a gap", envelope.Stale: "stale", envelope.Duplicate: "duplicates",
	}
	for _, outcome := range outcomes {
		m.tally["deliveries"]++
		m.tally[names[outcome]]++
	}
}

// describe names events by their video and version.
func describe(batch []domain.VideoEvent) string {
	var names []string
	for _, e := range batch {
		names = append(names, fmt.Sprintf("%s/%d", e.Video.ID.String()[24:], e.Video.Version))
	}
	return strings.Join(names, " ")
}

// deliver delivers a batch, perhaps again at once: the projector crashed after
// the commit, or its acknowledgment was lost.
func (m *catalogMachine) deliver(t *rapid.T) {
	consumerName, batch := drawConsumer(t), m.drawBatch(t)
	for range rapid.IntRange(1, 2).Draw(t, "times") {
		m.project(t, consumerName, batch)
	}
}

// deliverAll delivers everything once more, in any order.
func (m *catalogMachine) deliverAll(t *rapid.T) {
	indexes := make([]int, len(m.events))
	for i := range indexes {
		indexes[i] = i
	}
	var all []domain.VideoEvent
	for _, i := range rapid.Permutation(indexes).Draw(t, "order") {
		all = append(all, m.events[i])
	}
	for batch := range slices.Chunk(all, 7) {
		m.project(t, "catalog", batch)
	}
}

// deliverInTurn delivers events that are next for their video.
func (m *catalogMachine) deliverInTurn(t *rapid.T) {
	var batch []domain.VideoEvent
	for _, e := range m.events {
		if e.Video.Version == m.model.rows[e.Video.ID].Version+1 {
			batch = append(batch, e)
		}
	}
	if len(batch) == 0 {
		t.Skip("all have come")
	}
	m.project(t, drawConsumer(t), batch)
}

// deliverTogether lets projectors work at the same time. The duplicates are as if they
// worked one after the other in some order, and no reader sees the version of a row sink.
// Other outcomes are not compared: they may be about a row that was just written.
func (m *catalogMachine) deliverTogether(t *rapid.T) {
	projectors := rapid.IntRange(2, modelProjectors).Draw(t, "projectors")
	consumers, batches := make([]string, projectors), make([][]domain.VideoEvent, projectors)
	outcomes, errs := make([][]envelope.Outcome, projectors), make([]error, projectors)
	var working, watching sync.WaitGroup
	done := make(chan struct{})
	if rapid.IntRange(0, 2).Draw(t, "slow if 0") == 0 {
		m.exec(t, "INSERT INTO video_catalog_read.fault VALUES ('slow')")
	}
	for p := range projectors {
		consumers[p], batches[p] = drawConsumer(t), m.drawBatch(t)
	}
	for p := range projectors {
		working.Go(func() { outcomes[p], errs[p] = m.catalog.Project(t.Context(), consumers[p], batches[p]) })
	}
	var back error
	watching.Go(func() { back = m.watch(t, done) })
	working.Wait()
	close(done)
	watching.Wait()
	m.exec(t, "DELETE FROM video_catalog_read.fault")
	if back != nil {
		t.Fatal(back)
	}
	for p, err := range errs {
		if err != nil {
			t.Fatalf("Project() of %s = %v", describe(batches[p]), err)
		}
	}
	for _, order := range orders(projectors) {
		model, fits := m.model.clone(), true
		for _, p := range order {
			fits = slices.EqualFunc(model.deliver(consumers[p], batches[p]), outcomes[p], func(a, b envelope.Outcome) bool {
				return (a == envelope.Duplicate) == (b == envelope.Duplicate)
			}) && fits
		}
		if fits {
			m.model = model
			m.tally["at the same time"]++
			m.count(slices.Concat(outcomes...))
			return
		}
	}
	for p := range projectors {
		t.Logf("%s for %s: %v", describe(batches[p]), consumers[p], outcomes[p])
	}
	t.Fatal("these outcomes, of projectors at the same time, are not those of any order of them")
}

// watch reads the versions until done, and returns an error when one sinks.
func (m *catalogMachine) watch(t *rapid.T, done <-chan struct{}) error {
	newest := make(map[uuid.UUID]int64)
	for {
		versions, err := m.versions(t)
		if err != nil {
			return err
		}
		for id, before := range newest {
			if versions[id] < before {
				return fmt.Errorf("the version of a row went from %d to %d", before, versions[id])
			}
		}
		newest = versions
		select {
		case <-done:
			return nil
		case <-time.After(time.Millisecond / 2): // leaves time for the projectors
		}
	}
}

func (m *catalogMachine) versions(t *rapid.T) (map[uuid.UUID]int64, error) {
	rows, err := m.pool.Query(t.Context(), "SELECT video_id, version FROM video_catalog_read.video_projection")
	if err != nil {
		return nil, err
	}
	versions := make(map[uuid.UUID]int64)
	var id uuid.UUID
	var version int64
	_, err = pgx.ForEachRow(rows, []any{&id, &version}, func() error {
		versions[id] = version
		return nil
	})
	return versions, err
}

// orders are all orders of n things.
func orders(n int) [][]int {
	if n == 0 {
		return [][]int{nil}
	}
	var all [][]int
	for _, shorter := range orders(n - 1) {
		for at := range n {
			all = append(all, slices.Insert(slices.Clone(shorter), at, n-1))
		}
	}
	return all
}

// crashBeforeCommit delivers a batch to a projector that has done everything
// but the commit: nothing of it may stay.
func (m *catalogMachine) crashBeforeCommit(t *rapid.T) {
	consumerName, batch := drawConsumer(t), m.drawBatch(t)
	isNew := slices.ContainsFunc(batch, func(e domain.VideoEvent) bool { return !m.model.seen[seenEvent{consumerName, e.ID}] })
	m.exec(t, "INSERT INTO video_catalog_read.fault VALUES ('crash')")
	_, err := m.catalog.Project(t.Context(), consumerName, batch)
	m.exec(t, "DELETE FROM video_catalog_read.fault")
	m.tally["crashes"]++
	if (err != nil) != isNew {
		t.Fatalf("Project() of %s in a crash = %v; that there is something to commit is %t", describe(batch), err, isNew)
	}
}

// prune forgets events that may come again.
func (m *catalogMachine) prune(t *rapid.T) {
	consumerName, n := drawConsumer(t), rapid.IntRange(1, 5).Draw(t, "events")
	got, err := pg.NewInbox(m.pool).PruneInbox(t.Context(), consumerName, -time.Hour, n)
	if want := m.model.prune(consumerName, n); err != nil || got != want {
		t.Fatalf("PruneInbox() = %d, %v, want %d", got, err, want)
	}
}

// compare compares the rows and the inbox with the model.
func (m *catalogMachine) compare(t *rapid.T) {
	want, got := make(map[uuid.UUID]domain.Entry), make(map[uuid.UUID]domain.Entry)
	for id, v := range m.model.rows {
		want[id] = entryOf(v)
	}
	rows, err := m.pool.Query(t.Context(), `SELECT video_id, title, description, release_year, language_code, tags, visible, deleted, version,
		coalesce(publish_time, '0001-01-01 UTC'), update_time FROM video_catalog_read.video_projection`)
	if err != nil {
		t.Fatal(err)
	}
	var e domain.Entry
	if _, err := pgx.ForEachRow(rows, []any{
		&e.VideoID, &e.Title, &e.Description, &e.ReleaseYear, &e.LanguageCode, &e.Tags, &e.Visible, &e.Deleted, &e.Version, &e.PublishTime, &e.UpdateTime,
	}, func() error {
		got[e.VideoID] = e
		e = domain.Entry{}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("rows (-want +got):\n%s", diff)
	}
	seen := make(map[seenEvent]bool)
	if rows, err = m.pool.Query(t.Context(), "SELECT consumer, event_id FROM video_catalog_read.inbox"); err != nil {
		t.Fatal(err)
	}
	var key seenEvent
	if _, err := pgx.ForEachRow(rows, []any{&key.consumer, &key.event}, func() error {
		seen[key] = true
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(m.model.seen, seen); diff != "" {
		t.Fatalf("inbox (-want +got):\n%s", diff)
	}
}

// entryOf does the same as domain.EntryOf, so that the test finds a mistake
// there.
func entryOf(v domain.Video) domain.Entry {
	deleted := !v.DeleteTime.IsZero()
	return domain.Entry{
		VideoID: v.ID, VideoDetails: v.VideoDetails, Version: v.Version, PublishTime: v.PublishTime, UpdateTime: v.UpdateTime,
		Deleted: deleted, Visible: v.State == domain.VideoStatePublished && !deleted,
	}
}

// checkNewest checks the catalog without the model, when every event has come:
// it has the state after the last event of each video, and lists the published
// videos.
func (m *catalogMachine) checkNewest(t *rapid.T) {
	newest := make(map[uuid.UUID]domain.Video)
	for _, e := range m.events { // in the order of their versions
		newest[e.Video.ID] = e.Video
	}
	listed, _, err := m.catalog.ListEntries(t.Context(), domain.EntryQuery{Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range newest {
		got, err := m.catalog.GetEntry(t.Context(), v.ID)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(entryOf(v), got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("entry after all events (-want +got):\n%s", diff)
		}
		isListed := slices.ContainsFunc(listed, func(e domain.Entry) bool { return e.VideoID == v.ID })
		if want := v.State == domain.VideoStatePublished && !v.Deleted(); isListed != want {
			t.Errorf("version %d, %s, deleted %t, is listed: %t, want %t", v.Version, v.State, v.Deleted(), isListed, want)
		}
	}
}
