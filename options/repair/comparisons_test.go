package repair

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/pg/pgtest"
)

// One process compares a slice at a time, and the next slice begins behind it. The result of a
// slice that another process has claimed since does not count. After a pass, the next pass waits.
func TestComparisonIsSharedByProcesses(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	c := comparisonsIn(pool)
	const hour = time.Hour
	claim := func(lease time.Duration, want bool) slice {
		t.Helper()
		next, ok, err := c.claim(t.Context(), "order", lease)
		if err != nil || ok != want {
			t.Fatalf("claim() = %+v, %t, %v, want %t", next, ok, err, want)
		}
		return next
	}
	save := func(slice slice, result compared, want bool) {
		t.Helper()
		if saved, err := c.save(t.Context(), slice, result, hour); err != nil || saved != want {
			t.Fatalf("save(%+v) = %t, %v, want %t", slice, saved, err, want)
		}
	}
	due := func() {
		t.Helper()
		pgtest.Execute(t, pool, "UPDATE video_catalog_read.comparisons SET next_time = now()")
	}
	read := func() (differences, last int, waits bool) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), "SELECT differences, last_differences, next_time > now() + interval '50 minutes' FROM video_catalog_read.comparisons").
			Scan(&differences, &last, &waits); err != nil {
			t.Fatal(err)
		}
		return differences, last, waits
	}
	two := make([]difference, 2)
	middle := uuid.New()

	late := claim(hour, true)
	claim(hour, false) // it is being compared
	if late.after != uuid.Nil {
		t.Errorf("the first slice begins behind %s, want at the begin", late.after)
	}
	due() // the process has died, or is late
	slice := claim(0, true)
	save(late, compared{upTo: uuid.Max, rows: 9, differences: two}, false)
	save(slice, compared{upTo: middle, rows: 10, differences: two}, true)
	if differences, last, _ := read(); differences != 2 || last != 0 {
		t.Errorf("differences of the pass and the last one = %d, %d, want 2, 0", differences, last)
	}
	slice = claim(0, true)
	if slice.after != middle {
		t.Errorf("the second slice begins behind %s, want %s", slice.after, middle)
	}
	save(slice, compared{upTo: uuid.Max, rows: 5, differences: two[:1]}, true)
	if differences, last, waits := read(); differences != 0 || last != 3 || !waits {
		t.Errorf("differences of the pass and the last one = %d, %d, the next one waits: %t, want 0, 3, true", differences, last, waits)
	}
	claim(0, false) // the pass began less than an hour ago
	due()
	if slice = claim(0, true); slice.after != uuid.Nil {
		t.Errorf("the next pass begins behind %s, want at the begin", slice.after)
	}
	save(slice, compared{upTo: uuid.Max, rows: 15}, true)
	if _, last, _ := read(); last != 0 {
		t.Errorf("differences of the last pass = %d, want none", last)
	}
}
