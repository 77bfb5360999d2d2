package admin

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/problem"
)

// actionRows is how many items one transaction of an action changes.
const actionRows = 1000

// action is an action that runs.
type action struct {
	Result
	entry    Entry
	progress func(done, matched int64)
}

// begin checks a request and counts what matches.
func begin(ctx context.Context, r Request, name string, count func(context.Context, Filter) (int64, error)) (*action, error) {
	a := &action{progress: r.Progress}
	if err := r.check(); err != nil {
		return a, err
	}
	var err error
	if a.Matched, err = count(ctx, r.Filter); err != nil || r.DryRun {
		return a, err
	}
	if err := r.checkConfirmed(a.Matched); err != nil {
		return a, err
	}
	a.entry, err = NewEntry(name, r.Filter, r.Actor, r.Reason)
	a.ActionID = a.entry.ActionID
	return a, err
}

// checkConfirmed returns problem.Precondition if more matches than was confirmed.
func (r Request) checkConfirmed(matched int64) error {
	if r.Confirmed > 0 && matched > r.Confirmed {
		return problem.Errorf(problem.Precondition, "%d items match now, and %d were confirmed: look at them again", matched, r.Confirmed)
	}
	return nil
}

// NewEntry returns what the audit has of an action, but for its items. selected says what the
// action is about, and becomes JSON. It is for actions that have no items to count: their
// caller runs them. The error is problem.Invalid for a wrong reason or actor.
func NewEntry(action string, selected any, actor Actor, reason string) (e Entry, err error) {
	if err := checkWhy(reason, actor); err != nil {
		return e, err
	}
	e = Entry{Actor: actor, Action: action, Reason: reason}
	if e.Filter, err = json.Marshal(selected); err != nil {
		return e, fmt.Errorf("%s: %w", action, err)
	}
	e.ActionID, err = uuid.NewV7()
	return e, err
}

// rows returns how many items the next transaction may change. An action never changes more
// items than matched when it began, so that a dry run holds.
func (a *action) rows() int { return int(min(actionRows, a.Matched-a.Done-a.Failures)) }

// done counts items, and reports the progress.
func (a *action) done(items int) {
	a.Done += int64(items)
	if a.progress != nil {
		a.progress(a.Done, a.Matched)
	}
}

// failed counts an item that stays as it was.
func (a *action) failed(id string, cause error) {
	a.Failures++
	if len(a.Failed) < maxFailures {
		a.Failed = append(a.Failed, Failure{ID: id, Cause: cause.Error()})
	}
}
