package chaos

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
)

// A watcher's copy follows from its changes, one by one. It keeps the token of
// the last change.
func TestWatcherKeepsACopy(t *testing.T) {
	t.Parallel()
	const a, b = "0197f2a4-0000-7000-8000-000000000001", "0197f2a4-0000-7000-8000-000000000002"
	w := &watcher{copy: newCopy("w")}
	tell := func(m *catalogv1.WatchCatalogEntriesResponse) { w.take(m) }
	updated := func(id string, version int64, title, token string) *catalogv1.WatchCatalogEntriesResponse {
		return &catalogv1.WatchCatalogEntriesResponse{ResumeToken: token, Change: &catalogv1.WatchCatalogEntriesResponse_Updated{
			Updated: &catalogv1.CatalogEntry{Name: "catalogEntries/" + id, Version: version, Title: title},
		}}
	}
	tell(updated(a, 2, "t", "1"))
	tell(updated(b, 5, "t", "2"))
	tell(updated(a, 3, "t", "3"))
	tell(&catalogv1.WatchCatalogEntriesResponse{ResumeToken: "4", Change: &catalogv1.WatchCatalogEntriesResponse_Removed{Removed: "catalogEntries/" + b}})
	tell(&catalogv1.WatchCatalogEntriesResponse{ResumeToken: "5"})
	want := map[uuid.UUID]Entry{uuid.MustParse(a): {3, stateOfEntry(updated(a, 3, "t", "").GetUpdated()).digest()}}
	if n := w.copy.differs(want); n != 0 || w.token != "5" || w.copy.Changes != 4 || len(w.copy.Back) != 0 {
		t.Errorf("%d entries differ, token %q, %+v; want 0, 5 and 4 changes", n, w.token, w.copy)
	}
	tell(updated(b, 4, "t", "6")) // older than a version before the removal
	tell(updated(a, 3, "other", "7"))
	if n := w.copy.differs(want); n != 2 || len(w.copy.Back) != 1 || w.copy.Back[0] != (WentBack{uuid.MustParse(b), 5, 4}) {
		t.Errorf("%d entries differ, went back %+v; want 2, and once from 5 to 4", n, w.copy.Back)
	}
	tell(&catalogv1.WatchCatalogEntriesResponse{ResumeToken: "7", Change: &catalogv1.WatchCatalogEntriesResponse_Removed{Removed: "catalogEntries/" + a}})
	tell(updated(a, 3, "other", "7")) // the removed version again
	if len(w.copy.Back) != 2 || w.copy.Back[1] != (WentBack{uuid.MustParse(a), 3, 3}) {
		t.Errorf("went back %+v; want to version 3 after its removal, too", w.copy.Back)
	}
	tell(&catalogv1.WatchCatalogEntriesResponse{Change: &catalogv1.WatchCatalogEntriesResponse_Restarted{Restarted: true}})
	if n := w.copy.differs(want); n != 1 || w.copy.Fresh != 1 {
		t.Errorf("after it began anew %d entries differ, want 1", n)
	}
	tell(updated(a, 2, "t", "8"))
	if len(w.copy.Back) != 3 {
		t.Errorf("went back %+v; want a third time, although it began anew", w.copy.Back)
	}
}

// One watcher sometimes starts from the beginning. The others never do once
// they have a token, and one of them does not end its stream during a run.
func TestWatchersKeepTheirMistakes(t *testing.T) {
	t.Parallel()
	watchers := newWatchers(1, nil, nil, nil)
	var fresh []bool
	stays := 0
	for _, w := range watchers {
		if !w.startsAfresh() {
			t.Errorf("%s has no token, and does not begin with nothing", w.name())
		}
		w.token = "1"
		again := false
		for range 1000 {
			again = again || w.startsAfresh()
		}
		fresh = append(fresh, again)
		if w.longest > time.Hour {
			stays++
		}
	}
	if want := []bool{true, false, false}; !slices.Equal(fresh, want) || stays != 1 {
		t.Errorf("begin anew: %t, want %t; %d stay, want 1", fresh, want, stays)
	}
}
