package chaos

import (
	"bytes"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Faults of one group run one after the other. Faults of different groups overlap,
// two at a time.
func TestSchedulerKeepsGroupsApart(t *testing.T) {
	t.Parallel()
	l := &lab{timeline: &timeline{to: new(bytes.Buffer)}}
	s := newScheduler(t.Context(), l)
	var mu sync.Mutex
	active, most, overlaps := map[string]int{}, 0, 0
	for n := range 12 {
		group := []string{groupProcess, groupBroker, groupDatabase}[n%3]
		s.inject(fault{"fault", group, NoRecovery, func(_ context.Context, _ *lab, r *rand.Rand, record *FaultRecord) error {
			record.Target = group
			r.Uint64() // no other fault uses r; the race detector checks that
			mu.Lock()
			active[group]++
			all := active[groupProcess] + active[groupBroker] + active[groupDatabase]
			most = max(most, all)
			if active[group] > 1 {
				overlaps++
			}
			mu.Unlock()
			time.Sleep(400 * time.Millisecond) // longer than the pause before the next fault
			mu.Lock()
			defer mu.Unlock()
			active[group]--
			return nil
		}}, rand.New(rand.NewPCG(1, uint64(n))))
	}
	s.wait()
	for _, r := range l.records {
		if r.MayFail != (r.Target == groupDatabase) {
			t.Errorf("a fault of the group %s may let an API process fail: %t", r.Target, r.MayFail)
		}
	}
	if most != 2 || overlaps > 0 || len(l.records) != 12 || s.failed() != nil {
		t.Errorf("%d at once, %d overlaps in a group, %d records, %v; want 2, 0, 12 and no error", most, overlaps, len(l.records), s.failed())
	}
}

// Beside a command of an operator another fault occurs, in its own group. The seed
// decides which one.
func TestSchedulerDisturbsCommands(t *testing.T) {
	t.Parallel()
	kinds := func(seed uint64) (kinds []string) {
		l := &lab{timeline: &timeline{to: new(bytes.Buffer)}}
		s := newScheduler(t.Context(), l)
		nothing := func(context.Context, *lab, *rand.Rand, *FaultRecord) error { return nil }
		s.beside = []fault{{"a", groupProcess, NoRecovery, nothing}, {"b", groupBroker, NoRecovery, nothing}, {"c", groupDatabase, NoRecovery, nothing}}
		for i := range uint64(6) {
			s.inject(fault{"command", groupOperator, NoRecovery, nothing}, rand.New(rand.NewPCG(seed, i)))
			s.wait()
		}
		for _, record := range l.records {
			if record.Kind != "command" {
				kinds = append(kinds, record.Kind)
			}
		}
		return kinds
	}
	first := kinds(1)
	if again := kinds(1); len(first) != 6 || !slices.Equal(first, again) {
		t.Errorf("disturbed by %q, and by %q with the same seed, want 6 equal ones", first, again)
	}
	if slices.Equal(first, kinds(2)) {
		t.Errorf("disturbed by %q with another seed, too", first)
	}
}

// Pending events are stuck if they stay for stuckAfter. They are not if the
// database was unreachable for a time, or the run was ended.
func TestStuck(t *testing.T) {
	t.Parallel()
	stays := func(ctx context.Context, deadline time.Time) bool { sleep(ctx, time.Until(deadline)); return false }
	for _, tt := range []struct {
		name    string
		drained func(ctx context.Context, deadline time.Time) bool
		after   time.Duration // time until the run is ended
		want    bool
	}{
		{"published", func(context.Context, time.Time) bool { return true }, time.Hour, false},
		{"published late", func(ctx context.Context, deadline time.Time) bool {
			return sleep(ctx, stuckAfter-time.Second) && time.Now().Before(deadline)
		}, time.Hour, false},
		{"stays", stays, time.Hour, true},
		{"stays, and the run is ended", stays, time.Second, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), tt.after)
				defer cancel()
				if got := stuck(ctx, tt.drained); got != tt.want {
					t.Errorf("stuck() = %t, want %t", got, tt.want)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		back := time.Now().Add(stuckAfter / 2)
		if stuck(t.Context(), func(context.Context, time.Time) bool { return time.Now().After(back) }) {
			t.Error("stuck() = true of a database that did not answer for a while")
		}
	})
}

// It is a stall if the lab lost half of the request timeout, but not if it
// was woken a little late.
func TestStalled(t *testing.T) {
	t.Parallel()
	at := time.Now()
	for _, tt := range []struct {
		gap  time.Duration
		want bool
	}{{stallPulse, false}, {stallPulse + requestTimeout/2, false}, {stallPulse + requestTimeout/2 + 1, true}, {requestTimeout, true}} {
		if got := stalled(at, at.Add(tt.gap)); got != tt.want {
			t.Errorf("stalled() after %s = %t, want %t", tt.gap, got, tt.want)
		}
	}
}

// A kind of fault that has not taken effect is tried again, up to three times.
// Others are not.
func TestSchedulerInsists(t *testing.T) {
	t.Parallel()
	l := &lab{timeline: &timeline{to: new(bytes.Buffer)}}
	s := newScheduler(t.Context(), l)
	tried := map[string]int{}
	var all []fault
	for kind, comesWith := range map[string]int{"at once": 1, "at last": 3, "never": 100} {
		all = append(all, fault{kind, groupProcess, NoRecovery, func(_ context.Context, _ *lab, _ *rand.Rand, record *FaultRecord) error {
			if tried[kind]++; tried[kind] < comesWith {
				record.Missing = "nobody was there"
			}
			return nil
		}})
	}
	draw := func() *rand.Rand { return rand.New(rand.NewPCG(1, 1)) }
	for _, f := range all {
		s.inject(f, draw())
	}
	s.insist(all, draw)
	if want := map[string]int{"at once": 1, "at last": 3, "never": 4}; !maps.Equal(tried, want) {
		t.Errorf("tried %v, want %v", tried, want)
	}
}

// A fault that does not take effect says so in its record. It may still cause
// duplicates.
func TestFaultsSayWhatIsMissing(t *testing.T) {
	t.Parallel()
	p, problems := script(t, waits, 0)
	p.role = rolePublisher
	if err := p.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer p.kill()
	l := &lab{timeline: p.timeline, load: &load{}, publishers: []*process{p}}
	first := p.running()
	for _, tt := range []struct {
		inject    func(context.Context, *lab, *rand.Rand, *FaultRecord) error
		want      string
		mayRepeat int
	}{
		{poison, "no video to refuse", 0},
		{killAt(publishers, "outbox/claimed"), "point not reached", 2 * inHand},
	} {
		var record FaultRecord
		if err := tt.inject(t.Context(), l, rand.New(rand.NewPCG(1, 1)), &record); err != nil {
			t.Fatal(err)
		}
		if record.Missing != tt.want || record.MayRepeat != tt.mayRepeat {
			t.Errorf("%q is missing, may repeat %d; want %q, %d", record.Missing, record.MayRepeat, tt.want, tt.mayRepeat)
		}
	}
	if p.running() == first || len(problems()) > 0 {
		t.Errorf("it was not killed and started again; problems: %q", problems())
	}
}

// Each kind of fault has a unique name and a group.
func TestKindsAreDistinct(t *testing.T) {
	t.Parallel()
	all, long := kinds()
	seen := map[string]bool{}
	for _, f := range disturbances() {
		if !slices.Contains(Kinds(), f.kind) || f.recovery != NoRecovery {
			t.Errorf("beside commands there is %q, recovery %q, want a known fault that is not measured", f.kind, f.recovery)
		}
	}
	for _, f := range slices.Concat(all, long) {
		if seen[f.kind] || f.kind == "" || f.inject == nil {
			t.Errorf("kind %q is there twice, or is nothing", f.kind)
		}
		seen[f.kind] = true
		switch f.group {
		case groupProcess, groupBroker, groupDatabase, groupOperator:
		default:
			t.Errorf("kind %q is in group %q", f.kind, f.group)
		}
		if !slices.Contains(Kinds(), f.kind) {
			t.Errorf("Kinds() lacks %q", f.kind)
		}
	}
}
