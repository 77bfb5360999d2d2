package store_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/store"
)

var (
	execute = pgtest.Execute
	column  = pgtest.Column[string]
)

// moveTo gives a side the identity of another database, as the promotion of a
// standby or a restore does.
func moveTo(t testing.TB, pool *pgxpool.Pool, schema, identity string) {
	t.Helper()
	execute(t, pool, "CREATE OR REPLACE FUNCTION "+schema+".database_identity() RETURNS text LANGUAGE sql AS $$ SELECT '"+identity+"' $$")
}

// After a position of another database, or of a transaction that this database has
// not begun, the page is the first page, and says so, even if it is empty.
func TestPositionsBelongToTheirDatabase(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	catalog := store.NewCatalog(pool)
	empty, err := catalog.ListChanges(t.Context(), domain.Position{}, 10)
	if err != nil || empty.Restarted || empty.Next.Database == "" {
		t.Fatalf("ListChanges() of nothing = %+v, %v, want a position to go on from", empty, err)
	}
	events := life(t, "Ran", 1)
	project(t, catalog, "catalog", events...)
	changes := next(t, catalog, empty.Next, 1, 10)
	here := changes[0].Position
	if got, err := catalog.ListChanges(t.Context(), here, 10); err != nil || got.Restarted || got.Next != here || len(got.Changes) != 0 {
		t.Errorf("ListChanges() behind the last = %+v, %v, want nothing", got, err)
	}
	future, unknown, foreign := here, here, here
	future.Transaction = 1 << 60
	unknown.Database = ""
	foreign.Database = "elsewhere"
	foreign.Transaction = 1 << 60
	for _, position := range []domain.Position{future, unknown, foreign} {
		got, err := catalog.ListChanges(t.Context(), position, 10)
		if err != nil || !got.Restarted || len(got.Changes) != 1 || got.Next != here {
			t.Errorf("ListChanges() behind %+v = %+v, %v, want the first page", position, got, err)
		}
	}
	moveTo(t, pool, "video_catalog_read", "elsewhere")
	execute(t, pool, "DELETE FROM video_catalog_read.video_projection")
	got, err := catalog.ListChanges(t.Context(), here, 10)
	if want := (domain.ChangePage{Changes: []domain.Change{}, Next: domain.Position{Database: "elsewhere"}, Restarted: true}); err != nil || cmp.Diff(want, got) != "" {
		t.Errorf("ListChanges() in a database without entries = %+v, %v, want %+v", got, err, want)
	}
}

// A page of changes ends with the entry with which its text reaches 64 KiB. Together
// the pages have each entry once.
func TestPagesOfChangesAreSmall(t *testing.T) {
	t.Parallel()
	catalog := store.NewCatalog(pgtest.Pool(t, 2))
	const entries = 30
	var all []domain.VideoEvent
	for range entries {
		e := life(t, "Ran", 1)[0]
		e.Video.Description = strings.Repeat("亂", 10_000)
		all = append(all, e)
	}
	project(t, catalog, "catalog", all...)
	next(t, catalog, domain.Position{}, entries, 100) // until they can be read
	var position domain.Position
	seen := 0
	for more := true; more; {
		page, err := catalog.ListChanges(t.Context(), position, 100)
		must(t, err)
		bytes := 0
		for _, change := range page.Changes {
			bytes += len(change.Description)
		}
		if len(page.Changes) == 0 && seen < entries || bytes > 64<<10+30_000 {
			t.Fatalf("a page of %d entries has %d bytes", len(page.Changes), bytes)
		}
		seen += len(page.Changes)
		position, more = page.Next, page.More
	}
	if seen != entries {
		t.Errorf("the pages have %d entries, want %d", seen, entries)
	}
}

// Of two events of one version the catalog keeps the later one, in any order of
// arrival.
func TestLaterEventOfAVersionStays(t *testing.T) {
	t.Parallel()
	for _, order := range [][]int{{0, 1}, {1, 0}} {
		pool := pgtest.Pool(t, 2)
		catalog := store.NewCatalog(pool)
		first := life(t, "Ran", 1)[0]
		project(t, catalog, "catalog", first)
		both := []domain.VideoEvent{after(t, first.Video, domain.PublishVideo(1, stamp(t))), after(t, first.Video, domain.DeleteVideo(false, 1, stamp(t)))}
		both[0].ID, both[1].ID = uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
		var outcomes []envelope.Outcome
		for _, i := range append(order, order...) {
			got, err := catalog.Project(t.Context(), "catalog", both[i:i+1])
			must(t, err)
			outcomes = append(outcomes, got...)
		}
		same(t, fmt.Sprintf("order %v: outcomes", order), []envelope.Outcome{envelope.Applied, envelope.Conflict, envelope.Duplicate, envelope.Duplicate}, outcomes)
		if got, err := catalog.GetEntry(t.Context(), first.Video.ID); err != nil || !got.Deleted {
			t.Errorf("order %v: entry = %+v, %v, want that of the later event", order, got, err)
		}
	}
}
