package store_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/reconcile"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
)

// One process compares a slice at a time, and the next one goes on behind it. The result of
// a slice that another has claimed since does not count. A pass ends, and the next one waits.
func TestComparisonIsSharedByProcesses(t *testing.T) {
	t.Parallel()
	pool := storetest.Pool(t, 2)
	c := store.NewComparisons(pool)
	const hour = time.Hour
	claim := func(lease time.Duration, want bool) reconcile.Slice {
		t.Helper()
		slice, ok, err := c.Claim(t.Context(), "order", lease)
		if err != nil || ok != want {
			t.Fatalf("Claim() = %+v, %t, %v, want %t", slice, ok, err, want)
		}
		return slice
	}
	save := func(slice reconcile.Slice, result reconcile.Result, want bool) {
		t.Helper()
		if saved, err := c.Save(t.Context(), slice, result, hour); err != nil || saved != want {
			t.Fatalf("Save(%+v) = %t, %v, want %t", slice, saved, err, want)
		}
	}
	due := func() {
		t.Helper()
		if _, err := pool.Exec(t.Context(), "UPDATE video_catalog_read.comparisons SET next_time = now()"); err != nil {
			t.Fatal(err)
		}
	}
	read := func() (differences, last int, waits bool) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), "SELECT differences, last_differences, next_time > now() + interval '50 minutes' FROM video_catalog_read.comparisons").
			Scan(&differences, &last, &waits); err != nil {
			t.Fatal(err)
		}
		return differences, last, waits
	}
	two := make([]reconcile.Difference, 2)
	middle := newID(t)

	late := claim(hour, true)
	claim(hour, false) // it is being compared
	if late.After != uuid.Nil {
		t.Errorf("the first slice begins behind %s, want at the begin", late.After)
	}
	due() // the process has died, or is late
	slice := claim(0, true)
	save(late, reconcile.Result{UpTo: uuid.Max, Rows: 9, Differences: two}, false)
	save(slice, reconcile.Result{UpTo: middle, Rows: 10, Differences: two}, true)
	if differences, last, _ := read(); differences != 2 || last != 0 {
		t.Errorf("differences of the pass and the last one = %d, %d, want 2, 0", differences, last)
	}
	slice = claim(0, true)
	if slice.After != middle {
		t.Errorf("the second slice begins behind %s, want %s", slice.After, middle)
	}
	save(slice, reconcile.Result{UpTo: uuid.Max, Rows: 5, Differences: two[:1]}, true)
	if differences, last, waits := read(); differences != 0 || last != 3 || !waits {
		t.Errorf("differences of the pass and the last one = %d, %d, the next one waits: %t, want 0, 3, true", differences, last, waits)
	}
	claim(0, false) // the pass began less than an hour ago
	due()
	if slice = claim(0, true); slice.After != uuid.Nil {
		t.Errorf("the next pass begins behind %s, want at the begin", slice.After)
	}
	save(slice, reconcile.Result{UpTo: uuid.Max, Rows: 15}, true)
	if _, last, _ := read(); last != 0 {
		t.Errorf("differences of the last pass = %d, want none", last)
	}
}
