package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/problem"
)

// The actions that publish something again, as the table audit names them.
const (
	ActionRepublish = "outbox.republish"
	ActionBackfill  = "outbox.backfill"
)

// Repeatable is what can be published again, in the order of its ids: events, or the
// aggregates of one type.
type Repeatable interface {
	// CountPending counts the events that a publisher could send now, up to maxCounted.
	CountPending(ctx context.Context, maxCounted int) (int64, error)
	// CountItems counts the items of the next page behind after. No id of the page is
	// above until.
	CountItems(ctx context.Context, after, until uuid.UUID) (Page, error)
	// RepeatItems makes at most maxRows items of the next page pending, behind everything
	// that is pending, and appends the entry, in one transaction.
	RepeatItems(ctx context.Context, after, until uuid.UUID, maxRows int, entry Entry) (Page, error)
}

// Page is a part of what can be published again.
type Page struct {
	Items int64     // how many items that match it has
	Last  uuid.UUID // the last id that was read; that of the request if there was none
	More  bool      // there may be more behind Last
}

// RepeatRequest describes what is published again.
type RepeatRequest struct {
	Request
	// From and To select events by the time of their ids: at or after From, and before To.
	// Zero does not restrict. A backfill has neither.
	From, To time.Time
	// After continues behind this id, which an interrupted action has returned.
	After uuid.UUID
	// Pending is how many events may be pending: the action waits while its next page would
	// exceed that. So it delays no other event by more. 1 to 100,000; default 2,000.
	Pending int
}

// RepeatResult is what such an action did.
type RepeatResult struct {
	Result
	// Last is behind what is done: an interrupted action continues with it as After.
	Last uuid.UUID `json:"last_id,omitzero"`
}

// Repeat does one of the two for a request: Republish or Backfill.
type Repeat func(context.Context, RepeatRequest) (RepeatResult, error)

const (
	// repeatedEvents and repeatedAggregates are how many items one transaction repeats. An
	// aggregate is locked while its state is read and encoded, so those are fewer.
	repeatedEvents     = 1000
	repeatedAggregates = 500

	defaultPending = 2000
	maxPending     = 100_000
)

// Republish makes events of the outbox pending again, with the same ids, versions and
// payloads, and marked. Events of an aggregate that are pending go first. Within a
// transaction the events of an aggregate are in the order of their versions, and the
// transactions are in the order of ids: that is the order of time, by the clocks of the
// commands. The error is problem.Invalid for a wrong request, and problem.NotFound if a
// named aggregate has no event.
func Republish(ctx context.Context, events Repeatable, r RepeatRequest) (RepeatResult, error) {
	if r.Filter.Cause != "" || r.Filter.Age != 0 {
		return RepeatResult{}, problem.InvalidField("filter", "must have only a type and an id: from and to select the time")
	}
	result, err := repeat(ctx, events, r, ActionRepublish, repeatedEvents)
	if err == nil && r.Filter.ID != "" && result.Matched == 0 {
		err = problem.Errorf(problem.NotFound, "the outbox has no such event of %q", r.Filter.ID)
	}
	return result, err
}

// Backfill makes a snapshot of every aggregate pending, marked, with its current state and
// version. Each is read under the lock of its aggregate, so later events follow it. The
// error is problem.Invalid for a wrong request.
func Backfill(ctx context.Context, aggregates Repeatable, r RepeatRequest) (RepeatResult, error) {
	return repeat(ctx, aggregates, r, ActionBackfill, repeatedAggregates)
}

// repeat goes through the items in pages. What comes into being while it runs is not part
// of it. A crash leaves the pages before it, with their rows in the audit.
func repeat(ctx context.Context, items Repeatable, r RepeatRequest, action string, maxRows int) (RepeatResult, error) {
	r.Pending = cmp.Or(r.Pending, defaultPending)
	if err := r.checkRepeat(); err != nil {
		return RepeatResult{}, err
	}
	result := RepeatResult{Last: r.After}
	after, until := r.bounds()
	run, err := begin(ctx, r.Request, action, func(ctx context.Context, _ Filter) (count int64, err error) {
		count, until, err = countItems(ctx, items, after, until)
		return count, err
	})
	result.Result = run.Result
	if err != nil || r.DryRun {
		return result, err
	}
	if run.entry.Filter, err = json.Marshal(r.selected()); err != nil {
		return result, fmt.Errorf("%s: %w", action, err)
	}
	rows := min(maxRows, r.Pending)
	for page := (Page{Last: after, More: true}); page.More; {
		if err = run.waitForRoom(ctx, items, r.Pending-rows); err != nil {
			break
		}
		if page, err = repeatPage(ctx, items, page.Last, until, rows, run.entry); err != nil {
			break
		}
		result.Last = page.Last
		run.done(int(page.Items))
	}
	result.Result = run.Result
	return result, err
}

// repeatPage is not interrupted, so that Last is behind all that is done.
func repeatPage(ctx context.Context, items Repeatable, after, until uuid.UUID, rows int, entry Entry) (Page, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pageTimeout)
	defer cancel()
	return items.RepeatItems(ctx, after, until, rows, entry)
}

// pageTimeout ends a transaction that the time limits of the database do not end.
const pageTimeout = 30 * time.Second

// countItems counts all items, and returns the last id.
func countItems(ctx context.Context, items Repeatable, after, until uuid.UUID) (count int64, last uuid.UUID, err error) {
	for page := (Page{Last: after, More: true}); page.More; {
		if page, err = items.CountItems(ctx, page.Last, until); err != nil {
			return 0, until, err
		}
		count, last = count+page.Items, page.Last
	}
	return count, last, nil
}

// waitForRoom waits while more events than that are pending.
func (a *action) waitForRoom(ctx context.Context, items Repeatable, atMost int) error {
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%s: %w", a.entry.Action, err)
		}
		pending, err := items.CountPending(ctx, atMost+1)
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

func (r RepeatRequest) checkRepeat() error {
	switch {
	case !r.From.IsZero() && r.From.UnixMilli() < 0:
		return problem.InvalidField("from", "must be 1970 or later")
	case !r.To.IsZero() && (r.To.UnixMilli() < 0 || !r.To.After(r.From)):
		return problem.InvalidField("to", "must be later than from, and 1970 or later")
	case r.Pending < 1 || r.Pending > maxPending:
		return problem.InvalidField("pending", "must be from 1 to %d", maxPending)
	}
	return nil
}

// bounds returns the ids between which all items are.
func (r RepeatRequest) bounds() (after, until uuid.UUID) {
	after, until = r.After, uuid.Max
	if from := firstID(r.From); bytes.Compare(from[:], after[:]) > 0 {
		after = from
	}
	if !r.To.IsZero() {
		until = firstID(r.To)
	}
	return after, until
}

// firstID returns an id below all UUIDv7 of a time and later, and above all of earlier
// times. For the zero time it returns uuid.Nil.
func firstID(t time.Time) (id uuid.UUID) {
	if !t.IsZero() {
		binary.BigEndian.PutUint64(id[:], uint64(t.UnixMilli())<<16)
	}
	return id
}

// repeatSelection is the filter of an entry in the audit.
type repeatSelection struct {
	Filter
	From    time.Time `json:"from,omitzero"`
	To      time.Time `json:"to,omitzero"`
	After   uuid.UUID `json:"after,omitzero"`
	Pending int       `json:"pending"`
}

func (r RepeatRequest) selected() repeatSelection {
	return repeatSelection{Filter: r.Filter, From: r.From, To: r.To, After: r.After, Pending: r.Pending}
}
