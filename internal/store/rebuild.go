package store

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// Rebuild fills the shadow of a projection, a second table beside the live one, and makes
// it the live one. Readers and projectors go on, and readers see all of it at once. It
// works for every projection and knows no column of it: see the migration 00008.
//
// The order of the calls is Begin, Write for each page of the owner's list, CatchUp, Compare
// and Write for what the owner says about Comparison.Doubtful, Swap, Write for what it says about
// Again, and End. Each call is one transaction and renews the lease. It fails if another process has taken the rebuild over. After a crash
// another Begin resumes. A Rebuild is for one goroutine.
type Rebuild struct {
	queries    *sqlcgen.Queries
	projection string
	token      int64
}

// The phases of a rebuild.
const (
	PhaseFill   = "fill"   // the owner is listed
	PhaseCheck  = "check"  // live and shadow are compared
	PhaseRepeat = "repeat" // after the swap: some entries are read from the owner again
)

// RebuildState is where a rebuild begins or continues.
type RebuildState struct {
	Resumed    bool
	Generation int64
	Phase      string
	Position   string // of the last page of the owner's list
	Entries    int64  // that the owner has listed so far
	Estimate   int64  // about how many entries the live table has; 0: unknown
}

// Comparison is the result of comparing some entries of the live table with the shadow.
type Comparison struct {
	LastKey                    string
	Keys                       int64 // how many were compared
	Missing, Behind, Different int64
	// Doubtful has the keys of entries that the shadow lacks, or has with an older version.
	// The owner's state of them decides.
	Doubtful []string
}

// NewRebuild returns a rebuild of a projection by the name of its table. It starts nothing.
func NewRebuild(pool *pgxpool.Pool, projection string) *Rebuild {
	return &Rebuild{queries: queriesOver(pool), projection: projection, token: 1 + rand.Int64N(1<<62)}
}

// Begin starts the rebuild, or resumes one that was interrupted in the same databases,
// which origin identifies. With restart it always starts over. While another process runs
// the rebuild, it returns a problem.Conflict.
func (r *Rebuild) Begin(ctx context.Context, origin string, restart bool) (RebuildState, error) {
	row, err := r.queries.BeginRebuild(ctx, sqlcgen.BeginRebuildParams{
		Projection: r.projection, Origin: origin, Token: r.token, Restart: restart,
	})
	return RebuildState(row), rebuildError(err, "begin rebuild of %s", r.projection)
}

// State returns the last rebuild of the projection, by any process; the zero value if there was
// none.
func (r *Rebuild) State(ctx context.Context) (admin.RebuildState, error) {
	row, err := r.queries.GetRebuild(ctx, r.projection)
	if errors.Is(err, pgx.ErrNoRows) {
		return admin.RebuildState{}, nil
	}
	s := admin.RebuildState{Phase: row.Phase, Running: row.Running, Generation: row.Generation, Entries: row.Entries, Start: row.StartedAt.UTC()}
	if row.EndedAt != nil {
		s.End = row.EndedAt.UTC()
	}
	return s, wrap(err, "get the rebuild of %s", r.projection)
}

// Hold renews the lease. It is for a caller that waits.
func (r *Rebuild) Hold(ctx context.Context) error {
	return rebuildError(r.queries.HoldRebuild(ctx, r.projection, r.token), "hold rebuild of %s", r.projection)
}

// RebuildRows are entries to write.
type RebuildRows struct {
	JSON json.RawMessage // an array of objects with the columns of the projection
	// Position is not nil for a page of the owner's list, which replaces older versions only:
	// where the list continues. It is empty after the last page, which ends PhaseFill. Other
	// entries are what the owner says about single ones. They replace any version, but after
	// the swap no later one.
	Position *string
	// Again has the keys that Again returns after the swap.
	Again []string
}

// Write writes entries into the shadow, and after the swap into the live table. A page and
// its position are written together, so a crash repeats or misses no page.
func (r *Rebuild) Write(ctx context.Context, rows RebuildRows) error {
	return rebuildError(r.queries.WriteRebuild(ctx, sqlcgen.WriteRebuildParams{
		Projection: r.projection, Token: r.token, Entries: rows.JSON, Position: rows.Position, Again: rows.Again,
	}), "write rebuild of %s", r.projection)
}

// CatchUp copies what events have changed since Begin, at most maxKeys changes, to the
// shadow, and returns how many it has read. Again returns those of entries that the owner
// has not listed.
func (r *Rebuild) CatchUp(ctx context.Context, maxKeys int) (keys int64, err error) {
	keys, err = r.queries.CatchUpRebuild(ctx, r.projection, r.token, limit(maxKeys))
	return keys, rebuildError(err, "catch up rebuild of %s", r.projection)
}

// Compare compares at most maxKeys entries after a key; nil: from the first on.
func (r *Rebuild) Compare(ctx context.Context, after *string, maxKeys int) (Comparison, error) {
	row, err := r.queries.CompareRebuild(ctx, sqlcgen.CompareRebuildParams{Projection: r.projection, Token: r.token, AfterKey: after, MaxKeys: limit(maxKeys)})
	return Comparison(row), rebuildError(err, "compare rebuild of %s", r.projection)
}

// Swap makes the shadow the live table in one transaction, after the last changes. It does
// not swap if there are maxKeys changes or more: call CatchUp first. If it swaps, it appends
// the entry to the audit. It returns ErrLocked if a transaction has the table in use for too
// long.
func (r *Rebuild) Swap(ctx context.Context, maxKeys int, e admin.Entry) (swapped bool, err error) {
	swapped, err = r.queries.SwapRebuild(ctx, sqlcgen.SwapRebuildParams{
		Projection: r.projection, Token: r.token, MaxKeys: limit(maxKeys),
		ActionID: e.ActionID, Actor: e.Actor.Name, Via: e.Actor.Via, Action: e.Action, Filter: e.Filter, Reason: e.Reason,
		Items: e.Items, Before: e.Before, After: e.After,
	})
	return swapped, rebuildError(err, "swap rebuild of %s", r.projection)
}

// Again returns at most maxRows keys of entries that must be read from the owner again after the
// swap, behind the id of an earlier one, and the id of the last. A key may come twice.
func (r *Rebuild) Again(ctx context.Context, after int64, maxRows int) (keys []string, last int64, err error) {
	rows, err := r.queries.ListRebuildKeys(ctx, r.projection, after, limit(maxRows))
	for _, row := range rows {
		keys, last = append(keys, row.Key), row.ID
	}
	return keys, last, wrap(err, "list keys of the rebuild of %s", r.projection)
}

// End ends the rebuild. Before the swap it drops the shadow, and the projection is as it
// was. It may return ErrLocked, as Swap does.
func (r *Rebuild) End(ctx context.Context) error {
	return rebuildError(r.queries.EndRebuild(ctx, r.projection, r.token), "end rebuild of %s", r.projection)
}

// Release lets the next Begin resume at once, without waiting for the end of the lease.
func (r *Rebuild) Release(ctx context.Context) error {
	return wrap(r.queries.ReleaseRebuild(ctx, r.projection, r.token), "release rebuild of %s", r.projection)
}

// ErrLocked means that a transaction has had the table of a projection in use for too long,
// for example a backup. Nothing has changed: try again later.
var ErrLocked = errors.New("the table is in use by another transaction")

// rebuildError is wrap for the functions of a rebuild, whose errors are for people.
func rebuildError(err error, format string, args ...any) error {
	const lockNotAvailable, objectInUse, invalidParameter, notPrepared, notSupported = "55P03", "55006", "22023", "55000", "0A000"
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch pgErr.Code {
		case lockNotAvailable:
			return wrap(errors.Join(ErrLocked, err), format, args...)
		case objectInUse:
			return problem.Errorf(problem.Conflict, "%s", pgErr.Message)
		case invalidParameter, notPrepared, notSupported:
			return problem.Errorf(problem.Precondition, "%s", pgErr.Message)
		}
	}
	return wrap(err, format, args...)
}
