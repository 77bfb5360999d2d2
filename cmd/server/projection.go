package main

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

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/problem"
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
		if r.comparison != nil {
			sources = append(sources, r.comparison(commands, queries).Source())
		}
	}
	progress := store.NewComparisons(queries)
	loop, err := reconcile.NewLoop(i.cfg.reconcile, sources, progress, i.log, i.tel.Meter(scope))
	if err != nil {
		return err
	}
	i.maintenance = append(i.maintenance, loop.Heartbeat())
	i.tasks = append(i.tasks, loop.Run)
	if meter := i.tel.Meter(scope); meter != nil {
		return progress.Observe(meter)
	}
	return nil
}

const (
	// commandRate is how many rows per second a command compares at most: somebody waits.
	commandRate = 50_000
	// commandSlice is how many rows a command compares before it shows what differs.
	commandSlice = 100_000
	// commandDifferences is after how many differences a command stops. More are rather
	// the work of a rebuild.
	commandDifferences = 10_000
)

// projectionCommand compares and repairs projections.
func projectionCommand(ctx context.Context, cfg config, args []string, stdout io.Writer) error {
	command, o, err := parseCommand("projection", args)
	if err != nil {
		return err
	}
	if o.Filter != (admin.Filter{}) {
		return usageError(fmt.Errorf("projection %s takes TYPE and ID and no --filter: try `server help`", command))
	}
	database, err := openDatabase(ctx, cfg, sides{commands: true, queries: true}, 0, nil)
	if err != nil {
		return err
	}
	defer database.close()
	cfg.reconcile.Rate = commandRate
	p := projections{cfg: cfg.reconcile, all: make(map[string]comparison)}
	for _, r := range registrations(cfg, database.queries.own) {
		if r.comparison != nil {
			made := r.comparison(database.commands.own, database.queries.own)
			p.all[made.Source().Type] = made
		}
	}
	types, ids, err := p.parse(o.args)
	if err != nil {
		return err
	}
	switch {
	case command == "compare" && !o.All:
		return p.compare(ctx, types, ids, o, stdout)
	case command == "repair" && o.All == (len(ids) == 0):
		return p.repair(ctx, types, ids, o, stdout)
	case command == "repair":
		return usageError(errors.New("projection repair wants either TYPE and at least one ID, or --all: try `server help`"))
	}
	return errUsage
}

// projections are the projections that can be compared, by their aggregate type.
type projections struct {
	cfg reconcile.Config
	all map[string]comparison
}

// parse reads the arguments [TYPE [ID...]]. Without a type it returns all.
func (p projections) parse(args []string) (types []string, ids []uuid.UUID, err error) {
	for name := range p.all {
		types = append(types, name)
	}
	slices.Sort(types)
	if len(args) == 0 {
		return types, nil, nil
	}
	if p.all[args[0]] == nil {
		return nil, nil, usageError(fmt.Errorf("TYPE %q must be an aggregate type with a projection: %s", args[0], strings.Join(types, ", ")))
	}
	for _, text := range args[1:] {
		id, err := uuid.Parse(text)
		if err != nil {
			return nil, nil, usageError(fmt.Errorf("ID %q must be a UUID", text))
		}
		ids = append(ids, id)
	}
	slices.SortFunc(ids, compareIDs)
	return args[:1], slices.Compact(ids), nil
}

func compareIDs(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }

// summary is what a comparison of a type says at its end.
type summary struct {
	Type        string `json:"type"`
	Compared    int64  `json:"compared"`
	Differences int64  `json:"differences"`
	Pending     int64  `json:"pending"`
	// Stopped is where the comparison has stopped, because of too many differences.
	Stopped *uuid.UUID `json:"stopped,omitempty"`
}

// compare shows the differences of some types, or of some ids of one type.
func (p projections) compare(ctx context.Context, types []string, ids []uuid.UUID, o operation, stdout io.Writer) error {
	out := newPrinter(stdout, o.json, "TYPE", "ID", "KIND", "OWNER_VERSION", "VERSION", "FIELDS")
	sums := make([]summary, 0, len(types))
	var found int64
	for _, name := range types {
		sum, err := p.walk(ctx, name, ids, func(differences []reconcile.Difference) {
			for _, d := range differences {
				out.row(d, d.Type, d.ID.String(), string(d.Kind), strconv.FormatInt(d.OwnerVersion, 10), strconv.FormatInt(d.Version, 10),
					cmp.Or(strings.Join(d.Fields, ","), "-"))
			}
		})
		if err != nil {
			return err
		}
		sums = append(sums, sum)
		found += sum.Differences
	}
	for _, sum := range sums {
		out.line("%s: compared %d rows; %d differ, %d wait for their event in the outbox", sum.Type, sum.Compared, sum.Differences, sum.Pending)
		if sum.Stopped != nil {
			out.line("stopped at %s, because so many differ: run `server rebuild`", sum.Stopped)
		}
		out.row(sum)
	}
	if err := out.end(); err != nil {
		return err
	}
	if found > 0 {
		return errDiffers
	}
	return nil
}

// walk compares all ids of a type, or the given ones, and calls show with the differences in
// the order of their ids.
func (p projections) walk(ctx context.Context, name string, ids []uuid.UUID, show func([]reconcile.Difference)) (summary, error) {
	source, sum := p.all[name].Source(), summary{Type: name}
	for after := uuid.Nil; after != uuid.Max; {
		var result reconcile.Result
		var err error
		if len(ids) > 0 {
			result, err = reconcile.CompareIDs(ctx, p.cfg, source, ids)
		} else {
			result, err = reconcile.Compare(ctx, p.cfg, source, after, commandSlice, nil)
		}
		if err != nil {
			return sum, err
		}
		slices.SortFunc(result.Differences, func(a, b reconcile.Difference) int { return compareIDs(a.ID, b.ID) })
		show(result.Differences)
		sum.Compared += result.Rows
		sum.Pending += result.Pending
		sum.Differences += int64(len(result.Differences))
		after = result.UpTo
		if sum.Differences >= commandDifferences && after != uuid.Max {
			sum.Stopped = &after
			break
		}
	}
	return sum, nil
}

// repair repairs the given ids of a type, or all that differ of some types.
func (p projections) repair(ctx context.Context, types []string, ids []uuid.UUID, o operation, stdout io.Writer) error {
	if len(ids) > 0 {
		source := p.all[types[0]].Source()
		seen, err := source.Entries.Look(ctx, ids)
		if err != nil {
			return err
		}
		if len(seen) == 0 {
			return problem.Errorf(problem.NotFound, "no such entry of %s differs from its owner", types[0])
		}
		texts := make([]string, len(ids))
		for i, id := range ids {
			texts[i] = id.String()
		}
		o.Filter = admin.Filter{Type: types[0], ID: strings.Join(texts, ",")}
		ids = slices.DeleteFunc(ids, func(id uuid.UUID) bool { _, differs := seen[id]; return !differs })
		result, err := admin.Repair(ctx, p.all[types[0]], ids, o.Request)
		return o.report(stdout, "repaired", "entries", result, err)
	}
	for _, name := range types {
		o.Filter, o.All = admin.Filter{Type: name}, false
		if _, err := admin.Repair(ctx, p.all[name], nil, o.Request); err != nil { // a wrong request fails before the long comparison
			return err
		}
		var differing []uuid.UUID
		sum, err := p.walk(ctx, name, nil, func(differences []reconcile.Difference) {
			for _, d := range differences {
				differing = append(differing, d.ID)
			}
		})
		if err != nil {
			return err
		}
		result, err := admin.Repair(ctx, p.all[name], differing, o.Request)
		if err := o.report(stdout, "repaired", "entries of "+name, result, err); err != nil {
			return err
		}
		if sum.Stopped != nil {
			return fmt.Errorf("stopped at %s, because so many differ: repair again, or run `server rebuild`", sum.Stopped)
		}
	}
	return nil
}
