package repair

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/operate"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/options/repair/internal/sqlcgen"
)

// actionRepair is the action, as the table audit names it.
const actionRepair = "projection.repair"

const (
	// repairRows is how many entries one transaction repairs. They are locked meanwhile, and the
	// projector waits for them.
	repairRows = 500
	// repairTries is how often a repair lowers an entry that takes a later event at the same time.
	repairTries = 3
	// maxFailed is how many entries a result names.
	maxFailed = 100
)

// repaired is the result of a repair.
type repaired struct {
	ActionID uuid.UUID `json:"action_id,omitzero"` // zero if nothing was changed
	Type     string    `json:"type"`
	Matched  int64     `json:"matched"` // entries that differed
	Done     int64     `json:"done"`    // entries that it has written
	// Failed are the first maxFailed entries that still differ after the last try. Failures is the
	// number of all.
	Failed   []uuid.UUID `json:"failed,omitempty"`
	Failures int64       `json:"failures"`
	// Compared is how many rows of the owner were compared, if no entry was named.
	Compared int64 `json:"compared"`
	// Kinds is how many entries differed, by kind.
	Kinds map[kind]int64 `json:"kinds"`
}

// run is a repair that runs.
type run struct {
	repaired

	projection projection
	whole      source
	entry      pg.Entry
	dryRun     bool
}

// repair gives entries of a projection the state of their owner if they differ: the entries of ids,
// or all. Without ids it goes through all entries once, page by page, and repairs each page before
// it reads the next: its memory does not grow with the projection, and matched grows with done.
//
// The projector may run meanwhile. A repair waits for no event: an event that comes later finds its
// version in the entry. A crash leaves the transactions before it, with their rows in the audit, and
// the same command does the rest. The error is problem.NotFound if none of ids differs.
func repair(ctx context.Context, p projection, ids []uuid.UUID, o operate.Operation) (repaired, error) {
	whole := p.source(true)
	entry, err := o.Entry(actionRepair, selection{Type: whole.name, IDs: ids})
	r := run{projection: p, whole: whole, entry: entry, dryRun: o.DryRun}
	r.ActionID, r.Type, r.Kinds = entry.ActionID, whole.name, make(map[kind]int64)
	switch {
	case err != nil:
	case len(ids) == 0:
		err = r.repairAll(ctx)
	default:
		if err = r.repairEntries(ctx, inOrder(ids)); err == nil && r.Matched == 0 {
			err = problem.Errorf(problem.NotFound, "no such entry of %s differs from its owner", r.Type)
		}
	}
	return r.repaired, err
}

// selection is the filter of an entry in the audit.
type selection struct {
	Type string      `json:"type"`
	IDs  []uuid.UUID `json:"ids,omitempty"`
}

func compareIDs(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }

// inOrder returns ids sorted, each once.
func inOrder(ids []uuid.UUID) []uuid.UUID {
	ids = slices.Clone(ids)
	slices.SortFunc(ids, compareIDs)
	return slices.Compact(ids)
}

// repairAll compares all entries, and repairs those that differ.
func (r *run) repairAll(ctx context.Context) error {
	for after := uuid.Nil; after != uuid.Max; {
		rows, upTo, ids, err := r.whole.page(ctx, after)
		if err == nil {
			err = r.repairEntries(ctx, inOrder(ids))
		}
		if err != nil {
			return fmt.Errorf("repair of %s behind %s: %w", r.Type, after, err)
		}
		after = upTo
		r.Compared += rows
	}
	return nil
}

// repairEntries repairs the entries of ids that differ.
func (r *run) repairEntries(ctx context.Context, ids []uuid.UUID) error {
	for some := range slices.Chunk(ids, repairRows) {
		some, err := r.look(ctx, some)
		if err != nil {
			return err
		}
		if r.dryRun {
			continue
		}
		for try := 0; try < repairTries && len(some) > 0; try++ {
			done, changed, err := r.rewrite(ctx, some)
			if err != nil {
				return err
			}
			r.Done += int64(done)
			some = changed
		}
		r.Failures += int64(len(some))
		r.Failed = append(r.Failed, some[:min(len(some), maxFailed-len(r.Failed))]...)
	}
	return nil
}

// rewrite repairs entries and appends them to the audit, in one transaction. It returns how many now
// match their owner, and the ids of lowered entries that differ again: the projector dropped a later
// event of such an entry as too old, before the commit.
func (r *run) rewrite(ctx context.Context, ids []uuid.UUID) (done int, again []uuid.UUID, err error) {
	var found map[uuid.UUID]seen
	err = pg.InTx(ctx, r.whole.pool, "repair.Rewrite", func(ctx context.Context, tx *pg.Tx) error {
		if found, err = r.projection.rewrite(ctx, tx, ids); err != nil || len(found) == 0 {
			return err
		}
		return r.record(ctx, tx, found)
	})
	if err != nil {
		return 0, nil, pg.Wrap(err, "repair %d entries", len(ids))
	}
	for id, s := range found {
		if s.version > s.ownerVersion {
			again = append(again, id)
		}
	}
	if len(again) > 0 {
		left, err := r.whole.look(ctx, again)
		return len(found) - len(left), slices.SortedFunc(maps.Keys(left), compareIDs), err
	}
	return len(found), nil, nil
}

// repairedEntry is an entry before or after the repair, as the audit has it: without its content.
type repairedEntry struct {
	ID           uuid.UUID `json:"id"`
	Kind         kind      `json:"kind,omitempty"` // of the difference before
	OwnerVersion int64     `json:"owner_version"`
	Version      int64     `json:"version"`
	Fields       []string  `json:"fields,omitempty"`
}

// record appends repaired entries to the audit, and restarts the comparison of the projection. Of entries
// that were missing it has only what they are now.
func (r *run) record(ctx context.Context, tx *pg.Tx, found map[uuid.UUID]seen) (err error) {
	before, after := []repairedEntry{}, []repairedEntry{} // in JSON [], not null
	for _, id := range slices.SortedFunc(maps.Keys(found), compareIDs) {
		s := found[id]
		if s.version > 0 {
			before = append(before, repairedEntry{ID: id, Kind: s.kind(), OwnerVersion: s.ownerVersion, Version: s.version, Fields: s.fields})
		}
		after = append(after, repairedEntry{ID: id, OwnerVersion: s.ownerVersion, Version: cmp.Or(s.ownerVersion, s.version)})
	}
	q, e := sqlcgen.New(tx), r.entry
	params := sqlcgen.InsertQueryAuditParams{
		ActionID: e.ActionID, Actor: e.Name, Via: e.Via, Action: e.Action, Filter: e.Filter, Reason: e.Reason, Items: int64(len(found)),
	}
	if params.Before, err = json.Marshal(before); err == nil {
		params.After, err = json.Marshal(after)
	}
	if err != nil {
		return fmt.Errorf("encode audit: %w", err)
	}
	tx.Queue(q.InsertQueryAudit(ctx, params))
	tx.Queue(q.RestartComparison(ctx, r.whole.name))
	return nil
}

// look returns the entries of ids that differ, and counts them.
func (r *run) look(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error) {
	found, err := r.whole.look(ctx, ids)
	for _, s := range found {
		r.Kinds[s.kind()]++
	}
	r.Matched += int64(len(found))
	return slices.SortedFunc(maps.Keys(found), compareIDs), err
}
