package chaos

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

// Faults of one group follow one another, those of different groups overlap,
// two at a time.
func TestSchedulerKeepsGroupsApart(t *testing.T) {
	t.Parallel()
	l := &lab{timeline: &timeline{to: new(bytes.Buffer)}}
	s := newScheduler(t.Context(), l)
	var mu sync.Mutex
	active, most, overlaps := map[string]int{}, 0, 0
	for n := range 12 {
		group := []string{groupProcess, groupBroker, groupDatabase}[n%3]
		s.inject(fault{"fault", group, NoRecovery, func(_ context.Context, _ *lab, r *rand.Rand, _ *FaultRecord) error {
			r.Uint64() // the fault has its dice to itself; the race detector looks
			mu.Lock()
			active[group]++
			all := active[groupProcess] + active[groupBroker] + active[groupDatabase]
			most = max(most, all)
			if active[group] > 1 {
				overlaps++
			}
			mu.Unlock()
			time.Sleep(400 * time.Millisecond) // longer than the pause before the next
			mu.Lock()
			defer mu.Unlock()
			active[group]--
			return nil
		}}, rand.New(rand.NewPCG(1, uint64(n))))
	}
	s.wait()
	if most != 2 || overlaps > 0 || len(l.records) != 12 || s.failed() != nil {
		t.Errorf("%d at once, %d overlaps in a group, %d records, %v; want 2, 0, 12 and no error", most, overlaps, len(l.records), s.failed())
	}
}

// Each kind of fault has a name of its own, and a group.
func TestKindsAreDistinct(t *testing.T) {
	t.Parallel()
	all, long := kinds()
	seen := map[string]bool{}
	for _, f := range slices.Concat(all, long, clockKinds()) {
		if seen[f.kind] || f.kind == "" || f.inject == nil {
			t.Errorf("kind %q is there twice, or is nothing", f.kind)
		}
		seen[f.kind] = true
		switch f.group {
		case groupProcess, groupBroker, groupDatabase:
		default:
			t.Errorf("kind %q is in group %q", f.kind, f.group)
		}
	}
}
