package store_test

import (
	"testing"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/console"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
)

// The timeline has when an event was applied, also after a seek, and with the name of the
// consumer.
func TestAppliedFollowsTheGeneration(t *testing.T) {
	t.Parallel()
	pool := storetest.Pool(t, 2)
	inbox, catalog := store.NewInbox(pool), store.NewCatalog(pool)
	e := life(t, "Ran", 1)[0]
	for generation := range 2 {
		project(t, catalog, "catalog", e)
		events := []console.Event{{ID: e.ID}, {ID: uuid.New()}}
		if err := inbox.Applied(t.Context(), []string{"catalog", "other"}, events); err != nil {
			t.Fatal(err)
		}
		if got := events[0].Applied; len(got) != 1 || got[0].Consumer != "catalog" || len(events[1].Applied) != 0 {
			t.Errorf("generation %d: applied = %+v, want by the catalog once", generation, events)
		}
		if _, err := inbox.Forget(t.Context(), "catalog"); err != nil {
			t.Fatal(err)
		}
	}
}
