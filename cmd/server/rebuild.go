package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store"
)

// helpRebuild is the help for the command.
const helpRebuild = `  server rebuild                       make the catalog what its owner has
         --reason TEXT                 why: required without --dry-run
         --dry-run                     count what differs, and change no entry
         --restart                     start over, and do not resume a rebuild that was interrupted
`

// rebuild makes the catalog equal to its owner: see catalogRebuild.
func rebuild(ctx context.Context, cfg config, args []string, stdout, stderr io.Writer) error {
	o, request, err := parseRebuild(args)
	if err != nil {
		return err
	}
	database, err := openDatabase(ctx, cfg, sides{commands: true, queries: true}, 0, nil)
	if err != nil {
		return err
	}
	defer database.close()
	catalog := newCatalogRebuild(database.commands.own, database.queries.own, func(_ context.Context, text string) {
		fmt.Fprintln(stderr, text)
	})
	request.Progress = newProgress(stderr, "entries", -1).show
	result, err := admin.Rebuilds{event.AggregateVideo: catalog}.Rebuild(ctx, request)
	if err != nil {
		return err
	}
	p := newPrinter(stdout, o.json)
	if result.Compared {
		p.line("compared %d entries: missing %d, behind %d, different %d, ahead %d, removed %d",
			result.Entries, result.Missing, result.Behind, result.Different, result.Ahead, result.Extra)
	}
	if !o.DryRun {
		p.line("rebuilt %d entries, lowered %d, removed %d", result.Entries, result.Ahead, result.Extra)
	}
	p.row(result)
	return p.end()
}

// parseRebuild reads the arguments of rebuild.
func parseRebuild(args []string) (o operation, request admin.RebuildRequest, err error) {
	o, err = parseAction("rebuild", args, func(flags *flag.FlagSet) {
		flags.BoolVar(&request.Restart, "restart", false, "")
	})
	if err == nil && len(o.args) > 0 {
		err = usageError(fmt.Errorf("rebuild %q: want no argument, because it reads the owner in DATABASE_URL: try `server help`", o.args[0]))
	}
	request.Request, request.Filter.Type = o.Request, event.AggregateVideo
	return o, request, err
}

// catalogRebuild makes the catalog equal to the videos of the command side. It fills a
// shadow of the catalog beside the live one, compares the two, and swaps them in one
// transaction. With DryRun it drops the shadow after the comparison.
//
// The projector may run meanwhile. For a new catalog it must: the subscription must exist
// before the first page is read, or events in between are missed. After a crash or an
// interruption the next rebuild resumes this one. The databases are recorded as known at
// the end only.
type catalogRebuild struct {
	commands, queries *pgxpool.Pool
	notify            func(ctx context.Context, text string)
}

// newCatalogRebuild returns a rebuild over the pools of both sides. notify reports to a
// person who waits that an earlier rebuild is resumed, or what this one waits for.
func newCatalogRebuild(commands, queries *pgxpool.Pool, notify func(ctx context.Context, text string)) *catalogRebuild {
	return &catalogRebuild{commands: commands, queries: queries, notify: notify}
}

// Rebuild implements admin.Rebuilder.
func (c *catalogRebuild) Rebuild(ctx context.Context, request admin.RebuildRequest, audit admin.Entry) (admin.RebuildResult, error) {
	r := &rebuilder{
		owner: store.NewVideos(c.commands, nil), catalog: store.NewCatalog(c.queries),
		shadow: store.NewRebuild(c.queries, store.CatalogProjection), request: request, audit: audit, notify: c.notify,
	}
	// Read first, so that a failover during the rebuild is noticed, and not recorded as
	// known. What was filled before a failover is worth nothing after it.
	commands, queries := store.NewOutbox(c.commands), store.NewInbox(c.queries)
	owner, err := commands.Database(ctx)
	if err != nil {
		return r.result, err
	}
	projection, err := queries.Database(ctx)
	if err != nil {
		return r.result, err
	}
	repaired := func(ctx context.Context) error {
		_, ownerErr := commands.KnowDatabase(ctx, owner.Live, audit)
		_, err := queries.KnowDatabase(ctx, projection.Live, audit)
		return errors.Join(ownerErr, err, store.NewComparisons(c.queries).Restart(ctx, event.AggregateVideo)) // what it has found is repaired
	}
	err = r.run(ctx, owner.Live+" "+projection.Live, repaired)
	if r.result.Matched = r.result.Differing(); err == nil && !request.DryRun {
		r.result.Done = r.result.Matched
	}
	return r.result, err
}

// RebuildState implements admin.Rebuilder.
func (c *catalogRebuild) RebuildState(ctx context.Context) (admin.RebuildState, error) {
	return store.NewRebuild(c.queries, store.CatalogProjection).State(ctx)
}

// rebuilder compares the catalog with its owner, and makes it equal.
type rebuilder struct {
	owner   *store.Videos
	catalog *store.Catalog
	shadow  *store.Rebuild
	request admin.RebuildRequest
	audit   admin.Entry
	notify  func(ctx context.Context, text string)
	result  admin.RebuildResult
}

const (
	// checkRows is how many entries are compared, or changes copied, in one statement.
	checkRows = 10_000
	// swapRows is how many changes the swap copies itself, while everybody waits, and about
	// how many entries are read from the owner at once.
	swapRows = 1_000
	// lockTimeout is how long a try for the lock of the live catalog takes: see migration 00008.
	lockTimeout = 2 * time.Second
	// lockPause is how long readers and writers go on before the next try for the lock.
	lockPause = 3 * time.Second
)

// run goes through the phases of a rebuild, or through those that are left of one that was
// interrupted. origin identifies the databases. repaired is called when the catalog is equal
// to its owner, and not with --dry-run.
func (r *rebuilder) run(ctx context.Context, origin string, repaired func(context.Context) error) (err error) {
	var state store.RebuildState
	begin := func() (err error) {
		state, err = r.shadow.Begin(ctx, origin, r.request.Restart)
		return err
	}
	if err := r.unlocked(ctx, begin, func(context.Context) error { return nil }); err != nil {
		return err
	}
	defer func() {
		if err != nil { // so that the next one need not wait for the end of the lease
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
			defer cancel()
			err = errors.Join(err, r.shadow.Release(ctx))
		}
	}()
	r.result.Entries = state.Entries
	if state.Resumed {
		r.notify(ctx, fmt.Sprintf("rebuild %d is resumed: %s, after %d entries", state.Generation, state.Phase, state.Entries))
	}
	var steps []func(context.Context) error
	switch state.Phase {
	case store.PhaseFill:
		steps = append(steps, func(ctx context.Context) error { return r.fill(ctx, state) }, r.check)
	case store.PhaseCheck:
		steps = append(steps, r.check)
	case store.PhaseRepeat:
		if r.request.DryRun {
			return problem.Errorf(problem.Precondition, "a rebuild was interrupted after the swap: finish it first, without a dry run")
		}
	}
	if state.Phase != store.PhaseRepeat && !r.request.DryRun {
		steps = append(steps, r.swap)
	}
	if !r.request.DryRun {
		steps = append(steps, r.repeat, r.show, repaired)
	}
	for _, do := range steps {
		if err := do(ctx); err != nil {
			return err
		}
	}
	return r.end(ctx)
}

// end ends the rebuild. Before the swap it drops the shadow.
func (r *rebuilder) end(ctx context.Context) error {
	return r.unlocked(ctx, func() error { return r.shadow.End(ctx) }, r.shadow.Hold)
}

// fill writes the list of the owner into the shadow, page by page.
func (r *rebuilder) fill(ctx context.Context, state store.RebuildState) error {
	after, err := parsePosition(state.Position)
	if err != nil {
		return err
	}
	r.progress(state)
	for more := true; more; {
		var entries []domain.Entry
		if entries, after, err = r.list(ctx, after); err != nil {
			return err
		}
		position := positionText(after)
		if err := r.write(ctx, entries, store.RebuildRows{Position: &position}); err != nil {
			return err
		}
		more = after != nil
		r.result.Entries += int64(len(entries))
		r.progress(state)
	}
	return nil
}

func (r *rebuilder) progress(state store.RebuildState) {
	if r.request.Progress != nil {
		r.request.Progress(r.result.Entries, state.Estimate)
	}
}

// check brings the shadow up to date and compares it with the live catalog. It reads from the
// owner the entries that are ahead of its list or not in it. If more differs than was
// confirmed, it ends the rebuild, and fails.
func (r *rebuilder) check(ctx context.Context) error {
	if err := r.catchUp(ctx); err != nil {
		return err
	}
	var after *string
	for more := true; more; {
		c, err := r.shadow.Compare(ctx, after, checkRows)
		if err != nil {
			return err
		}
		for keys := range slices.Chunk(c.Doubtful, swapRows) {
			if err := r.copyFromOwner(ctx, keys, false); err != nil {
				return err
			}
		}
		r.result.Missing, r.result.Behind, r.result.Different = r.result.Missing+c.Missing, r.result.Behind+c.Behind, r.result.Different+c.Different
		after, more = &c.LastKey, c.Keys == checkRows
	}
	r.result.Compared = true
	err := r.request.CheckConfirmed(r.result.Differing())
	if err != nil {
		err = errors.Join(err, r.end(ctx))
	}
	return err
}

// catchUp copies what events have changed meanwhile, until few changes are left.
func (r *rebuilder) catchUp(ctx context.Context) error {
	for {
		if keys, err := r.shadow.CatchUp(ctx, checkRows); err != nil || keys < swapRows {
			return err
		}
	}
}

// swap makes the shadow the live catalog.
func (r *rebuilder) swap(ctx context.Context) error {
	for swapped := false; !swapped; {
		if err := r.catchUp(ctx); err != nil {
			return err
		}
		if err := r.unlocked(ctx, func() (err error) {
			swapped, err = r.shadow.Swap(ctx, swapRows, r.audited())
			return err
		}, r.shadow.Hold); err != nil {
			return err
		}
	}
	return nil
}

// repeat reads some entries from the owner again after the swap: lowered ones, because the old
// catalog may have taken an event for too old after the first read, and those that came by
// events only. After a crash it begins again.
func (r *rebuilder) repeat(ctx context.Context) error {
	for after := int64(0); ; {
		keys, last, err := r.shadow.Again(ctx, after, swapRows)
		if err != nil || len(keys) == 0 {
			return err
		}
		if err := r.copyFromOwner(ctx, keys, true); err != nil {
			return err
		}
		after = last
	}
}

// show lets watches see the entries that have changed.
func (r *rebuilder) show(ctx context.Context) error {
	for {
		n, err := r.catalog.MoveFutureChanges(ctx, futureRows)
		if err != nil || n < futureRows { // what is locked now is moved by the server: see registration.repair
			return err
		}
		if err := r.shadow.Hold(ctx); err != nil {
			return err
		}
	}
}

// write writes entries in the way of rows. It renews the lease, also without entries.
func (r *rebuilder) write(ctx context.Context, entries []domain.Entry, rows store.RebuildRows) (err error) {
	if rows.JSON, err = store.CatalogRows(entries); err != nil {
		return err
	}
	return r.shadow.Write(ctx, rows)
}

// unlocked does something that needs a lock of the live catalog, until it gets the lock. In
// the pauses it calls hold. It gives up before the deadline of ctx, so that the caller gets
// the reason.
func (r *rebuilder) unlocked(ctx context.Context, do func() error, hold func(context.Context) error) error {
	err := do()
	for errors.Is(err, store.ErrLocked) {
		r.notify(ctx, "waiting for a transaction that has the catalog in use, for example a backup")
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < lockPause+lockTimeout {
			return stillInUse(problem.Late, err)
		}
		if !sleep(ctx, lockPause) {
			return stillInUse(problem.Unavailable, ctx.Err())
		}
		if err = hold(ctx); err == nil {
			err = do()
		}
		if err != nil && ctx.Err() != nil {
			return stillInUse(problem.Unavailable, err)
		}
	}
	return err
}

// stillInUse is the error of a rebuild that has waited for the lock of the live catalog.
func stillInUse(kind problem.Kind, err error) error {
	return &problem.Error{Kind: kind, Message: "the catalog is in use by a transaction, for example a backup: run it again, and it goes on", Err: err}
}

// audited returns the audit with the counts of the comparison. The entries themselves may be
// millions, and are not in it.
func (r *rebuilder) audited() admin.Entry {
	audit, found := r.audit, r.result
	audit.Items = found.Differing()
	audit.Before, _ = json.Marshal([]map[string]int64{{ // it cannot fail
		"missing": found.Missing, "behind": found.Behind, "different": found.Different, "ahead": found.Ahead, "extra": found.Extra,
	}})
	audit.After, _ = json.Marshal([]map[string]int64{{"entries": found.Entries, "lowered": found.Ahead, "removed": found.Extra}})
	return audit
}
