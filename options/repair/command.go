package repair

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/operate"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/options/repair/internal/sqlcgen"
)

const (
	// commandRate and commandWait are the rate and the wait of a comparison by command, for
	// which a person waits.
	commandRate = 50_000
	commandWait = 10 * time.Second
	// compareRows is how many rows are compared before their differences are shown.
	compareRows = 100_000
	// A comparison of a projection by command stops after commandDifferences differences.
	commandDifferences = 10_000
)

// usage is the error for arguments that form no known command.
var usage = app.UsageError(errors.New("want projection compare [TYPE [ID...]], projection repair TYPE ID... or projection repair --all: try `server projection --help`"))

// runProjection compares and repairs projections.
func runProjection(ctx context.Context, process *app.Process, args []string, stdout io.Writer) error {
	if len(args) == 0 {
		return usage
	}
	var everything bool
	o, err := operate.ParseOperation(args[1:], func(flags *flag.FlagSet) { flags.BoolVar(&everything, "all", false, "") })
	if err != nil {
		return app.UsageError(fmt.Errorf("projection %s: %w", args[0], err))
	}
	if err := process.OpenCommandSide(ctx); err != nil {
		return err
	}
	if err := process.OpenQuerySide(ctx); err != nil {
		return err
	}
	projections := all(process.CommandPool, process.QueryPool)
	some, ids, err := selected(projections, o.Args)
	switch {
	case err != nil:
		return app.UsageError(err)
	case args[0] == "compare" && !everything:
		return compareEntries(ctx, comparisonsIn(process.QueryPool), some, ids, o, stdout)
	case args[0] == "repair" && everything && len(o.Args) == 0:
		return repairEverything(ctx, process, projections, o, stdout)
	case args[0] == "repair" && !everything && len(ids) > 0:
		return repairAndReport(ctx, some, ids, o, stdout)
	}
	return usage
}

// selected reads the arguments [TYPE [ID...]]. Without a type it returns all projections, of which
// there must be some: a comparison of nothing would look like a success.
func selected(projections []projection, args []string) (some []projection, ids []uuid.UUID, err error) {
	if len(projections) == 0 {
		return nil, nil, errors.New("there is nothing to compare: this service lists no projection in options/repair/projections.go")
	}
	if len(args) == 0 {
		return projections, nil, nil
	}
	var types []string
	for _, p := range projections {
		name := p.source(false).name
		if types = append(types, name); name == args[0] {
			some = []projection{p}
		}
	}
	if some == nil {
		return nil, nil, fmt.Errorf("TYPE %q must be an aggregate type with a projection: %s", args[0], strings.Join(types, ", "))
	}
	for _, text := range args[1:] {
		id, err := uuid.Parse(text)
		if err != nil {
			return nil, nil, fmt.Errorf("ID %q must be a UUID", text)
		}
		ids = append(ids, id)
	}
	return some, ids, nil
}

// summary is the result of a comparison of a type.
type summary struct {
	Type        string         `json:"type"`
	Compared    int64          `json:"compared"`
	Differences int64          `json:"differences"`
	Kinds       map[kind]int64 `json:"kinds"`
	Pending     int64          `json:"pending"`
	Recorded    bool           `json:"recorded"` // for the console and the metrics
	// Stopped is the id at which the comparison has stopped, because of too many differences.
	Stopped *uuid.UUID `json:"stopped,omitempty"`
}

// compareEntries shows the differences of projections, or of some ids of one projection. It records a comparison
// of all rows, if the user may.
func compareEntries(ctx context.Context, past comparisons, projections []projection, ids []uuid.UUID, o operate.Operation, stdout io.Writer) error {
	if len(ids) > 0 {
		unknown, err := projections[0].unknown(ctx, ids)
		if err != nil {
			return err
		}
		if len(unknown) > 0 {
			return problem.Errorf(problem.NotFound, "neither the projection nor its owner has %s", unknown)
		}
	}
	out := operate.NewPrinter(stdout, o.JSON)
	out.Line("TYPE\tID\tKIND\tOWNER_VERSION\tVERSION\tFIELDS")
	sums := make([]summary, len(projections))
	var found int64
	for i, p := range projections {
		var err error
		if sums[i], err = compareProjection(ctx, p, ids, out); err != nil {
			return err
		}
		found += sums[i].Differences
	}
	for _, sum := range sums {
		out.Line("%s: compared %d rows: %s; %d wait for their event in the outbox", sum.Type, sum.Compared, kindsText(sum.Kinds), sum.Pending)
		if sum.Stopped != nil {
			out.Line("stopped at %s, because so many differ: run `server projection repair --all --why WHY`", sum.Stopped)
		}
		if len(ids) == 0 {
			var err error
			if sum.Recorded, err = past.record(ctx, sum); err != nil {
				return err
			}
			if !sum.Recorded {
				out.Line("not recorded: this user may only read, so the console and the metrics do not have this result")
			}
		}
		out.Row(sum)
	}
	if err := out.End(); err != nil || found == 0 {
		return err
	}
	return app.ErrDiffers
}

// compareProjection prints the differences of a projection, sorted by id.
func compareProjection(ctx context.Context, p projection, ids []uuid.UUID, out *operate.Printer) (summary, error) {
	c := comparison{source: p.source(false), rate: commandRate, wait: commandWait, beat: func() {}}
	sum := summary{Type: c.name, Kinds: make(map[kind]int64)}
	for after := uuid.Nil; after != uuid.Max; {
		var result compared
		var err error
		if len(ids) > 0 {
			result, err = c.compareIDs(ctx, inOrder(ids))
		} else {
			result, err = c.compare(ctx, after, compareRows)
		}
		if err != nil {
			return sum, err
		}
		slices.SortFunc(result.differences, func(a, b difference) int { return compareIDs(a.ID, b.ID) })
		for _, d := range result.differences {
			sum.Kinds[d.Kind]++
			out.Row(d, d.Type, d.ID.String(), string(d.Kind), strconv.FormatInt(d.OwnerVersion, 10), strconv.FormatInt(d.Version, 10),
				cmp.Or(strings.Join(d.Fields, ","), "-"))
		}
		sum.Compared += result.rows
		sum.Pending += result.pending
		sum.Differences += int64(len(result.differences))
		if after = result.upTo; sum.Differences >= commandDifferences && after != uuid.Max {
			sum.Stopped = &after
			break
		}
	}
	return sum, nil
}

// kindsText returns how many entries there are of each kind.
func kindsText(counts map[kind]int64) string {
	texts := make([]string, len(kinds))
	for i, k := range kinds {
		texts[i] = fmt.Sprintf("%s %d", k, counts[k])
	}
	return strings.Join(texts, ", ")
}

// repairAndReport repairs the given ids of one projection, or, without ids, all differing entries.
func repairAndReport(ctx context.Context, projections []projection, ids []uuid.UUID, o operate.Operation, stdout io.Writer) error {
	for _, p := range projections {
		r, failure := repair(ctx, p, ids, o)
		if failure != nil && r.Done == 0 {
			return failure
		}
		out := operate.NewPrinter(stdout, o.JSON)
		if len(ids) == 0 && failure == nil {
			out.Line("%s: compared %d rows: %s", r.Type, r.Compared, kindsText(r.Kinds))
		}
		for _, id := range r.Failed {
			out.Line("%s is changed all the time: compare it again", id)
		}
		if r.Done == 0 {
			r.ActionID = uuid.Nil
			out.Line("%d entries of %s match; nothing was changed", r.Matched, r.Type)
		} else {
			out.Line("repaired %d of %d entries of %s; action %s", r.Done, r.Matched, r.Type, r.ActionID)
		}
		out.Row(r)
		if r.Failures > 0 {
			failure = errors.Join(failure, operate.ErrPartly)
		}
		if err := errors.Join(out.End(), failure); err != nil {
			return err
		}
	}
	return nil
}

// repairEverything repairs all projections. Then it records the databases as known, as after a
// failover, unless this service has a projection that cannot be compared with its owner. It
// identifies the databases first: one that fails over during the repair stays unknown.
func repairEverything(ctx context.Context, process *app.Process, projections []projection, o operate.Operation, stdout io.Writer) error {
	if o.DryRun { // it records nothing
		return repairAndReport(ctx, projections, nil, o, stdout)
	}
	both := databasesOf(process)
	for _, d := range both {
		if err := d.find(ctx); err != nil {
			return err
		}
	}
	if err := repairAndReport(ctx, projections, nil, o, stdout); err != nil {
		return err
	}
	covered := make(map[string]bool)
	for _, p := range projections { // events may have repaired what the last comparison has found
		name := p.source(false).name
		covered[name] = true
		if err := sqlcgen.New(process.QueryPool).RestartComparison(ctx, name); err != nil {
			return err
		}
	}
	out := operate.NewPrinter(stdout, o.JSON)
	if slices.ContainsFunc(process.Registered, func(r app.Registration) bool { return len(r.Subscriptions) > 0 && !covered[r.AggregateType] }) {
		note := "a projection of this service cannot be compared with its owner: see options/repair/failover.md about `server databases accept`"
		out.Row(map[string]string{"note": note}, note)
		return out.End()
	}
	entry, err := o.Entry(actionAccept, struct{}{})
	for _, d := range both {
		if err == nil {
			err = d.accept(ctx, entry)
		}
		if d.Changed {
			d.print(out)
		}
	}
	return errors.Join(out.End(), err)
}
