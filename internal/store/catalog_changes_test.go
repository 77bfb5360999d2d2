package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/store"
)

// next returns the next n changes behind a position, page by page. It waits
// for them, because a change is held back while any older transaction of the
// server is open, also a transaction of another test.
func next(t testing.TB, catalog *store.Catalog, after domain.Position, n, page int) []domain.Change {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var all []domain.Change
	for len(all) < n {
		found, err := catalog.ListChanges(ctx, after, page)
		changes := found.Changes
		if err != nil {
			t.Fatalf("ListChanges() = %v, with %d of %d changes seen", err, len(all), n)
		}
		if len(changes) > page {
			t.Fatalf("ListChanges() = %d changes, want at most %d", len(changes), page)
		}
		if len(changes) == 0 {
			time.Sleep(time.Millisecond)
			continue
		}
		all = append(all, changes...)
		after = changes[len(changes)-1].Position
	}
	return all
}

// checkChanges compares changes with the events that made them, and their
// positions with their order.
func checkChanges(t testing.TB, after domain.Position, got []domain.Change, events ...domain.VideoEvent) {
	t.Helper()
	var want []domain.Change
	for _, e := range events {
		want = append(want, domain.Change{Entry: domain.EntryOf(e.Video)})
	}
	same(t, "changes", want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(domain.Change{}, "Position", "Rebuilt"))
	for i, change := range got {
		if change.Position.VideoID != change.VideoID || comparePositions(after, change.Position) >= 0 {
			t.Errorf("position of change %d = %v, want that of video %s, behind %v", i, change.Position, change.VideoID, after)
		}
		after = change.Position
	}
}

func comparePositions(a, b domain.Position) int {
	if a.Transaction != b.Transaction {
		if a.Transaction < b.Transaction {
			return -1
		}
		return 1
	}
	return compareIDs(a.VideoID, b.VideoID)
}

func compareIDs(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }

// Changes come in the order of their transactions, from any position on, in
// pages of any size; hidden and deleted entries too, so that a watcher can
// forget them; of several changes of an entry only the last.
func TestChangesComeInOrder(t *testing.T) {
	t.Parallel()
	catalog := store.NewCatalog(pgtest.Pool(t, 2))
	a, b, c := life(t, "A", 4), life(t, "B", 2), life(t, "C", 2)
	deletion := after(t, c[1].Video, domain.DeleteVideo(false, domain.AnyVersion, stamp(t)))
	for _, batch := range [][]domain.VideoEvent{{a[0]}, {b[0], c[0]}, {a[1], c[1]}, {a[2]}, {deletion}} {
		project(t, catalog, "catalog", batch...)
	}
	start := domain.Position{}
	got := next(t, catalog, start, 3, 100)
	checkChanges(t, start, got, b[0], a[2], deletion)
	for page := range 3 {
		checkChanges(t, start, next(t, catalog, start, 3, page+1), b[0], a[2], deletion)
	}
	checkChanges(t, got[0].Position, next(t, catalog, got[0].Position, 2, 100), a[2], deletion)

	end := got[2].Position
	if more, err := catalog.ListChanges(t.Context(), end, 100); len(more.Changes) != 0 || err != nil {
		t.Errorf("ListChanges() behind the last one = %v, %v, want none", more, err)
	}
	project(t, catalog, "catalog", a[3], b[1])
	both := []domain.VideoEvent{a[3], b[1]} // of one transaction: in the order of their ids
	slices.SortFunc(both, func(x, y domain.VideoEvent) int { return compareIDs(x.Video.ID, y.Video.ID) })
	for page := range 2 {
		checkChanges(t, end, next(t, catalog, end, 2, page+1), both...)
	}
	// From the beginning, everything is seen as it is now, once.
	checkChanges(t, start, next(t, catalog, start, 3, 2), append([]domain.VideoEvent{deletion}, both...)...)
}

// An event that changes nothing is not among the changes.
func TestOnlyChangesAreListed(t *testing.T) {
	t.Parallel()
	catalog := store.NewCatalog(pgtest.Pool(t, 2))
	events := life(t, "Ran", 3)
	project(t, catalog, "catalog", events[0], events[2])
	first := next(t, catalog, domain.Position{}, 1, 10)
	checkChanges(t, domain.Position{}, first, events[2])

	project(t, catalog, "catalog", events...) // late, and duplicates
	project(t, catalog, "again", events...)   // a replay
	marker := life(t, "marker", 1)
	project(t, catalog, "catalog", marker...)
	checkChanges(t, first[0].Position, next(t, catalog, first[0].Position, 1, 10), marker[0])
}

// A page is Held while a change is, also by a transaction in another database of the server. Then no
// page is.
func TestHeldChangesAreTold(t *testing.T) {
	t.Parallel()
	catalog, elsewhere := store.NewCatalog(pgtest.Pool(t, 2)), pgtest.Pool(t, 1)
	slow, err := elsewhere.Begin(t.Context())
	must(t, err)
	defer slow.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // nothing is left to roll back when the test passes
	execute(t, slow, "SELECT pg_current_xact_id()")
	project(t, catalog, "catalog", life(t, "late", 1)...)
	if got, err := catalog.ListChanges(t.Context(), domain.Position{}, 10); len(got.Changes) > 0 || !got.Held || err != nil {
		t.Fatalf("ListChanges() = %+v, %v, while a transaction of another database is open, want nothing, and Held", got, err)
	}
	must(t, slow.Commit(t.Context()))
	start := next(t, catalog, domain.Position{}, 1, 10)[0].Position
	pgtest.Eventually(t, 20*time.Second, "nothing is held back", func() bool {
		got, err := catalog.ListChanges(t.Context(), start, 10)
		return err == nil && !got.Held
	})
}

// A change is held back while an older transaction is open. That transaction may
// still commit a change with an earlier position, which a cursor behind that
// position would never see.
func TestChangesAreNotPassedOver(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 3)
	catalog := store.NewCatalog(pool)
	early, late := life(t, "early", 2), life(t, "late", 2)
	project(t, catalog, "catalog", early[0], late[0])
	start := next(t, catalog, domain.Position{}, 2, 10)[1].Position

	// slow is the transaction of a projector that commits late.
	slow, err := pool.Begin(t.Context())
	must(t, err)
	defer slow.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // nothing is left to roll back when the test passes
	execute(t, slow, `
		UPDATE video_catalog_read.video_projection
		SET version = 2, visible = true, publish_time = $2, change_xid = pg_current_xact_id()
		WHERE video_id = $1`, early[0].Video.ID, epoch)
	project(t, catalog, "catalog", late[1])
	for range 20 {
		if got, err := catalog.ListChanges(t.Context(), start, 10); len(got.Changes) != 0 || err != nil {
			t.Fatalf("ListChanges() = %v, %v, while an earlier transaction is open, want none", got, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	must(t, slow.Commit(t.Context()))
	checkChanges(t, start, next(t, catalog, start, 2, 10), early[1], late[1])
}

// lives are the events of some videos, each n versions long, in order.
func lives(t testing.TB, videos, versions int) [][]domain.VideoEvent {
	t.Helper()
	all := make([][]domain.VideoEvent, videos)
	for i := range all {
		all[i] = life(t, fmt.Sprintf("Video %d", i), versions)
	}
	return all
}

// shuffled cuts the events of many videos into batches, in any order.
func shuffled(random *rand.Rand, events []domain.VideoEvent, batch int) [][]domain.VideoEvent {
	events = slices.Clone(events)
	random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	return slices.Collect(slices.Chunk(events, batch))
}

// A watcher that follows several projectors sees the newest version of every
// entry, and the versions of each in order.
func TestWatcherMissesNothing(t *testing.T) {
	t.Parallel()
	const projectors = 4
	catalog := store.NewCatalog(pgtest.Pool(t, projectors+1))
	all := lives(t, 12, 8)
	var wg sync.WaitGroup
	for p := range projectors {
		random := rand.New(rand.NewPCG(rand.Uint64(), uint64(p)))
		var mine []domain.VideoEvent
		for i := p; i < len(all); i += projectors {
			mine = append(mine, all[i]...)
		}
		wg.Go(func() {
			for _, batch := range shuffled(random, mine, 2) {
				if _, err := catalog.Project(t.Context(), "catalog", batch); err != nil {
					t.Errorf("Project() = %v", err)
				}
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var position domain.Position
	seen := make(map[uuid.UUID]int64)
	for complete := 0; complete < len(all); {
		page, err := catalog.ListChanges(ctx, position, 3)
		if err != nil {
			t.Errorf("ListChanges() = %v, with %d of %d entries complete", err, complete, len(all))
			break
		}
		for _, change := range page.Changes {
			if comparePositions(position, change.Position) >= 0 {
				t.Errorf("position %v comes after %v", change.Position, position)
			}
			position = change.Position
			if change.Version <= seen[change.VideoID] {
				t.Errorf("version %d of %s comes after version %d", change.Version, change.VideoID, seen[change.VideoID])
			}
			seen[change.VideoID] = change.Version
			if change.Version == int64(len(all[0])) {
				complete++
			}
		}
	}
	wg.Wait()
}
