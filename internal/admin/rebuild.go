package admin

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"example.com/videocatalog/internal/problem"
)

// RebuildRequest describes a rebuild. Its filter has an aggregate type and nothing else. What
// was confirmed is compared with what differs, before the projection changes.
type RebuildRequest struct {
	Request
	// Restart starts over, and does not resume a rebuild that was interrupted.
	Restart bool
}

// RebuildResult is how far a rebuild is: the counts of Request.Progress are in it, too. If it
// fails in the middle, the same request resumes it.
type RebuildResult struct {
	Result // Matched is how many entries differed, and Done how many of them are equal now
	// Entries is how many entries the owner has listed.
	Entries int64 `json:"entries"`
	// Compared says that the counts of what differs are known. They are not if a rebuild is
	// resumed that was interrupted after the projection had changed. In one that was
	// interrupted before, extra entries may count as different.
	Compared  bool  `json:"compared"`
	Missing   int64 `json:"missing"`
	Behind    int64 `json:"behind"`
	Different int64 `json:"different"`
	Ahead     int64 `json:"ahead"`
	Extra     int64 `json:"extra"`
}

// Differing is how many entries differ.
func (r RebuildResult) Differing() int64 {
	return r.Missing + r.Behind + r.Different + r.Ahead + r.Extra
}

// RebuildState is the last rebuild of a projection. The zero value: there was none.
type RebuildState struct {
	Phase      string // fill, check, repeat, done or dropped
	Running    bool   // a process runs it; else it is ended, or waits to be resumed
	Generation int64  // grows with every rebuild that starts from the beginning
	Entries    int64  // that the owner has listed
	Start, End time.Time
}

// Rebuilder rebuilds a projection.
type Rebuilder interface {
	// Rebuild makes the projection what its owner has, at once for all readers, or resumes a
	// rebuild that was interrupted. The audit is appended with the change, and with the
	// counts. With DryRun it counts, and changes nothing. It returns problem.Conflict while
	// another process rebuilds the projection, and problem.Late if a transaction has the
	// projection in use until shortly before the deadline of ctx.
	Rebuild(ctx context.Context, r RebuildRequest, audit Entry) (RebuildResult, error)
	// RebuildState returns the last rebuild.
	RebuildState(ctx context.Context) (RebuildState, error)
}

// Rebuilds are the projections of a service that can be rebuilt, by aggregate type.
type Rebuilds map[string]Rebuilder

// Types returns the aggregate types, in alphabetical order.
func (b Rebuilds) Types() []string { return slices.Sorted(maps.Keys(b)) }

// Rebuild checks a request, and rebuilds the projection. A context that ends interrupts it;
// the same request resumes it. The error is problem.Invalid for a wrong request, and
// problem.Precondition if more differs than was confirmed.
func (b Rebuilds) Rebuild(ctx context.Context, r RebuildRequest) (result RebuildResult, err error) {
	projection, err := b.typed(r.Filter.Type)
	if err != nil {
		return result, err
	}
	if (r.Filter != Filter{Type: r.Filter.Type}) {
		return result, problem.InvalidField("filter", "must have only a type")
	}
	var entry Entry // a dry run has none
	if err = r.check(); err == nil && !r.DryRun {
		entry, err = NewEntry(ActionRebuild, rebuildSelection{Type: r.Filter.Type, Restart: r.Restart}, r.Actor, r.Reason)
	}
	if err != nil {
		return result, err
	}
	result, err = projection.Rebuild(ctx, r, entry)
	result.ActionID = entry.ActionID
	return result, err
}

// State returns the last rebuild of a projection. The error is problem.Invalid for a wrong
// type.
func (b Rebuilds) State(ctx context.Context, aggregateType string) (RebuildState, error) {
	projection, err := b.typed(aggregateType)
	if err != nil {
		return RebuildState{}, err
	}
	return projection.RebuildState(ctx)
}

func (b Rebuilds) typed(aggregateType string) (Rebuilder, error) {
	found, ok := b[aggregateType]
	if !ok {
		return nil, problem.InvalidField("type", "must be an aggregate type with a projection that can be rebuilt: %s", strings.Join(b.Types(), ", "))
	}
	return found, nil
}

// rebuildSelection is the filter of an entry in the audit.
type rebuildSelection struct {
	Type    string `json:"type"`
	Restart bool   `json:"restart,omitempty"`
}
