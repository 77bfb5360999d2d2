package replay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/googleapis/gax-go/v2"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/operate"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/options/replay/internal/sqlcgen"
)

// actionBackfill is the action, as the table audit names it.
const actionBackfill = "outbox.backfill"

const (
	// pageRows is how many aggregates one transaction publishes. They are locked while their state
	// is read and encoded.
	pageRows = 500
	// pageBytes limits a page: it ends with the aggregate that reaches this many bytes of payload.
	pageBytes = 8 << 20
	// pageTimeout ends a transaction that the time limits of the database do not end.
	pageTimeout = 30 * time.Second
	// countRows is how many ids one statement reads when aggregates are counted.
	countRows = 10_000
	// mostPending is how many events may be pending. A backfill waits while its next page would
	// exceed this number, so it delays other events by no more than these.
	mostPending = 2000
	// roomInterval is the pause between two counts of the pending events.
	roomInterval = 50 * time.Millisecond
)

// runBackfill publishes the state of every aggregate of a type.
func runBackfill(ctx context.Context, process *app.Process, args []string, stdout io.Writer) error {
	o, of, after, err := parseBackfill(args)
	if err != nil {
		return app.UsageError(err)
	}
	entry, err := o.Entry(actionBackfill, selection{Type: of.name, After: after})
	if err != nil {
		return err
	}
	if err := process.OpenCommandSide(ctx); err != nil {
		return err
	}
	b := backfill{aggregates: of, pool: process.CommandPool, entry: entry, most: mostPending, progress: logProgress(process.Log)}
	result, failure := b.run(ctx, after, o.DryRun)
	if failure != nil && result.Done == 0 {
		return failure
	}
	p := operate.NewPrinter(stdout, o.JSON)
	if result.Done == 0 {
		result.ActionID = uuid.Nil
		p.Line("%d aggregates match; nothing was changed", result.Matched)
	} else {
		p.Line("queued the state of %d of %d aggregates; action %s", result.Done, result.Matched, result.ActionID)
	}
	if failure != nil {
		p.Line("to continue, run it again with --after %s", result.Last)
	}
	p.Row(result)
	return errors.Join(p.End(), failure)
}

// progressInterval is how often the progress of a backfill is logged.
const progressInterval = 5 * time.Second

// logProgress returns a function that logs how many aggregates are done, at most once per
// progressInterval.
func logProgress(log *slog.Logger) func(ctx context.Context, done int64) {
	logged := time.Now()
	return func(ctx context.Context, done int64) {
		if time.Since(logged) >= progressInterval {
			logged = time.Now()
			log.InfoContext(ctx, "backfill: running", "done", done)
		}
	}
}

// selection is the filter of an entry in the audit.
type selection struct {
	Type  string    `json:"type"`
	After uuid.UUID `json:"after,omitzero"`
}

// parseBackfill reads the flags, and the aggregate type.
func parseBackfill(args []string) (o operate.Operation, of aggregates, after uuid.UUID, err error) {
	o, err = operate.ParseOperation(args, func(flags *flag.FlagSet) { flags.TextVar(&after, "after", uuid.Nil, "") })
	if err != nil {
		return o, of, after, fmt.Errorf("backfill: %w", err)
	}
	var types []string
	for _, a := range all() {
		if len(o.Args) == 1 && a.name == o.Args[0] {
			return o, a, after, nil
		}
		types = append(types, a.name)
	}
	slices.Sort(types)
	return o, of, after, fmt.Errorf("TYPE must be one of the aggregate types of this service: %s", strings.Join(types, ", "))
}

// backfill is a backfill that runs.
type backfill struct {
	aggregates

	pool     *pgxpool.Pool
	entry    pg.Entry
	most     int64 // see mostPending
	progress func(ctx context.Context, done int64)
}

// backfillResult is what a backfill did.
type backfillResult struct {
	ActionID uuid.UUID `json:"action_id,omitzero"` // zero if nothing was published
	Matched  int64     `json:"matched"`            // aggregates that existed when it began
	Done     int64     `json:"done"`
	Last     uuid.UUID `json:"last_id,omitzero"` // the id for --after, to continue
}

// page is a part of the aggregates of a type.
type page struct {
	items int64     // how many aggregates it has
	last  uuid.UUID // the last id that was read; if none was, the id before the page
	more  bool      // there may be more behind last
}

// run publishes a snapshot of every aggregate with an id above after: its current state and
// version. A snapshot is made under the lock of its aggregate, so later events follow it. run goes
// through the aggregates in pages, and leaves out aggregates that are created meanwhile. After a
// crash the finished pages are pending, with their rows in the audit.
func (b backfill) run(ctx context.Context, after uuid.UUID, dryRun bool) (backfillResult, error) {
	result := backfillResult{ActionID: b.entry.ActionID, Last: after}
	until := after
	for p := (page{last: after, more: true}); p.more; {
		var err error
		if p, err = b.count(ctx, p.last); err != nil {
			return result, err
		}
		result.Matched += p.items
		until = p.last
	}
	rows := min(pageRows, b.most)
	for p := (page{last: after, more: !dryRun}); p.more; {
		if err := b.waitForRoom(ctx, b.most-rows, result.Done); err != nil {
			return result, err
		}
		var err error
		if p, err = b.append(ctx, p.last, until, int32(rows)); err != nil {
			return result, err
		}
		result.Last = p.last
		result.Done += p.items
		rows = max(1, min(pageRows, b.most, 2*p.items)) // a page of large aggregates is cut, so the next one reads fewer
		b.progress(ctx, result.Done)
	}
	return result, nil
}

// waitForRoom waits while more than atMost events are pending.
func (b backfill) waitForRoom(ctx context.Context, atMost, done int64) error {
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%s: %w", actionBackfill, err)
		}
		pending, err := b.pending(ctx, atMost+1)
		if err != nil || pending <= atMost {
			return err
		}
		b.progress(ctx, done)
		_ = gax.Sleep(ctx, roomInterval)
	}
}

// pending counts the events in lanes, up to maxCounted. It does not count deferred ones,
// because they delay no other aggregate.
func (b backfill) pending(ctx context.Context, maxCounted int64) (n int64, err error) {
	err = pg.InTx(ctx, b.pool, "replay.CountPending", func(ctx context.Context, tx *pg.Tx) (err error) {
		q := sqlcgen.New(tx)
		pg.UseOutboxSettings(ctx, tx)
		n, err = q.CountPending(ctx, int32(maxCounted)) //nolint:gosec // a constant
		return err
	})
	return n, pg.Wrap(err, "count pending events")
}

// count counts the aggregates on the next page, which begins behind the id [after].
func (b backfill) count(ctx context.Context, after uuid.UUID) (p page, err error) {
	err = pg.InTx(ctx, b.pool, "replay.CountAggregates", func(ctx context.Context, tx *pg.Tx) error {
		pg.UseOutboxSettings(ctx, tx)
		ids, err := b.next(ctx, sqlcgen.New(tx), after, uuid.Max, countRows)
		p = pageOf(ids, after, countRows)
		return err
	})
	return p, pg.Wrap(err, "count aggregates behind %s", after)
}

// next returns the next ids, none above until.
func (b backfill) next(ctx context.Context, q *sqlcgen.Queries, after, until uuid.UUID, maxRows int32) ([]uuid.UUID, error) {
	ids, err := b.list(q, ctx, after, maxRows)
	if beyond := slices.IndexFunc(ids, func(id uuid.UUID) bool { return bytes.Compare(id[:], until[:]) > 0 }); beyond >= 0 {
		ids = ids[:beyond]
	}
	return ids, err
}

// pageOf returns the page that has ids.
func pageOf(ids []uuid.UUID, after uuid.UUID, maxRows int32) page {
	if len(ids) == 0 {
		return page{last: after}
	}
	return page{items: int64(len(ids)), last: ids[len(ids)-1], more: len(ids) == int(maxRows)}
}

// append makes snapshots of the next page pending, behind all pending events, and appends the
// entry to the audit, in one transaction. The end of ctx does not interrupt it, so that p.last is
// never behind the database.
func (b backfill) append(ctx context.Context, after, until uuid.UUID, maxRows int32) (p page, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pageTimeout)
	defer cancel()
	err = pg.InTx(ctx, b.pool, "replay.AppendSnapshots", func(ctx context.Context, tx *pg.Tx) error {
		pg.UseOutboxSettings(ctx, tx)
		q := sqlcgen.New(tx)
		ids, err := b.next(ctx, q, after, until, maxRows)
		if p = pageOf(ids, after, maxRows); err != nil || len(ids) == 0 {
			return err
		}
		messages, err := b.lock(ctx, tx, ids)
		if err != nil {
			return err
		}
		if n := fitting(messages); n < len(messages) {
			messages, p.more = messages[:n], true
			if p.last, err = uuid.Parse(messages[n-1].AggregateID); err != nil {
				return fmt.Errorf("id of %s: %w", b.name, err)
			}
		}
		p.items = int64(len(messages))
		if len(messages) == 0 { // all were removed meanwhile
			return nil
		}
		return b.write(ctx, tx, messages, ids[0], p.last)
	})
	return p, pg.Wrap(err, "backfill %s behind %s", b.name, after)
}

// fitting returns how many of the messages fit into a page: see pageBytes.
func fitting(messages []envelope.Message) int {
	size := 0
	for i, m := range messages {
		if size += len(m.Payload); size >= pageBytes {
			return i + 1
		}
	}
	return len(messages)
}

// write appends snapshots and the entry. The audit has only the first and the last id: the
// aggregates do not change, and there may be many.
func (b backfill) write(ctx context.Context, tx *pg.Tx, messages []envelope.Message, first, last uuid.UUID) error {
	before, err := json.Marshal([]map[string]uuid.UUID{{"first": first, "last": last}})
	if err != nil {
		return err
	}
	params := sqlcgen.AppendSnapshotsParams{
		AggregateType: b.name, EventType: messages[0].Type, SchemaVersion: messages[0].SchemaVersion,
		ActionID: b.entry.ActionID, Actor: b.entry.Name, Via: b.entry.Via, Action: b.entry.Action, Filter: b.entry.Filter, Reason: b.entry.Reason, Before: before,
	}
	for _, m := range messages {
		params.Ids = append(params.Ids, m.ID)
		params.AggregateIds = append(params.AggregateIds, m.AggregateID)
		params.Lanes = append(params.Lanes, outbox.Lane(m.Aggregate()))
		params.Versions = append(params.Versions, m.Version)
		params.Payloads = append(params.Payloads, m.Payload)
		params.Times = append(params.Times, m.OccurredAt)
	}
	tx.Queue(sqlcgen.New(tx).AppendSnapshots(ctx, params))
	return nil
}
