package store_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
)

// An inbox that is made to forget takes every event of that consumer as new. It counts and deletes
// page by page.
func TestForgottenEventsAreNew(t *testing.T) {
	t.Parallel()
	p := storetest.Pool(t, 2)
	catalog, inbox := store.NewCatalog(p), store.NewInbox(p)
	events := life(t, "Ran", 3)
	project(t, catalog, "catalog", events...)
	project(t, catalog, "another", events...)
	execute(t, p, "INSERT INTO video_catalog_read.inbox (consumer, event_id) SELECT 'catalog', gen_random_uuid() FROM generate_series(1, 10001)")
	for _, rows := range []int64{10_004, 3} {
		execute(t, p, "DELETE FROM video_catalog_read.video_projection")
		if got, err := inbox.Count(t.Context(), "catalog"); got != rows || err != nil {
			t.Errorf("Count() = %d, %v, want %d", got, err, rows)
		}
		if got, err := inbox.Forget(t.Context(), "catalog", auditOf(admin.ActionSeek)); got != rows || err != nil {
			t.Errorf("Forget() = %d, %v, want %d", got, err, rows)
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
}
