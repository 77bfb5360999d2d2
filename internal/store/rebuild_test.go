package store_test

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
)

// anotherProjection is a projection as cmd/entity makes one, of another aggregate.
const anotherProjection = `
	CREATE TABLE video_catalog_read.another_projection (
		another_id uuid PRIMARY KEY,
		event_id uuid NOT NULL,
		currency text NOT NULL CHECK (currency <> ''),
		lines jsonb NOT NULL DEFAULT '[]',
		secret bytea NOT NULL,
		removed text NOT NULL,
		version bigint NOT NULL,
		create_time timestamptz NOT NULL,
		delete_time timestamptz
	) WITH (fillfactor = 90, toast.autovacuum_enabled = false);
	ALTER TABLE video_catalog_read.another_projection DROP COLUMN removed;
	COMMENT ON COLUMN video_catalog_read.another_projection.currency IS 'ISO 4217';
	CREATE INDEX another_projection_create_time ON video_catalog_read.another_projection (create_time, another_id) WHERE delete_time IS NULL;
	CREATE INDEX another_projection_twin ON video_catalog_read.another_projection (create_time, another_id) WHERE delete_time IS NULL;
	COMMENT ON INDEX video_catalog_read.another_projection_twin IS 'the same again';
	GRANT SELECT, INSERT, UPDATE ON video_catalog_read.another_projection TO video_catalog_read_rw;
	GRANT SELECT (another_id, event_id, currency) ON video_catalog_read.another_projection TO support_ro`

// begin begins a rebuild that has to be new.
func begin(t testing.TB, r *store.Rebuild) {
	t.Helper()
	state, err := r.Begin(t.Context(), "here", false)
	if err != nil || state.Resumed || state.Phase != store.PhaseFill {
		t.Fatalf("Begin() = %+v, %v, want a new one", state, err)
	}
}

// fill writes all that the owner has, as its last page.
func fill(t testing.TB, r *store.Rebuild, entries ...domain.Entry) {
	t.Helper()
	rows, err := store.CatalogRows(entries)
	if err != nil {
		t.Fatal(err)
	}
	last := ""
	if err := r.Write(t.Context(), store.RebuildRows{JSON: rows, Position: &last}); err != nil {
		t.Fatalf("Write() = %v", err)
	}
}

// swap swaps, and ends the rebuild.
func swap(t testing.TB, r *store.Rebuild) {
	t.Helper()
	swapped, err := r.Swap(t.Context(), 100, auditOf(admin.ActionRebuild))
	if !swapped || err != nil {
		t.Fatalf("Swap() = %t, %v, want true", swapped, err)
	}
	if err := r.End(t.Context()); err != nil {
		t.Fatalf("End() = %v", err)
	}
}

// checkKind checks what a caller can do about an error, and a part of its text.
func checkKind(t testing.TB, what string, err error, kind problem.Kind, text string) {
	t.Helper()
	if kindOf(err) != kind || !strings.Contains(err.Error(), text) {
		t.Errorf("%s = %v, want an error of kind %d with %q", what, err, kind, text)
	}
}

// described is what the catalogs of PostgreSQL say about the schema of the query side, with
// all names.
const described = `
	SELECT pg_get_indexdef(i.indexrelid) || coalesce(obj_description(i.indexrelid), '') FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
	WHERE c.relnamespace = 'video_catalog_read'::regnamespace
	UNION ALL
	SELECT format('%s %s %s %s', n.conrelid::regclass, n.conname, pg_get_constraintdef(n.oid), n.conindid::regclass) FROM pg_constraint n
	WHERE n.connamespace = 'video_catalog_read'::regnamespace
	UNION ALL
	SELECT format('%s %s %s %s %s', c.oid::regclass, c.relkind, c.relacl, c.reloptions, obj_description(c.oid)) FROM pg_class c
	WHERE c.relnamespace = 'video_catalog_read'::regnamespace
	UNION ALL
	SELECT format('%s %s %s %s %s %s', c.oid::regclass, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attacl, col_description(c.oid, a.attnum))
	FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND NOT a.attisdropped WHERE c.relnamespace = 'video_catalog_read'::regnamespace
	UNION ALL
	SELECT t.typname FROM pg_type t WHERE t.typnamespace = 'video_catalog_read'::regnamespace
	ORDER BY 1`

// dump is the schema of a database: as the catalogs describe it and, if there is a pg_dump
// of the server's version, as that writes it.
func dump(t testing.TB, p *pgxpool.Pool) []string {
	t.Helper()
	lines := column(t, p, described)
	program, err := exec.LookPath("pg_dump")
	if err != nil {
		return lines
	}
	version, err := exec.CommandContext(t.Context(), program, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	if major, _, _ := strings.Cut(column(t, p, "SHOW server_version")[0], "."); !strings.Contains(string(version), " "+major+".") {
		return lines
	}
	text, err := exec.CommandContext(t.Context(), program, "--schema-only", "--dbname="+p.Config().ConnString()).Output()
	if err != nil {
		t.Fatalf("pg_dump: %v", err)
	}
	return append(lines, slices.DeleteFunc(strings.Split(string(text), "\n"), func(line string) bool {
		return strings.HasPrefix(line, `\restrict`) || strings.HasPrefix(line, `\unrestrict`) // a random key
	})...)
}

// A rebuild works for every projection: afterwards the schema is as it was, with
// indexes, grants, settings and comments, and the next one can begin.
func TestRebuildLeavesTheSchemaAsItWas(t *testing.T) {
	t.Parallel()
	p := pool(t, storetest.Direct(t, storetest.URL(t)))
	execute(t, p, anotherProjection)
	before := dump(t, p)
	id := newID(t)
	row := fmt.Sprintf(`[{"another_id": %q, "currency": "JPY", "lines": [{"sku": "a"}], "secret": "\\x00ff", "version": 7, "create_time": "2026-01-02T03:04:05.000006Z", "delete_time": null}]`, id)
	for range 2 {
		for projection, rows := range map[string]string{"another_projection": row, store.CatalogProjection: "[]"} {
			r, last := store.NewRebuild(p, projection), ""
			begin(t, r)
			if err := r.Write(t.Context(), store.RebuildRows{JSON: []byte(rows), Position: &last}); err != nil {
				t.Fatalf("Write() = %v", err)
			}
			swap(t, r)
		}
		if diff := cmp.Diff(before, dump(t, p)); diff != "" {
			t.Errorf("schema (-before +after a rebuild):\n%s", diff)
		}
	}
	got := column(t, p, "SELECT concat_ws(' ', another_id, event_id, currency, lines, secret, version, extract(epoch FROM create_time)) FROM video_catalog_read.another_projection")
	if want := []string{id.String() + ` 00000000-0000-0000-0000-000000000000 JPY [{"sku": "a"}] \x00ff 7 1767323045.000006`}; !slices.Equal(got, want) {
		t.Errorf("rows = %q, want %q", got, want)
	}

	// One that is given up leaves nothing, either.
	r := store.NewRebuild(p, "another_projection")
	begin(t, r)
	if err := r.End(t.Context()); err != nil {
		t.Fatalf("End() = %v", err)
	}
	if diff := cmp.Diff(before, dump(t, p)); diff != "" {
		t.Errorf("schema (-before +after a rebuild that was given up):\n%s", diff)
	}
}

// What the copy of a table would lack is told before anything is filled.
func TestRebuildTellsWhatItCannotCopy(t *testing.T) {
	t.Parallel()
	const of = "video_catalog_read.video_projection"
	for what, sql := range map[string]string{
		"view video_catalog_read.":       "CREATE VIEW video_catalog_read.viewed AS SELECT title FROM " + of,
		"trigger mine":                   "CREATE TRIGGER mine AFTER INSERT ON " + of + " FOR EACH STATEMENT EXECUTE FUNCTION video_catalog_read.add_to_quarantine_size()",
		"policy mine":                    "CREATE POLICY mine ON " + of,
		"statistics object ":             "CREATE STATISTICS mine ON title, release_year FROM " + of,
		"publication mine":               "CREATE PUBLICATION mine FOR TABLE " + of,
		"publication everything":         "CREATE PUBLICATION everything FOR ALL TABLES",
		"constraint other_id_fkey":       "CREATE TABLE video_catalog_read.other (id uuid REFERENCES " + of + ")",
		"table video_catalog_read.child": "CREATE TABLE video_catalog_read.child () INHERITS (" + of + ")",
		"sequence video_catalog_read.":   "ALTER TABLE " + of + " ADD COLUMN number bigserial",
		"settings, grants and comment ":  "ALTER TABLE " + of + " REPLICA IDENTITY FULL",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := storetest.Pool(t, 2)
			execute(t, p, sql)
			_, err := store.NewRebuild(p, store.CatalogProjection).Begin(t.Context(), "here", false)
			checkKind(t, "Begin()", err, problem.Precondition, what)
			if n := count(t, p, "SELECT count(*) FROM pg_class WHERE relname = 'video_projection_next'"); n != 0 {
				t.Error("a shadow is left")
			}
		})
	}
}

// A rebuild touches projections only, whatever name it is given.
func TestRebuildRefusesOtherTables(t *testing.T) {
	t.Parallel()
	p := storetest.Pool(t, 2)
	execute(t, p, `CREATE TABLE public.foreign_projection (id uuid PRIMARY KEY, version bigint, event_id uuid);
		CREATE TABLE video_catalog_read.keyless_projection (id uuid, version bigint, event_id uuid)`)
	for _, name := range []string{"", "inbox", "quarantine", "videos", "foreign_projection", "keyless_projection", "video_projection; DROP TABLE video_catalog_read.inbox", "video_catalog_read.video_projection"} {
		_, err := store.NewRebuild(p, name).Begin(t.Context(), "here", false)
		checkKind(t, fmt.Sprintf("Begin() of %q", name), err, problem.Precondition, "there is no projection")
	}
}

// Only one process runs a rebuild. When it dies, another one resumes where it was, and what
// the first one does late has no effect.
func TestRebuildHasOneHolder(t *testing.T) {
	t.Parallel()
	p := storetest.Pool(t, 2)
	first, second := store.NewRebuild(p, store.CatalogProjection), store.NewRebuild(p, store.CatalogProjection)
	begin(t, first)
	rows, err := store.CatalogRows([]domain.Entry{entry(t, "Ran", ""), entry(t, "Ikiru", "")})
	if err != nil {
		t.Fatal(err)
	}
	position := "page 2"
	if err := first.Write(t.Context(), store.RebuildRows{JSON: rows, Position: &position}); err != nil {
		t.Fatalf("Write() = %v", err)
	}
	_, err = second.Begin(t.Context(), "here", false)
	checkKind(t, "Begin() of another process", err, problem.Conflict, "if its process has died, run it again in")
	_, err = second.Begin(t.Context(), "here", true)
	checkKind(t, "Begin() with restart", err, problem.Conflict, "has been running since")

	execute(t, p, "UPDATE video_catalog_read.rebuilds SET leased_until = now()") // it has died
	want := store.RebuildState{Resumed: true, Generation: 1, Phase: store.PhaseFill, Position: position, Entries: 2}
	if got, err := second.Begin(t.Context(), "here", false); got != want || err != nil {
		t.Errorf("Begin() = %+v, %v, want %+v", got, err, want)
	}
	checkKind(t, "Write() of the first", first.Write(t.Context(), store.RebuildRows{JSON: rows}), problem.Conflict, "taken over")
	_, err = first.Swap(t.Context(), 10, auditOf(admin.ActionRebuild))
	checkKind(t, "Swap() of the first", err, problem.Conflict, "taken over")
	checkKind(t, "End() of the first", first.End(t.Context()), problem.Conflict, "taken over")

	// Whoever stops in good order makes nobody wait.
	if err := first.Release(t.Context()); err != nil { // it is not the holder
		t.Errorf("Release() = %v", err)
	}
	if _, err := first.Begin(t.Context(), "here", false); kindOf(err) != problem.Conflict {
		t.Errorf("Begin() = %v, want that the other one runs", err)
	}
	if err := second.Release(t.Context()); err != nil {
		t.Errorf("Release() = %v", err)
	}
	if got, err := first.Begin(t.Context(), "here", false); got != want || err != nil {
		t.Errorf("Begin() after a release = %+v, %v, want %+v", got, err, want)
	}
	fill(t, first)
	swap(t, first)
	if n := count(t, p, "SELECT count(*) FROM video_catalog_read.video_projection"); n != 2 {
		t.Errorf("entries = %d, want 2", n)
	}
}

// What was filled for another database, another form of the table, or before changes that
// nobody has noted, is worth nothing.
func TestRebuildStartsOver(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		sql     string
		origin  string
		restart bool
	}{
		"another database": {"SELECT 1", "there", false},
		"asked to":         {"SELECT 1", "here", true},
		"altered":          {"ALTER TABLE video_catalog_read.video_projection ADD COLUMN rating int", "here", false},
		"another index":    {"CREATE INDEX mine ON video_catalog_read.video_projection (duration_ms)", "here", false},
		"abandoned":        {"UPDATE video_catalog_read.rebuilds SET leased_until = now() - interval '25 hours'", "here", false},
		"nearly abandoned": {"UPDATE video_catalog_read.rebuilds SET leased_until = now() - interval '24 hours' + interval '1 minute'", "here", false},
		"without shadow":   {"DROP TABLE video_catalog_read.video_projection_next", "here", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := storetest.Pool(t, 2)
			r := store.NewRebuild(p, store.CatalogProjection)
			begin(t, r)
			fill(t, r, entry(t, "Ran", ""))
			if err := r.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			execute(t, p, tt.sql)
			state, err := r.Begin(t.Context(), tt.origin, tt.restart)
			if want := (store.RebuildState{Generation: 2, Phase: store.PhaseFill}); state != want || err != nil {
				t.Fatalf("Begin() = %+v, %v, want %+v", state, err, want)
			}
			fill(t, r, entry(t, "Ikiru", ""))
			swap(t, r)
			if got := column(t, p, "SELECT title FROM video_catalog_read.video_projection"); !slices.Equal(got, []string{"Ikiru"}) {
				t.Errorf("titles = %q, want those of the second time", got)
			}
		})
	}
}

// A table that is altered during a rebuild keeps what was added.
func TestRebuildDoesNotSwapAnAlteredTable(t *testing.T) {
	t.Parallel()
	p := storetest.Pool(t, 2)
	r := store.NewRebuild(p, store.CatalogProjection)
	begin(t, r)
	fill(t, r)
	execute(t, p, "ALTER TABLE video_catalog_read.video_projection ADD COLUMN rating int")
	_, err := r.Swap(t.Context(), 10, auditOf(admin.ActionRebuild))
	checkKind(t, "Swap()", err, problem.Precondition, "was altered")
}

// A transaction that has the table in use makes a rebuild wait, and readers only for
// moments. Writers go on as soon as the attempt is over.
func TestRebuildWaitsForALock(t *testing.T) {
	t.Parallel()
	p := storetest.Pool(t, 4)
	catalog := store.NewCatalog(p)
	events := life(t, "Ran", 2)
	project(t, catalog, "catalog", events[0])
	r := store.NewRebuild(p, store.CatalogProjection)

	hold := func(mode string) (release func()) {
		t.Helper()
		tx, err := p.Begin(t.Context())
		if err == nil {
			_, err = tx.Exec(t.Context(), "LOCK TABLE video_catalog_read.video_projection IN "+mode+" MODE")
		}
		if err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := tx.Rollback(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	writing := hold("ROW EXCLUSIVE")
	if _, err := r.Begin(t.Context(), "here", false); !errors.Is(err, store.ErrLocked) {
		t.Errorf("Begin() beside a long writer = %v, want ErrLocked", err)
	}
	writing()
	begin(t, r)
	fill(t, r, domain.EntryOf(events[0].Video))
	reading := hold("ACCESS SHARE") // as pg_dump does
	project(t, catalog, "catalog", events[1])
	if _, err := r.Swap(t.Context(), 10, auditOf(admin.ActionRebuild)); !errors.Is(err, store.ErrLocked) {
		t.Errorf("Swap() beside a long reader = %v, want ErrLocked", err)
	}
	checkEntry(t, catalog, events[1])
	if err := r.Hold(t.Context()); err != nil {
		t.Errorf("Hold() = %v", err)
	}
	reading()
	swap(t, r)
	checkEntry(t, catalog, events[1])
}

// places are how the rows came to be, by title.
func places(t testing.TB, p *pgxpool.Pool) map[string]string {
	t.Helper()
	rows, err := p.Query(t.Context(), "SELECT title, concat_ws(' ', change_xid, event_id, updated_at) FROM video_catalog_read.video_projection")
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]string)
	var title, place string
	if _, err := pgx.ForEachRow(rows, []any{&title, &place}, func() error { found[title] = place; return nil }); err != nil {
		t.Fatal(err)
	}
	return found
}

// Watches get what a rebuild has changed, after all that they know, and nothing else: an
// entry that was right keeps its place, even if the words of its search were wrong.
func TestRebuildIsSeenByWatches(t *testing.T) {
	t.Parallel()
	p := storetest.Pool(t, 2)
	catalog := store.NewCatalog(p)
	var entries []domain.Entry
	var last []domain.Event
	for _, title := range []string{"right", "wrong", "lost", "unsearchable", "behind", "ahead"} {
		events := life(t, title, 4)
		project(t, catalog, "catalog", events[:3]...)
		last = append(last, events[2])
		entries = append(entries, domain.EntryOf(events[2].Video))
	}
	late := life(t, "late", 2)
	entries[4].Version, entries[4].ReleaseYear = 4, 1985
	entries[5].Version = 2
	execute(t, p, `UPDATE video_catalog_read.video_projection SET description = 'damaged' WHERE title = 'wrong!';
		UPDATE video_catalog_read.video_projection SET search = '' WHERE title = 'unsearchable!';
		DELETE FROM video_catalog_read.video_projection WHERE title = 'lost!'`)
	end := next(t, catalog, domain.Position{}, 5, 10)[4].Position
	before := places(t, p)

	r := store.NewRebuild(p, store.CatalogProjection)
	begin(t, r)
	fill(t, r, entries...)
	c, err := r.Compare(t.Context(), nil, 100)
	want := store.Comparison{LastKey: c.LastKey, Keys: 6, Missing: 1, Behind: 1, Different: 1, Doubtful: []string{entries[5].VideoID.String()}}
	if diff := cmp.Diff(want, c); diff != "" || err != nil {
		t.Errorf("Compare() = %v (-want +got):\n%s", err, diff)
	}
	project(t, catalog, "catalog", late...)
	swap(t, r)
	after := places(t, p)
	for _, title := range []string{"right!", "unsearchable!"} {
		if before[title] != after[title] {
			t.Errorf("place of the entry that is %s = %s, want %s", title, after[title], before[title])
		}
	}
	if got, _, err := catalog.SearchEntries(t.Context(), domain.SearchQuery{Words: "unsearchable", Limit: 10}); len(got) != 1 || err != nil {
		t.Errorf("SearchEntries() finds %d, %v, want 1", len(got), err)
	}
	for more := true; more; { // as the command and every server do
		n, err := catalog.MoveFutureChanges(t.Context(), 2)
		if more = n == 2; err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, change := range next(t, catalog, end, 5, 10) {
		got = append(got, fmt.Sprintf("%s %d %t", change.Title, change.Version, change.Rebuilt))
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"ahead! 2 true", "behind! 4 true", "late 2 false", "lost! 3 true", "wrong! 3 true"}, got); diff != "" {
		t.Errorf("changes after the rebuild (-want +got):\n%s", diff)
	}
	// The next event of an entry that was lowered counts again.
	if diff := cmp.Diff([]envelope.Outcome{envelope.Applied}, project(t, catalog, "again", last[5])); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
}

// Events that come during a rebuild are in the shadow, whichever of the two was first.
func TestRebuildCatchesUpWithEvents(t *testing.T) {
	t.Parallel()
	p := storetest.Pool(t, 2)
	catalog := store.NewCatalog(p)
	newer, older, other := life(t, "newer", 3), life(t, "older", 3), life(t, "other", 3)
	project(t, catalog, "catalog", newer[0], older[0], other[0])
	r := store.NewRebuild(p, store.CatalogProjection)
	begin(t, r)
	fill(t, r, domain.EntryOf(newer[1].Video), domain.EntryOf(older[2].Video), domain.EntryOf(other[1].Video))
	// One has more than the owner's list. One comes after the list, with what it has. Of the
	// third come two events of the same version: the owner has lost a transaction.
	twin := other[2]
	twin.ID, twin.Video.Title = newID(t), "twin"
	project(t, catalog, "catalog", newer[1], newer[2], older[1], older[2], other[1], other[2])
	if keys, err := r.CatchUp(t.Context(), 100); keys != 3 || err != nil {
		t.Fatalf("CatchUp() = %d, %v, want the notes of three entries", keys, err)
	}
	project(t, catalog, "catalog", twin)
	want := places(t, p)
	swap(t, r)
	if diff := cmp.Diff(want, places(t, p)); diff != "" {
		t.Errorf("places (-of the events +after the rebuild):\n%s", diff)
	}
	for _, e := range []domain.Event{newer[2], older[2], twin} {
		checkEntry(t, catalog, e)
	}
	if n := count(t, p, "SELECT count(*) FROM video_catalog_read.rebuild_keys"); n != 0 {
		t.Errorf("keys that are left = %d, want none", n)
	}
}

// An event that commits late is not lost, although its note is older than one that was read
// before.
func TestRebuildMissesNoLateCommit(t *testing.T) {
	t.Parallel()
	p := storetest.Pool(t, 3)
	catalog := store.NewCatalog(p)
	slow, fast := life(t, "slow", 1), life(t, "fast", 2)
	project(t, catalog, "catalog", slow[0], fast[0])
	r := store.NewRebuild(p, store.CatalogProjection)
	begin(t, r)
	fill(t, r, domain.EntryOf(slow[0].Video), domain.EntryOf(fast[0].Video))
	tx, err := p.Begin(t.Context()) // what a projector does that is slow to commit
	if err == nil {
		_, err = tx.Exec(t.Context(), "UPDATE video_catalog_read.video_projection SET version = 2, title = 'late', event_id = gen_random_uuid() WHERE video_id = $1", slow[0].Video.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	project(t, catalog, "catalog", fast[1])
	for _, want := range []int64{1, 0} {
		if keys, err := r.CatchUp(t.Context(), 100); keys != want || err != nil {
			t.Errorf("CatchUp() before the commit = %d, %v, want %d", keys, err, want)
		}
	}
	if _, err := r.Swap(t.Context(), 100, auditOf(admin.ActionRebuild)); !errors.Is(err, store.ErrLocked) {
		t.Errorf("Swap() before the commit = %v, want ErrLocked", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	swap(t, r)
	if got := column(t, p, "SELECT title || ' ' || version FROM video_catalog_read.video_projection ORDER BY 1"); !slices.Equal(got, []string{"fast 2", "late 2"}) {
		t.Errorf("entries = %q, want those of both events", got)
	}
}

// An entry that has followed events follows a repair, too: also to a lower version.
func TestRebuildFollowsARepair(t *testing.T) {
	t.Parallel()
	p := storetest.Pool(t, 2)
	catalog := store.NewCatalog(p)
	events := life(t, "Ran", 4)
	project(t, catalog, "catalog", events[1])
	r := store.NewRebuild(p, store.CatalogProjection)
	begin(t, r)
	fill(t, r, domain.EntryOf(events[1].Video))
	project(t, catalog, "catalog", events[3]) // the owner has lost it
	if keys, err := r.CatchUp(t.Context(), 100); keys != 1 || err != nil {
		t.Fatalf("CatchUp() = %d, %v, want 1", keys, err)
	}
	execute(t, p, "UPDATE video_catalog_read.video_projection SET version = 2, event_id = NULL") // as RepairEntries does
	swap(t, r)
	if got := column(t, p, "SELECT version::text FROM video_catalog_read.video_projection"); !slices.Equal(got, []string{"2"}) {
		t.Errorf("version = %q, want the 2 of the repair", got)
	}
}

// After the swap a rebuild asks about entries that only events have told of. What the owner
// says then replaces an entry, but not one that an event has written meanwhile.
func TestRebuildReplacesNoLaterVersionAfterTheSwap(t *testing.T) {
	t.Parallel()
	p := storetest.Pool(t, 2)
	catalog := store.NewCatalog(p)
	ghost, late, changed := life(t, "ghost", 2), life(t, "late", 3), life(t, "changed", 3)
	project(t, catalog, "catalog", changed[0])
	r := store.NewRebuild(p, store.CatalogProjection)
	begin(t, r)
	fill(t, r, domain.EntryOf(changed[0].Video))
	project(t, catalog, "catalog", ghost[0], late[0], changed[1])
	if swapped, err := r.Swap(t.Context(), 100, auditOf(admin.ActionRebuild)); !swapped || err != nil {
		t.Fatalf("Swap() = %t, %v, want true", swapped, err)
	}
	keys, _, err := r.Again(t.Context(), 0, 10)
	want := []string{ghost[0].Video.ID.String(), late[0].Video.ID.String()}
	slices.Sort(keys)
	slices.Sort(want)
	if !slices.Equal(keys, want) || err != nil {
		t.Errorf("Again() = %q, %v, want those that the owner has not listed: %q", keys, err, want)
	}
	project(t, catalog, "catalog", late[1], changed[2]) // after the owner was asked
	tombstone := func(e domain.Event) domain.Entry {
		return domain.Entry{VideoID: e.Video.ID, Version: e.Video.Version, Deleted: true, UpdateTime: e.Video.UpdateTime}
	}
	rows, err := store.CatalogRows([]domain.Entry{tombstone(ghost[0]), tombstone(late[0]), tombstone(changed[1])})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Write(t.Context(), store.RebuildRows{JSON: rows}); err != nil {
		t.Fatalf("Write() = %v", err)
	}
	checkEntry(t, catalog, late[1])
	checkEntry(t, catalog, changed[2])
	if got, err := catalog.GetEntry(t.Context(), ghost[0].Video.ID); err != nil || !got.Deleted || got.Title != "" || got.Version != 1 {
		t.Errorf("GetEntry() of the ghost = %+v, %v, want a tombstone of version 1", got, err)
	}
}

// A rebuild that nobody has run for a day notes no changes any more, so it does not grow for
// ever. A process that was asleep meanwhile must not go on: it would lose those changes.
func TestAbandonedRebuildNotesNothing(t *testing.T) {
	t.Parallel()
	p := storetest.Pool(t, 2)
	catalog := store.NewCatalog(p)
	events := life(t, "Ran", 3)
	r := store.NewRebuild(p, store.CatalogProjection)
	begin(t, r)
	fill(t, r, domain.EntryOf(events[0].Video))
	project(t, catalog, "catalog", events[0])
	noted := count(t, p, "SELECT count(*) FROM video_catalog_read.rebuild_keys")
	execute(t, p, "UPDATE video_catalog_read.rebuilds SET leased_until = now() - interval '25 hours'")
	project(t, catalog, "catalog", events[1:]...)
	if after := count(t, p, "SELECT count(*) FROM video_catalog_read.rebuild_keys"); noted != 1 || after != noted {
		t.Errorf("keys = %d before, %d after, want 1 and no more", noted, after)
	}
	checkKind(t, "Hold()", r.Hold(t.Context()), problem.Conflict, "has stood still for a day")
	_, err := r.Swap(t.Context(), 100, auditOf(admin.ActionRebuild))
	checkKind(t, "Swap()", err, problem.Conflict, "has stood still for a day")
	checkEntry(t, catalog, events[2])
}

// An inbox that is made to forget takes every event as new, and deletes what it knew.
func TestForgottenEventsAreNew(t *testing.T) {
	t.Parallel()
	p := storetest.Pool(t, 2)
	catalog, inbox := store.NewCatalog(p), store.NewInbox(p)
	events := life(t, "Ran", 3)
	project(t, catalog, "catalog", events...)
	project(t, catalog, "another", events...)
	for generation := int64(1); generation < 3; generation++ {
		execute(t, p, "DELETE FROM video_catalog_read.video_projection")
		if got, err := inbox.Forget(t.Context(), "catalog", auditOf(admin.ActionSeek)); got != generation || err != nil {
			t.Errorf("Forget() = %d, %v, want %d", got, err, generation)
		}
		want := []envelope.Outcome{envelope.Applied, envelope.Applied, envelope.Applied}
		if diff := cmp.Diff(want, project(t, catalog, "catalog", events...)); diff != "" {
			t.Errorf("outcomes (-want +got):\n%s", diff)
		}
		want = []envelope.Outcome{envelope.Duplicate, envelope.Duplicate, envelope.Duplicate}
		for _, consumer := range []string{"catalog", "another"} {
			if diff := cmp.Diff(want, project(t, catalog, consumer, events...)); diff != "" {
				t.Errorf("outcomes of %s (-want +got):\n%s", consumer, diff)
			}
		}
	}
	for _, want := range []int64{4, 2, 0} { // of the two earlier generations, at most 4 at a time
		if got, err := inbox.PruneInbox(t.Context(), "catalog", time.Hour, 4); got != want || err != nil {
			t.Errorf("PruneInbox() = %d, %v, want %d", got, err, want)
		}
	}
	if got, err := inbox.PruneInbox(t.Context(), "catalog", -time.Hour, 4); got != 3 || err != nil {
		t.Errorf("PruneInbox() of the present generation = %d, %v, want 3", got, err)
	}
	if n := count(t, p, "SELECT count(*) FROM video_catalog_read.inbox WHERE consumer = 'another'"); n != 3 {
		t.Errorf("events of another consumer = %d, want 3", n)
	}
}
