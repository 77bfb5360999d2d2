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

// The minimum numbers for a meaningful long run.
const (
	longFaults = 1_000
	longEvents = 1_000_000
)

// enough reports whether at least nine of ten faults of a kind were measured.
// Then the slowest recovery is meaningful.
func enough(measured, of int) bool { return measured > 0 && 10*measured >= 9*of }

// Goal is a target, and the result of the run.
type Goal struct {
	Name   string `json:"name"`
	Got    string `json:"got"`
	Target string `json:"target"`
	Met    bool   `json:"met"`
}

// goals compares the run with its targets. Those for its size are for long runs only.
func (r Report) goals() (goals []Goal) {
	f := r.Figures
	if r.Long {
		goals = append(goals,
			Goal{"faults", fmt.Sprint(f.Faults), fmt.Sprintf("at least %d", longFaults), f.Faults >= longFaults},
			Goal{"events", fmt.Sprint(f.Events), fmt.Sprintf("at least %d", longEvents), f.Events >= longEvents})
	}
	for _, g := range []struct {
		name  string
		rules []Rule
	}{
		{"lost", []Rule{CommandLost, RowWithoutEvent, EventLost, EventErased, EventNotConsumed, MessageUnheard}},
		{"out of order", []Rule{OutOfOrder}},
		{"rows different", []Rule{ProjectionDiffers, RowDiffers, EventWithoutRow, EntryWrong, WatchDiffers}},
		{"leaks", []Rule{ConnectionLeaked, HandsNotEmpty, GoroutineLeaked, StuckLease, StuckBlocked, StuckPending, LaneStays, NotCounted, LeftOver}},
	} {
		n := 0
		for _, rule := range g.rules {
			n += r.Counts[rule]
		}
		goals = append(goals, Goal{g.name, fmt.Sprint(n), "0", n == 0})
	}
	recovery := func(name string, kind Recovery, measured, of int, worst, target time.Duration) {
		met := enough(measured, of) && !slices.ContainsFunc(r.Misses, func(m Miss) bool { return m.Of == kind }) && (kind != Back || r.Counts[NotBack] == 0)
		goals = append(goals, Goal{name, fmt.Sprintf("measured %d of %d, worst %s", measured, of, worst.Round(time.Millisecond)), "at most " + target.String(), met})
	}
	recovery("takeover", Takeover, f.Takeovers, f.OfTakeovers, f.WorstTakeover, r.Targets.Takeover)
	recovery("first publish after outages", Outage, f.Outages, f.OfOutages, f.WorstOutage, r.Targets.FirstResult)
	recovery("first event in the catalog after outages", Catalog, f.Outages, f.OfOutages, f.WorstCatalog, r.Targets.Catalog)
	recovery("every process at work after a fault", Back, f.Backs, f.OfBacks, f.WorstBack, r.Targets.Back)
	return goals
}

// Unchecked returns what the run should have checked, but did not. A run in
// which nothing happens breaks no rule, either.
func (r Report) Unchecked() (unchecked []string) {
	f := r.Figures
	for _, look := range []struct {
		what string
		n    int
	}{
		{"commands acknowledged", f.Acknowledged}, {"events", f.Events}, {"messages heard", f.Messages}, {"own writes read", f.Reads},
		{"videos purged", f.Purges},
		{"changes watched", f.Changes}, {"faults injected", f.Faults}, {"takeovers of something unsettled", f.LeftBehind},
		{"looks at leases", r.LeaseLooks}, {"processes whose connections were counted", len(r.Connections)},
		{"processes whose goroutines were counted", len(r.Routines)},
	} {
		if look.n == 0 {
			unchecked = append(unchecked, "0 "+look.what)
		}
	}
	for _, recovery := range []struct {
		what         string
		measured, of int
	}{
		{"takeovers", f.Takeovers, f.OfTakeovers}, {"outages", f.Outages, f.OfOutages}, {"returns of every process", f.Backs, f.OfBacks},
	} {
		if recovery.measured == 0 || r.Long && !enough(recovery.measured, recovery.of) {
			unchecked = append(unchecked, fmt.Sprintf("%d of %d %s measured", recovery.measured, recovery.of, recovery.what))
		}
	}
	// A service that refuses everything breaks no rule, either.
	if 3*f.Acknowledged < 2*f.Commands {
		unchecked = append(unchecked, fmt.Sprintf("only %d of %d commands acknowledged", f.Acknowledged, f.Commands))
	}
	failed := 0
	for _, n := range r.Unread {
		failed += n
	}
	if f.Reads < 2*failed {
		unchecked = append(unchecked, fmt.Sprintf("only %d own writes read beside %d reads and streams that failed", f.Reads, failed))
	}
	for i, fault := range r.Injected {
		first := slices.IndexFunc(r.Injected, func(other FaultRecord) bool { return other.Kind == fault.Kind })
		if i == first && f.FaultsByKind[fault.Kind] == 0 {
			unchecked = append(unchecked, fmt.Sprintf("the fault %q: %s", fault.Kind, fault.Missing))
		}
	}
	return unchecked
}

// Print writes the summary of the report for a person.
func (r Report) Print(w io.Writer) error {
	f := r.Figures
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(table, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	fmt.Fprintln(w)
	row("seed", "%d", r.Seed)
	row("took", "%s", r.Took.Round(time.Second))
	row("older binary", "%s", cmp.Or(r.Older, "the present code, on a newer schema"))
	row("faults", "%d, of %d of %d kinds", f.Faults, len(f.FaultsByKind), len(Kinds(r.Broker)))
	row("commands", "%d: %d acknowledged, %d failed, %d unknown", f.Commands, f.Acknowledged, f.Failed, f.Unknown)
	for _, code := range slices.Sorted(maps.Keys(r.Answers)) {
		row("", "%d attempts got %s", r.Answers[code], code)
	}
	row("videos, events", "%d, %d", f.Videos, f.Events)
	row("messages", "%d published, of which %d duplicates (all faults together may cause %d; those that were alone %d, and did %d, one at most %d), delivered %d times to the checker",
		f.Messages, f.Duplicates, f.MayRepeat, f.OwnMayRepeat, f.OwnRepeated, f.MostRepeated, f.Deliveries)
	row("videos purged", "%d", f.Purges)
	row("catalog", "%d changes seen by watchers, whose streams broke %d times; %d own writes read", f.Changes, f.Breaks, f.Reads)
	for _, code := range slices.Sorted(maps.Keys(r.Unread)) {
		row("", "%d reads and streams got %s", r.Unread[code], code)
	}
	if f.Stalls > 0 {
		row("stalls of this machine", "%d, in which responses may have been too late", f.Stalls)
	}
	for _, g := range r.Routines {
		row("goroutines", "%s: %d after %s, %d when fresh", g.Process, g.Found, g.Age.Round(time.Second), g.Fresh)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Connections)) {
		row("connections", "%s: %d", cmp.Or(name, "others"), r.Connections[name])
	}
	row("slowest stop", "%s", r.Stop.Round(time.Millisecond))
	row("takeovers of something unsettled", "%d of %d", f.LeftBehind, f.Takeovers)
	for _, g := range r.goals() {
		outcome := "met"
		if !g.Met {
			outcome = "MISSED"
		}
		row(g.Name, "%s (target: %s; %s)", g.Got, g.Target, outcome)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, m := range r.Misses {
		took := m.Took.Round(time.Millisecond).String()
		if m.Never {
			took = "nothing came afterwards"
		}
		fmt.Fprintf(w, "TOO SLOW  %s (%s), %s: %s, target %s\n", m.Fault.Kind, cmp.Or(m.Fault.Target, "all"), m.Of, took, m.Target)
	}
	for _, fault := range r.Injected {
		switch {
		case fault.Missing != "":
			fmt.Fprintf(w, "NOT INJECTED  %s (%s): %s\n", fault.Kind, cmp.Or(fault.Target, "all"), fault.Missing)
		case fault.Recovery != NoRecovery && !fault.Alone:
			fmt.Fprintf(w, "NOT MEASURED  %s (%s): in the %s before it not all was published that waited, or nothing was\n", fault.Kind, cmp.Or(fault.Target, "all"), patience)
		}
	}
	for _, v := range r.Violations {
		fmt.Fprintf(w, "BROKEN    %s: %s\n", v.Rule, v.Detail)
	}
	for rule, n := range r.Counts {
		if n > detailsPerRule {
			fmt.Fprintf(w, "BROKEN    %s: %d times in all\n", rule, n)
		}
	}
	for _, unchecked := range r.Unchecked() {
		fmt.Fprintf(w, "UNCHECKED %s\n", unchecked)
	}
	if r.OK() {
		fmt.Fprintln(w, "every promise was kept")
	}
	return nil
}
