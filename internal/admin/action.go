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
	if r.Confirmed > 0 && a.Matched > r.Confirmed {
		return a, problem.Errorf(problem.Precondition, "%d items match now, and %d were confirmed: look at them again", a.Matched, r.Confirmed)
	}
	filter, err := json.Marshal(r.Filter)
	if err != nil {
		return a, fmt.Errorf("%s: %w", name, err)
	}
	a.ActionID, err = uuid.NewV7()
	a.entry = Entry{ActionID: a.ActionID, Actor: r.Actor, Action: name, Filter: filter, Reason: r.Reason}
	return a, err
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
