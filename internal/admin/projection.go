package admin

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/reconcile"
)

// Repairer repairs the entries of a projection.
type Repairer interface {
	// RepairEntries gives entries the state of their owner, and appends the entry to the
	// audit, in one transaction. It returns how many it has written, and those that it has
	// not because they were changed at the same time. The others do not differ any more.
	RepairEntries(ctx context.Context, ids []uuid.UUID, entry Entry) (repaired int, changed []uuid.UUID, err error)
}

const (
	// repairRows is how many entries one transaction repairs. They are locked meanwhile,
	// and the projector waits for them.
	repairRows = 100
	// repairTries is how often an entry is tried that others change at the same time.
	repairTries = 3
)

var errChanged = errors.New("it is changed all the time: compare it again")

// Repair repairs the given entries, which differ from their owner. A crash leaves the
// transactions before it, with their rows in the audit. The error is problem.Invalid for a
// wrong request.
func Repair(ctx context.Context, projection Repairer, ids []uuid.UUID, r Request) (Result, error) {
	run, err := begin(ctx, r, ActionRepair, func(context.Context, Filter) (int64, error) { return int64(len(ids)), nil })
	if err != nil || r.DryRun {
		return run.Result, err
	}
	for some := range slices.Chunk(ids, repairRows) {
		for range repairTries {
			repaired, changed, err := projection.RepairEntries(ctx, some, run.entry)
			if err != nil {
				return run.Result, err
			}
			run.done(repaired)
			if some = changed; len(some) == 0 {
				break
			}
		}
		for _, id := range some {
			run.failed(id.String(), errChanged)
		}
	}
	return run.Result, nil
}

// Projection is a projection that operators compare with its owner, and repair.
type Projection interface {
	Source() reconcile.Source
	Repairer
}

// Projections are the projections of a service that can be compared. The zero value has
// none.
type Projections struct {
	cfg reconcile.Config
	all map[string]Projection // by aggregate type
}

// NewProjections returns projections, which are compared as cfg says.
func NewProjections(cfg reconcile.Config, all ...Projection) Projections {
	p := Projections{cfg: cfg, all: make(map[string]Projection, len(all))}
	for _, projection := range all {
		p.all[projection.Source().Type] = projection
	}
	return p
}

// Types returns the aggregate types, in alphabetical order.
func (p Projections) Types() []string { return slices.Sorted(maps.Keys(p.all)) }

// typed returns the projection of an aggregate type, or problem.Invalid.
func (p Projections) typed(aggregateType string) (Projection, error) {
	found, ok := p.all[aggregateType]
	if !ok {
		return nil, problem.InvalidField("type", "must be an aggregate type with a projection that can be compared: %s", strings.Join(p.Types(), ", "))
	}
	return found, nil
}

const (
	// compareRows is how many rows Compare compares before it shows what differs.
	compareRows = 100_000
	// maxDiffering is after how many differences a repair reads no further. More are rather
	// the work of a rebuild.
	maxDiffering = 10_000
)

// Compare compares the given entries of an aggregate type with their owner. Without ids it
// compares the entries behind after, as many as a person wants to wait for. UpTo of the result
// says where to go on; uuid.Max: all are compared. The differences are in the order of their
// ids. The error is problem.Invalid for a type that has no projection.
func (p Projections) Compare(ctx context.Context, aggregateType string, ids []uuid.UUID, after uuid.UUID) (result reconcile.Result, err error) {
	projection, err := p.typed(aggregateType)
	if err != nil {
		return result, err
	}
	if len(ids) > 0 {
		result, err = reconcile.CompareIDs(ctx, p.cfg, projection.Source(), inOrder(ids))
	} else {
		result, err = reconcile.Compare(ctx, p.cfg, projection.Source(), after, compareRows, nil)
	}
	slices.SortFunc(result.Differences, func(a, b reconcile.Difference) int { return compareIDs(a.ID, b.ID) })
	return result, err
}

// OfKind returns the differences of a kind; empty: all.
func OfKind(differences []reconcile.Difference, kind string) []reconcile.Difference {
	return slices.DeleteFunc(differences, func(d reconcile.Difference) bool { return kind != "" && string(d.Kind) != kind })
}

func compareIDs(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }

// inOrder returns ids in their order, each once.
func inOrder(ids []uuid.UUID) []uuid.UUID {
	ids = slices.Clone(ids)
	slices.SortFunc(ids, compareIDs)
	return slices.Compact(ids)
}

// RepairResult is what a repair did.
type RepairResult struct {
	Result
	// Stopped is where the comparison has stopped, because so many entries differ. The same
	// request again repairs more. uuid.Nil: all were compared.
	Stopped uuid.UUID `json:"stopped,omitzero"`
}

// Repair gives the entries of a projection that differ the state of their owner: see the
// function Repair. The filter has an aggregate type, and may have ids of entries, with commas.
// Without ids all entries are compared first. The error is problem.NotFound if none of the
// named entries differs.
func (p Projections) Repair(ctx context.Context, r Request) (result RepairResult, err error) {
	projection, err := p.typed(r.Filter.Type)
	if err == nil {
		err = r.check() // before a long comparison
	}
	if err != nil {
		return result, err
	}
	if (r.Filter != Filter{Type: r.Filter.Type, ID: r.Filter.ID}) {
		return result, problem.InvalidField("filter", "must have only a type and ids")
	}
	var ids []uuid.UUID
	if r.Filter.ID != "" {
		ids, err = lookAtNamed(ctx, projection, r.Filter, r.Kind)
	} else {
		ids, result.Stopped, err = p.findDiffering(ctx, r.Filter.Type, r.Kind)
	}
	if err != nil {
		return result, err
	}
	result.Result, err = Repair(ctx, projection, ids, r)
	return result, err
}

// lookAtNamed returns those of the entries in a filter that differ. It does not wait for
// events on their way: who names an entry has looked at it.
func lookAtNamed(ctx context.Context, projection Projection, f Filter, kind string) ([]uuid.UUID, error) {
	var ids []uuid.UUID
	for text := range strings.SplitSeq(f.ID, ",") {
		id, err := uuid.Parse(text)
		if err != nil {
			return nil, problem.InvalidField("id", "must be a UUID, or several with commas")
		}
		ids = append(ids, id)
	}
	seen, err := projection.Source().Entries.Look(ctx, inOrder(ids))
	maps.DeleteFunc(seen, func(_ uuid.UUID, s reconcile.Seen) bool { return kind != "" && string(s.Kind()) != kind })
	if err == nil && len(seen) == 0 {
		err = problem.Errorf(problem.NotFound, "no such entry of %s differs from its owner", f.Type)
	}
	return slices.SortedFunc(maps.Keys(seen), compareIDs), err
}

// findDiffering compares all entries. If so many differ that it stops, stopped is where.
func (p Projections) findDiffering(ctx context.Context, aggregateType, kind string) (ids []uuid.UUID, stopped uuid.UUID, err error) {
	for after := uuid.Nil; after != uuid.Max; {
		if len(ids) >= maxDiffering {
			return ids, after, nil
		}
		result, err := p.Compare(ctx, aggregateType, nil, after)
		if err != nil {
			return nil, uuid.Nil, err
		}
		for _, d := range OfKind(result.Differences, kind) {
			ids = append(ids, d.ID)
		}
		after = result.UpTo
	}
	return ids, uuid.Nil, nil
}
