package chaos

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"
)

// Print writes the summary that a person reads.
func (r Report) Print(w io.Writer) error {
	f := r.Figures
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(table, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	fmt.Fprintln(w)
	row("seed", "%d", r.Seed)
	row("took", "%s", r.Took.Round(time.Second))
	row("older binary", "%s", r.Older)
	row("faults", "%d of %d kinds", f.Faults, len(f.FaultsByKind))
	row("commands", "%d: %d acknowledged, %d failed, %d unknown", f.Commands, f.Acknowledged, f.Failed, f.Unknown)
	for _, code := range slices.Sorted(maps.Keys(r.Answers)) {
		row("", "%d attempts answered %s", r.Answers[code], code)
	}
	row("videos, events", "%d, %d", f.Videos, f.Events)
	row("messages", "%d published, of which %d duplicates (after one fault alone at most %d), delivered %d times to the checker",
		f.Messages, f.Duplicates, f.MostRepeated, f.Deliveries)
	row("catalog", "%d changes seen by watchers, whose streams broke %d times; %d own writes read", f.Changes, f.Breaks, f.Reads)
	for _, g := range r.Routines {
		row("goroutines", "%s: %d after %s, %d when fresh", g.Process, g.Found, g.Age.Round(time.Second), g.Fresh)
	}
	if r.LeftOut != "" {
		row("left out", "%s", r.LeftOut)
	}
	row("slowest stop", "%s", r.Stop.Round(time.Millisecond))
	for _, target := range []struct {
		name  string
		rules []Rule
	}{
		{"lost", []Rule{CommandLost, RowWithoutEvent, EventLost, EventNotConsumed}},
		{"out of order", []Rule{OutOfOrder}},
		{"rows different", []Rule{ProjectionDiffers, RowDiffers, EventWithoutRow, EntryWrong, WatchDiffers}},
		{"leaks", []Rule{ConnectionLeaked, GoroutineLeaked, StuckLease, StuckBlocked, StuckPending}},
	} {
		n := 0
		for _, rule := range target.rules {
			n += r.Counts[rule]
		}
		row(target.name, "%d (target 0)", n)
	}
	row("takeover", "worst of %d: %s (target %s)", f.Takeovers, f.WorstTakeover.Round(time.Millisecond), r.Targets.Takeover)
	row("", "after the clock of the database was set, worst of %d: %s (target %s)", f.Clocks, f.WorstClock.Round(time.Millisecond), r.Targets.Clock)
	row("after outages", "first publish, worst of %d: %s (target %s)", f.Outages, f.WorstOutage.Round(time.Millisecond), r.Targets.FirstResult)
	row("", "first event in the catalog: %s", f.WorstCatalog.Round(time.Millisecond))
	if err := table.Flush(); err != nil {
		return err
	}
	for _, m := range r.Misses {
		fmt.Fprintf(w, "TOO SLOW  %s (%s): %s, target %s\n", m.Fault.Kind, cmp.Or(m.Fault.Target, "all"), m.Took.Round(time.Millisecond), m.Target)
	}
	for _, v := range r.Violations {
		fmt.Fprintf(w, "BROKEN    %s: %s\n", v.Rule, v.Detail)
	}
	for rule, n := range r.Counts {
		if n > detailsPerRule {
			fmt.Fprintf(w, "BROKEN    %s: %d times in all\n", rule, n)
		}
	}
	if r.OK() {
		fmt.Fprintln(w, "every promise was kept")
	}
	return nil
}
