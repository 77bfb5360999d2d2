package store_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
)

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

// checkRows compares the projection with the last events of some videos.
func checkRows(t testing.TB, catalog *store.Catalog, lives [][]domain.VideoEvent) {
	t.Helper()
	for _, events := range lives {
		checkEntry(t, catalog, events[len(events)-1])
	}
}

// Projectors that get the same events at the same time, in other batches and
// another order, do not stand in each other's way: none fails, every event is
// taken by one of them, and every row ends at the newest version.
func TestConcurrentProjectorsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	const projectors = 6
	pool := storetest.Pool(t, projectors)
	catalog := store.NewCatalog(pool)
	all := lives(t, 8, 6)
	var mu sync.Mutex
	taken := make(map[uuid.UUID][]envelope.Outcome)
	var wg sync.WaitGroup
	for p := range projectors {
		random := rand.New(rand.NewPCG(rand.Uint64(), uint64(p)))
		wg.Go(func() {
			for _, batch := range shuffled(random, slices.Concat(all...), 6) {
				outcomes, err := catalog.Project(t.Context(), "catalog", batch)
				if err != nil {
					t.Errorf("Project() = %v", err)
					return
				}
				mu.Lock()
				for i, e := range batch {
					if outcomes[i] != envelope.Duplicate {
						taken[e.ID] = append(taken[e.ID], outcomes[i])
					}
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for _, events := range all {
		for _, e := range events {
			if outcomes := taken[e.ID]; len(outcomes) != 1 {
				t.Fatalf("outcomes of version %d of %s, but for duplicates, = %v, want one", e.Video.Version, e.Video.Title, outcomes)
			}
		}
	}
	if got, want := count(t, pool, "SELECT count(*) FROM video_catalog_read.inbox"), len(taken); got != want {
		t.Errorf("rows of the inbox = %d, want %d", got, want)
	}
	checkRows(t, catalog, all)
}
