package admin

import (
	"context"
	"errors"
	"slices"

	"github.com/google/uuid"
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
