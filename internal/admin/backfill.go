package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/problem"
)

// ActionBackfill is the action, as the table audit names it.
const ActionBackfill = "outbox.backfill"

// Snapshots publishes the state of the aggregates of one type, in the order of their ids.
type Snapshots interface {
	// CountPending counts the events that a publisher could send now, up to maxCounted.
	CountPending(ctx context.Context, maxCounted int) (int64, error)
	// CountAggregates counts the aggregates of the next page behind after.
	CountAggregates(ctx context.Context, after uuid.UUID) (Page, error)
	// AppendSnapshots makes snapshots of at most maxRows aggregates of the next page pending,
	// behind everything that is pending, and appends the entry, in one transaction. No id of
	// the page is above until.
	AppendSnapshots(ctx context.Context, after, until uuid.UUID, maxRows int, entry Entry) (Page, error)
}

// Page is a part of the aggregates of a type.
type Page struct {
	Items int64     // how many aggregates it has
	Last  uuid.UUID // the last id that was read; that of the request if there was none
	More  bool      // there may be more behind Last
}

// BackfillRequest describes a backfill. Its filter has an aggregate type.
type BackfillRequest struct {
	Request
	// After continues behind this id, which an interrupted backfill has returned.
	After uuid.UUID
	// Pending is how many events may be pending: the backfill waits while its next page would
	// exceed that. So it delays no other event by more. 1 to 100,000; default 2,000.
	Pending int
}

// BackfillResult is what a backfill did.
type BackfillResult struct {
	Result
	// Last is behind what is done: an interrupted backfill continues with it as After.
	Last uuid.UUID `json:"last_id,omitzero"`
}

// Backfiller runs Backfill for a request.
type Backfiller func(context.Context, BackfillRequest) (BackfillResult, error)

const (
	// backfillRows is how many aggregates one transaction publishes. They are locked while
	// their state is read and encoded.
	backfillRows = 500

	defaultPending = 2000
	maxPending     = 100_000
)

// Backfill makes a snapshot of every aggregate of a type pending, marked, with its current
// state and version. Each is read under the lock of its aggregate, so later events follow it.
// It goes through the aggregates in pages. Those that are created while it runs are not part
// of it. A crash leaves the pages before it, with their rows in the audit. The error is
// problem.Invalid for a wrong request.
func Backfill(ctx context.Context, s Snapshots, r BackfillRequest) (BackfillResult, error) {
	if r.Pending = cmp.Or(r.Pending, defaultPending); r.Pending < 1 || r.Pending > maxPending {
		return BackfillResult{}, problem.InvalidField("pending", "must be from 1 to %d", maxPending)
	}
	result := BackfillResult{Last: r.After}
	var until uuid.UUID
	run, err := begin(ctx, r.Request, ActionBackfill, func(ctx context.Context, _ Filter) (count int64, err error) {
		count, until, err = countAggregates(ctx, s, r.After)
		return count, err
	})
	result.Result = run.Result
	if err != nil || r.DryRun {
		return result, err
	}
	if run.entry.Filter, err = json.Marshal(backfillSelection{Filter: r.Filter, After: r.After, Pending: r.Pending}); err != nil {
		return result, fmt.Errorf("%s: %w", ActionBackfill, err)
	}
	rows := min(backfillRows, r.Pending)
	for page := (Page{Last: r.After, More: true}); page.More; {
		if err = run.waitForRoom(ctx, s, r.Pending-rows); err != nil {
			break
		}
		if page, err = appendPage(ctx, s, page.Last, until, rows, run.entry); err != nil {
			break
		}
		result.Last = page.Last
		run.done(int(page.Items))
	}
	result.Result = run.Result
	return result, err
}

// appendPage is not interrupted, so that Last is behind all that is done.
func appendPage(ctx context.Context, s Snapshots, after, until uuid.UUID, rows int, entry Entry) (Page, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pageTimeout)
	defer cancel()
	return s.AppendSnapshots(ctx, after, until, rows, entry)
}

// pageTimeout ends a transaction that the time limits of the database do not end.
const pageTimeout = 30 * time.Second

// countAggregates counts all aggregates, and returns the last id.
func countAggregates(ctx context.Context, s Snapshots, after uuid.UUID) (count int64, last uuid.UUID, err error) {
	for page := (Page{Last: after, More: true}); page.More; {
		if page, err = s.CountAggregates(ctx, page.Last); err != nil {
			return 0, uuid.Nil, err
		}
		count, last = count+page.Items, page.Last
	}
	return count, last, nil
}

// waitForRoom waits while more events than that are pending.
func (a *action) waitForRoom(ctx context.Context, s Snapshots, atMost int) error {
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%s: %w", a.entry.Action, err)
		}
		pending, err := s.CountPending(ctx, atMost+1)
		if err != nil || pending <= int64(atMost) {
			return err
		}
		a.done(0)
		select {
		case <-ctx.Done():
		case <-time.After(roomInterval):
		}
	}
}

// roomInterval is the pause between two looks at what is pending.
const roomInterval = 50 * time.Millisecond

// backfillSelection is the filter of an entry in the audit.
type backfillSelection struct {
	Filter
	After   uuid.UUID `json:"after,omitzero"`
	Pending int       `json:"pending"`
}
