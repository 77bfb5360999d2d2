package admin

import (
	"context"
	"errors"
	"fmt"
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
	// audit, in one transaction. It returns how many it has written, and the ids that it has
	// not because they were changed at the same time. The others do not differ any more.
	RepairEntries(ctx context.Context, ids []uuid.UUID, entry Entry) (repaired int, changed []uuid.UUID, err error)
}

// Projection is a projection that operators compare with its owner, and repair.
type Projection interface {
	Source() reconcile.Source
	// Whole is the same source for a repair. It may also have rows that a comparison leaves
	// out, because each side deletes them by itself.
	Whole() reconcile.Source
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

// compareRows is how many rows Compare compares before it shows what differs.
const compareRows = 100_000

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
	// Compared is how many rows of the owner were compared, if no entry was named.
	Compared int64 `json:"compared"`
	// Kinds is how many entries differed, by kind.
	Kinds map[reconcile.Kind]int64 `json:"kinds"`
}

const (
	// repairRows is how many entries one transaction repairs. They are locked meanwhile,
	// and the projector waits for them.
	repairRows = 500
	// repairTries is how often an entry is tried that others change at the same time.
	repairTries = 3
)

var errChanged = errors.New("it is changed all the time: compare it again")

// Repair gives the entries of a projection that differ the state of their owner. The filter
// has an aggregate type, and may have the ids of entries, with commas. Without ids it goes
// through all entries once, page by page, and repairs each page before it reads the next:
// its memory does not grow with the projection, and Matched grows with Done. Request.Progress
// then gets how many rows are compared.
//
// The projector may run meanwhile. Repair waits for no event: an event that comes later finds
// its version in the entry. A crash leaves the transactions before it, with their rows in the
// audit, and the same request does the rest. The error is problem.Invalid for a wrong request,
// problem.NotFound if none of the named entries differs, and problem.Precondition as soon as
// more differ than was confirmed.
func (p Projections) Repair(ctx context.Context, r Request) (RepairResult, error) {
	m := &repair{request: r, kinds: make(map[reconcile.Kind]int64)}
	ids, err := m.begin(ctx, p)
	switch {
	case err != nil:
	case len(ids) == 0:
		err = m.repairAll(ctx)
	default:
		if err = m.repairEntries(ctx, ids); err == nil && m.Matched == 0 {
			err = problem.Errorf(problem.NotFound, "no such entry of %s differs from its owner", r.Filter.Type)
		}
	}
	return RepairResult{Result: m.Result, Compared: m.compared, Kinds: m.kinds}, err
}

// repair is a repair that runs.
type repair struct {
	action
	request    Request
	projection Projection
	compared   int64
	kinds      map[reconcile.Kind]int64
}

// begin checks the request, and returns the ids in its filter, each once.
func (m *repair) begin(ctx context.Context, p Projections) (ids []uuid.UUID, err error) {
	f := m.request.Filter
	if m.projection, err = p.typed(f.Type); err != nil {
		return nil, err
	}
	if (f != Filter{Type: f.Type, ID: f.ID}) {
		return nil, problem.InvalidField("filter", "must have only a type and ids")
	}
	if f.ID != "" {
		for text := range strings.SplitSeq(f.ID, ",") {
			id, err := uuid.Parse(text)
			if err != nil {
				return nil, problem.InvalidField("id", "must be a UUID, or several with commas")
			}
			ids = append(ids, id)
		}
	}
	run, err := begin(ctx, m.request, ActionRepair, func(context.Context, Filter) (int64, error) { return 0, nil })
	m.action = *run
	m.progress = nil // repairAll reports how many rows are compared
	return inOrder(ids), err
}

// repairAll compares all entries, and repairs those that differ.
func (m *repair) repairAll(ctx context.Context) error {
	for after := uuid.Nil; after != uuid.Max; {
		rows, upTo, ids, err := reconcile.Page(ctx, m.projection.Whole(), after)
		if err == nil {
			err = m.repairEntries(ctx, inOrder(ids))
		}
		if err != nil {
			return fmt.Errorf("%s behind %s: %w", ActionRepair, after, err)
		}
		after = upTo
		if m.compared += rows; m.request.Progress != nil {
			m.request.Progress(m.compared, 0)
		}
	}
	return nil
}

// repairEntries repairs those of some entries that differ.
func (m *repair) repairEntries(ctx context.Context, ids []uuid.UUID) error {
	for some := range slices.Chunk(ids, repairRows) {
		some, err := m.look(ctx, some)
		if err != nil {
			return err
		}
		for try := 0; try < repairTries && len(some) > 0 && !m.request.DryRun; try++ {
			repaired, changed, err := m.projection.RepairEntries(ctx, some, m.entry)
			if err != nil {
				return err
			}
			m.done(repaired)
			some = changed
		}
		if m.request.DryRun {
			continue
		}
		for _, id := range some {
			m.failed(id.String(), errChanged)
		}
	}
	return nil
}

// look returns those of some entries that differ in the way of the request, and counts them.
func (m *repair) look(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error) {
	seen, err := m.projection.Whole().Entries.Look(ctx, ids)
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(seen, func(_ uuid.UUID, s reconcile.Seen) bool {
		return m.request.Kind != "" && string(s.Kind()) != m.request.Kind
	})
	for _, s := range seen {
		m.kinds[s.Kind()]++
	}
	m.Matched += int64(len(seen))
	return slices.SortedFunc(maps.Keys(seen), compareIDs), m.request.CheckConfirmed(m.Matched)
}
