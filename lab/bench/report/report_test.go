package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const sample = `goos: linux
cores: 2
profile: tiny
commit: 1234567

BenchmarkDrain/peer=ours/sink=none/instances=1/payload=500 100 400 events/s 3 cpu-s/Mevent 0 out-of-order 0 duplicates
BenchmarkDrain/peer=naive/sink=none/instances=1/payload=500 100 10 events/s 60 cpu-s/Mevent 0 out-of-order 0 duplicates
BenchmarkDrain/peer=ours/sink=none/instances=1/payload=500 100 100 events/s 3 cpu-s/Mevent 0 out-of-order 0 duplicates
BenchmarkDrain/peer=naive/sink=none/instances=1/payload=500 100 5 events/s 90 cpu-s/Mevent 2 out-of-order 0 duplicates
BenchmarkLatency/peer=ours/sink=none/instances=1/rate=1000 2000 0.25 p50-commit-to-sent-ms 2 p99-commit-to-sent-ms 900 cpu-s/Mevent 1500 WAL-B/event 0 out-of-order 3 duplicates
BenchmarkLatency/peer=ours/sink=pubsub/instances=4/rate=50 100 1.25 p50-commit-to-sent-ms 7 p99-commit-to-sent-ms
BenchmarkModeWAL-2   	       1	40123456789 ns/op	         1.5 ms-to-sent-ratio
ok  	example.com/videocatalog/options/wal	42.1s
`

func sampleResults(t *testing.T) *results {
	t.Helper()
	file := filepath.Join(t.TempDir(), "results.txt")
	if err := os.WriteFile(file, []byte(sample), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := load(file)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A ratio is the median of the ratios of each round: 40 and 20, so 30. It is not the ratio of the
// medians.
func TestRatiosAreOfTheSameRound(t *testing.T) {
	r := sampleResults(t)
	got, ok := r.ratio(drainName("ours", "none", 1), drainName("naive", "none", 1), "events/s")
	if want := 30.0; !ok || got != want {
		t.Errorf("ratio() = %v, %t, want %v, true", got, ok, want)
	}
	if _, ok := r.ratio(drainName("ours", "none", 1), drainName("watermill", "none", 1), "events/s"); ok {
		t.Error("ratio() to what was not measured is known")
	}
}

// A target is met, missed, or not measured. It may be an upper bound.
func TestTargetsTellWhetherTheyAreMet(t *testing.T) {
	for _, test := range []struct {
		target target
		want   string
	}{
		{target{turns: []float64{40}, limit: 40}, "met"},
		{target{turns: []float64{30, 40, 60}, limit: 40}, "met"},
		{target{turns: []float64{39}, limit: 40}, "**not met**"},
		{target{turns: []float64{0.5}, limit: 0.5, atMost: true}, "met"},
		{target{turns: []float64{0.6}, limit: 0.5, atMost: true}, "**not met**"},
		{target{limit: 1}, "not measured"},
		{target{turns: []float64{39, 41, 42, 43, 44, 45}, limit: 40}, "undecided"},
		{target{turns: []float64{41, 42, 43, 44, 45, 46}, limit: 40}, "met"},
		{target{turns: []float64{1, 2, 3, 4, 5, 6}, limit: 40}, "**not met**"},
	} {
		if got := test.target.row()[4]; got != test.want {
			t.Errorf("verdict of %+v: %q, want %q", test.target, got, test.want)
		}
	}
	for _, test := range []struct {
		turns []float64
		want  string
	}{
		{[]float64{1, 2, 3, 4, 9}, "1–9"},
		{[]float64{9, 4, 3, 2, 1, 6, 5, 8, 7, 10}, "2–9, 95 %"},
	} {
		if got := spread(test.turns); got != test.want {
			t.Errorf("spread(%v) = %q, want %q", test.turns, got, test.want)
		}
	}
	want := []string{"drain", "40 ×", "30–60", "≥ 50 ×", "**not met**"}
	if got := (target{what: "drain", turns: []float64{40, 60, 30}, limit: 50, unit: " ×"}).row(); !slices.Equal(got, want) {
		t.Errorf("row = %q, want %q", got, want)
	}
}

// The page has the figures, and events out of order even if only one turn had them.
func TestMarkdownHasTheFigures(t *testing.T) {
	page := markdown(sampleResults(t))
	for _, want := range []string{"of commit 1234567, with 2 cores", "| ours | 250 | 30 |", "| naive | 7.5 | 1 |", "| 2 | 0 |", "| commit → sent at 1,000/s, no-op sink, p50 | 0.25 ms | 0.25–0.25 | ≤ 0.5 ms | met |", "| append → sent at 1,000/s, p50: mode wal ÷ lanes | 1.5 × | 1.5–1.5 | ≤ 2 × | met |", "| ours | 0.25 | 2 | 900 | 1500 | 0 | 3 |", "| ours | – / – | – / – | – / – | – / – | 1.25 / 7 |"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q:\n%s", want, page)
		}
	}
}

// Only the text between the marks is replaced. A document without marks is refused.
func TestReplaceKeepsTheRest(t *testing.T) {
	got, err := replace("a\n"+beginMark+"old\n"+endMark+"b\n", "new\n")
	if want := "a\n" + beginMark + "\nnew\n\n" + endMark + "b\n"; err != nil || got != want {
		t.Errorf("replace() = %q, %v, want %q", got, err, want)
	}
	if _, err := replace("a\n", "new\n"); err == nil {
		t.Error("replace() of a document without marks: no error")
	}
}

// Numbers have at most three significant digits. From 1000 to 9994 they are integers.
func TestShort(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.0123: "0.0123", 0.5: "0.5", 1: "1", 12.34: "12.3", 999: "999", 7568: "7568", 33320: "33.3k", 999_600: "1M", 1_500_000: "1.5M"} {
		if got := short(v); got != want {
			t.Errorf("short(%v) = %q, want %q", v, got, want)
		}
	}
}
