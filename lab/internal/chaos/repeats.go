package chaos

import (
	"slices"
	"time"
)

// window is a time in which events may be published once more, and how many.
type window struct {
	from, until time.Time
	allowed     int
}

// repeat is a publication that only a fault explains, such as a duplicate: its time,
// and the time of the publication before it.
type repeat struct {
	at, before time.Time
	rule       Rule // that is broken without a fault
}

// checkRepeats finds the cause of each duplicate: a fault or a stall of the machine.
// The duplicate must come within a lease and 2 s after the fault. The publication
// before it must be at most that long before the fault, because older ones were
// settled; in mode wal, where a crash forgets positions, a checkpoint longer. Overlapping faults share the number of duplicates that they allow. A
// fault that was alone must not exceed its own number.
func (c *checker) checkRepeats(repeats []repeat) {
	const look = 2 * time.Second
	var windows []window
	for i := range c.h.Faults {
		f := &c.h.Faults[i]
		until := f.Ended.Add(c.h.Limits.Lease + look)
		if f.MayRepeat > 0 {
			windows = append(windows, window{f.Struck, until, f.MayRepeat})
			c.verdict.Figures.MayRepeat += f.MayRepeat
		}
		if f.Alone {
			c.checkAlone(f, until, repeats)
		}
	}
	for _, s := range c.h.Stalls {
		windows = append(windows, window{s.From, s.Until.Add(c.h.Limits.Lease + look), s.MayRepeat})
		c.verdict.Figures.MayRepeat += s.MayRepeat
	}
	c.verdict.Figures.Stalls = len(c.h.Stalls)
	slices.SortFunc(windows, func(a, b window) int { return a.from.Compare(b.from) })
	var merged []window
	for _, w := range windows {
		if last := len(merged) - 1; last >= 0 && w.from.Before(merged[last].until) {
			merged[last].allowed += w.allowed
			if w.until.After(merged[last].until) {
				merged[last].until = w.until
			}
			continue
		}
		merged = append(merged, w)
	}
	counts, settled := make([]int, len(merged)), c.h.Limits.Lease+look+c.h.Limits.Unsaved
	for _, r := range repeats {
		in := func(w window) bool { return !r.at.Before(w.from) && r.at.Before(w.until) }
		// A publication long before the fault was settled when the fault began.
		caused := func(w window) bool { return in(w) && !r.before.Before(w.from.Add(-settled)) }
		if !slices.ContainsFunc(windows, caused) {
			c.broken(r.rule, "at %s, before that at %s", r.at.Format(time.RFC3339Nano), r.before.Format(time.RFC3339Nano))
			continue
		}
		i := slices.IndexFunc(merged, in)
		counts[i]++
	}
	for i, n := range counts {
		if n > merged[i].allowed {
			c.broken(TooManyDuplicates, "%d from %s to %s, allowed are %d", n,
				merged[i].from.Format(time.RFC3339Nano), merged[i].until.Format(time.RFC3339Nano), merged[i].allowed)
		}
	}
}

// checkAlone counts the duplicates of a fault that was alone: events published
// before it, and again because of it. When it began, everything of earlier faults
// was published. Events first published after it are no duplicates of this fault.
func (c *checker) checkAlone(f *FaultRecord, until time.Time, repeats []repeat) {
	for _, other := range c.h.Faults {
		if other.Struck.After(f.Struck) && other.Struck.Before(until) {
			until = other.Struck
		}
	}
	for _, r := range repeats {
		if r.before.Before(f.Struck) && !r.at.Before(f.Struck) && r.at.Before(until) {
			f.Repeated++
		}
	}
	allowed := f.MayRepeat
	for _, s := range c.h.Stalls {
		if s.From.Before(until) && s.Until.After(f.Struck) {
			allowed += s.MayRepeat
		}
	}
	if f.Repeated > allowed {
		c.broken(TooManyDuplicates, "%d after %s (%s) at %s, which was alone, allowed are %d", f.Repeated, f.Kind, f.Target, f.Struck.Format(time.RFC3339Nano), allowed)
	}
	figures := &c.verdict.Figures
	figures.OwnMayRepeat += f.MayRepeat
	figures.OwnRepeated += f.Repeated
	figures.MostRepeated = max(figures.MostRepeated, f.Repeated)
}
