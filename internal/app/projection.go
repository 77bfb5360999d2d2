package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/reconcile"
	"example.com/videocatalog/internal/store"
)

// startComparison compares the projections with their owners in the background, if the
// process uses both sides.
func (i *instance) startComparison(context.Context) error {
	if i.database.commands == nil || i.database.queries == nil {
		return nil
	}
	commands, queries := i.database.commands.own, i.database.queries.own
	var sources []reconcile.Source
	for _, r := range i.registered {
		if r.Comparison != nil {
			sources = append(sources, r.Comparison(commands, queries).Source())
		}
	}
	progress := store.NewComparisons(queries)
	loop, err := reconcile.NewLoop(i.cfg.reconcile, sources, progress, i.log, i.tel.Meter(scope))
	if err != nil {
		return err
	}
	i.checks = append(i.checks, loop.Heartbeat().Check)
	i.tasks = append(i.tasks, loop.Run)
	if meter := i.tel.Meter(scope); meter != nil {
		return progress.Observe(meter)
	}
	return nil
}

// commandRate is how many rows per second an operator's comparison compares at most: somebody
// waits.
const commandRate = 50_000

// projections returns the projections that operators compare. The process must use both
// sides.
func projections(cfg config, registered []Registration, commands, queries *pgxpool.Pool) admin.Projections {
	cfg.reconcile.Rate = commandRate
	var all []admin.Projection
	for _, r := range registered {
		if r.Comparison != nil {
			all = append(all, r.Comparison(commands, queries))
		}
	}
	return admin.NewProjections(cfg.reconcile, all...)
}

// projectionCommand compares and repairs projections.
func projectionCommand(ctx context.Context, cfg config, args []string, stdout, stderr io.Writer) error {
	command, o, err := parseCommand("projection", args)
	if err != nil {
		return err
	}
	database, err := openDatabase(ctx, cfg, sides{commands: true, queries: true}, 0, nil)
	if err != nil {
		return err
	}
	defer database.close()
	filtered := o.Filter != (admin.Filter{}) || o.Kind != ""
	registered := cfg.program.Registrations(database.queries.own)
	p := projections(cfg, registered, database.commands.own, database.queries.own)
	types, ids, err := parseEntries(p, o)
	if err != nil {
		return err
	}
	o.Progress = newProgress(stderr, "entries", 0).show
	switch {
	case command == "compare" && !o.All:
		return compareEntries(ctx, p, types, ids, o, stdout)
	case command == "repair" && o.All && !filtered && len(o.args) == 0:
		return repairEverything(ctx, p, registered, database, o, stdout)
	case command == "repair" && o.All != (filtered || len(ids) > 0):
		return repairEntries(ctx, p, types, ids, o, stdout)
	case command == "repair":
		return usageError(errors.New("projection repair wants one of TYPE and at least one ID, --filter, and --all: try `server help`"))
	}
	return errUsage
}

// differenceKinds are those of a filter.
var differenceKinds = []string{string(reconcile.Missing), string(reconcile.Behind), string(reconcile.Ahead), string(reconcile.Different), string(reconcile.Extra)}

// parseEntries reads the arguments [TYPE [ID...]], or the filter in their place. Without a
// type it returns all.
func parseEntries(p admin.Projections, o operation) (types []string, ids []uuid.UUID, err error) {
	types = p.Types()
	args := o.args
	switch {
	case o.Kind != "" && !slices.Contains(differenceKinds, o.Kind):
		return nil, nil, usageError(fmt.Errorf("--filter: kind %q must be one of %s", o.Kind, strings.Join(differenceKinds, ", ")))
	case o.Filter != (admin.Filter{}) && len(args) > 0:
		return nil, nil, usageError(errors.New("--filter: type and id must not be there with the arguments TYPE and ID"))
	case o.Filter.ID != "" && o.Filter.Type == "":
		return nil, nil, usageError(errors.New("--filter: id must be there with its type"))
	case o.Filter.Type != "":
		if args = []string{o.Filter.Type}; o.Filter.ID != "" {
			args = append(args, o.Filter.ID)
		}
	}
	if len(args) == 0 {
		return types, nil, nil
	}
	if !slices.Contains(types, args[0]) {
		return nil, nil, usageError(fmt.Errorf("TYPE %q must be an aggregate type with a projection: %s", args[0], strings.Join(types, ", ")))
	}
	for _, text := range args[1:] {
		id, err := uuid.Parse(text)
		if err != nil {
			return nil, nil, usageError(fmt.Errorf("ID %q must be a UUID", text))
		}
		ids = append(ids, id)
	}
	return args[:1], ids, nil
}

// commandDifferences is after how many differences a comparison by command stops.
const commandDifferences = 10_000

// summary is what a comparison of a type says at its end.
type summary struct {
	Type        string `json:"type"`
	Compared    int64  `json:"compared"`
	Differences int64  `json:"differences"`
	Pending     int64  `json:"pending"`
	// Stopped is where the comparison has stopped, because of too many differences.
	Stopped *uuid.UUID `json:"stopped,omitempty"`
}

// compareEntries shows the differences of some types, or of some ids of one type.
func compareEntries(ctx context.Context, p admin.Projections, types []string, ids []uuid.UUID, o operation, stdout io.Writer) error {
	out := NewPrinter(stdout, o.json, "TYPE", "ID", "KIND", "OWNER_VERSION", "VERSION", "FIELDS")
	sums := make([]summary, 0, len(types))
	var found int64
	for _, name := range types {
		sum := summary{Type: name}
		for after := uuid.Nil; after != uuid.Max && sum.Stopped == nil; {
			result, err := p.Compare(ctx, name, ids, after)
			if err != nil {
				return err
			}
			result.Differences = admin.OfKind(result.Differences, o.Kind)
			for _, d := range result.Differences {
				out.Row(d, d.Type, d.ID.String(), string(d.Kind), strconv.FormatInt(d.OwnerVersion, 10), strconv.FormatInt(d.Version, 10),
					cmp.Or(strings.Join(d.Fields, ","), "-"))
			}
			sum.Compared += result.Rows
			sum.Pending += result.Pending
			sum.Differences += int64(len(result.Differences))
			after = result.UpTo
			if sum.Differences >= commandDifferences && after != uuid.Max {
				sum.Stopped = &result.UpTo
			}
		}
		sums = append(sums, sum)
		found += sum.Differences
	}
	for _, sum := range sums {
		out.Line("%s: compared %d rows; %d differ, %d wait for their event in the outbox", sum.Type, sum.Compared, sum.Differences, sum.Pending)
		if sum.Stopped != nil {
			out.Line("stopped at %s, because so many differ: run `server projection repair --all`", sum.Stopped)
		}
		out.Row(sum)
	}
	if err := out.End(); err != nil {
		return err
	}
	if found > 0 {
		return ErrDiffers
	}
	return nil
}

// repairEntries repairs the given ids of a type, or all that differ of some types.
func repairEntries(ctx context.Context, p admin.Projections, types []string, ids []uuid.UUID, o operation, stdout io.Writer) error {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = id.String()
	}
	o.All = false
	for _, name := range types {
		o.Filter = admin.Filter{Type: name, ID: strings.Join(texts, ",")}
		items := "entries"
		if len(ids) == 0 {
			items += " of " + name
		}
		result, failure := p.Repair(ctx, o.Request)
		out := NewPrinter(stdout, o.json)
		if len(ids) == 0 && failure == nil {
			out.Line("%s: compared %d rows: %s", name, result.Compared, kindsText(result.Kinds))
		}
		if err := o.reportTo(out, "repaired", items, result.Result, result, failure); err != nil {
			return err
		}
	}
	return nil
}

// kindsText says how many entries differed in which way.
func kindsText(kinds map[reconcile.Kind]int64) string {
	texts := make([]string, len(differenceKinds))
	for i, kind := range differenceKinds {
		texts[i] = fmt.Sprintf("%s %d", kind, kinds[reconcile.Kind(kind)])
	}
	return strings.Join(texts, ", ")
}

// repairEverything repairs all projections. Then it records the databases as known, as after
// a failover, unless this service has a projection that cannot be compared with its owner. It
// identifies the databases first: one that fails over during the repair stays unknown.
func repairEverything(ctx context.Context, p admin.Projections, registered []Registration, database database, o operation, stdout io.Writer) error {
	if o.DryRun { // a person who may only look cannot identify the databases
		return repairEntries(ctx, p, p.Types(), nil, o, stdout)
	}
	both := identities(database)
	for _, side := range both {
		if err := side.find(ctx); err != nil {
			return err
		}
	}
	if err := repairEntries(ctx, p, p.Types(), nil, o, stdout); err != nil {
		return err
	}
	for _, name := range p.Types() { // what a comparison has found may be repaired by events
		if err := store.NewComparisons(database.queries.own).Restart(ctx, name); err != nil {
			return err
		}
	}
	out := NewPrinter(stdout, o.json)
	if slices.ContainsFunc(registered, func(r Registration) bool { return len(r.Subscriptions) > 0 && r.Comparison == nil }) {
		out.Line("a projection of this service cannot be compared with its owner: see docs/failover.md about `server databases accept`")
		return out.End()
	}
	entry, err := o.entry(admin.ActionAccept, struct{}{})
	for _, side := range both {
		if err == nil {
			err = side.accept(ctx, entry)
		}
		if side.Changed {
			side.print(out)
		}
	}
	return errors.Join(out.End(), err)
}
