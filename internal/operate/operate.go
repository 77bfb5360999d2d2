// Package operate lists and frees what is stuck: blocked aggregates, whose event the broker
// refused, and messages in quarantine. It has the commands status, stuck, retry and skip. Both sides
// have the same filter and actions, and on each an action and its entry in the table audit are one
// transaction. A retry never changes the order of events: it makes an aggregate due, or applies a
// message whose version decides. A skip of an event is noted in a row.
//
// It also has the flags and the output of an operator's command, which the commands of options share.
package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/problem"
)

// Sides are the two sides of a service. Outbox or Inbox is nil while its database is unavailable:
// then all is done on the other side.
type Sides struct {
	Outbox    *pg.Outbox
	Inbox     *pg.Inbox
	Consumers []string // of the query side
	// Replay applies a message that was in quarantine, as the process that received it would have.
	Replay func(context.Context, pg.Quarantined) error
}

// The actions, as the table audit names them.
const (
	Retry = "retry"
	Skip  = "skip"
)

// left says why an action takes none of the aggregates that are stuck.
var left = map[string]string{
	Retry: "due already, so a publisher tries them next: %d",
	Skip:  "tried again by themselves, so a skip takes them only by the id of the event: %d",
}

// MostItems is how many items of each side an action changes at most, unless --limit says otherwise.
const MostItems = 10_000

// Found has the blocked aggregates and the quarantined messages that match a filter.
type Found struct {
	Blocked  []pg.Blocked
	Messages []pg.Quarantined
	Total    int64 // with the items that are left out
}

// Find returns at most mostOfSide items of each side that match.
func (s Sides) Find(ctx context.Context, f pg.Filter, mostOfSide int) (found Found, err error) {
	var messages int64
	if s.Outbox != nil {
		found.Blocked, found.Total, err = s.Outbox.ListBlocked(ctx, f, mostOfSide)
	}
	if s.Inbox != nil && err == nil {
		found.Messages, messages, err = s.Inbox.ListQuarantine(ctx, f, mostOfSide)
	}
	found.Total += messages
	return found, err
}

// Causes returns the causes of both sides, at most mostOfSide of each, the most frequent first.
func (s Sides) Causes(ctx context.Context, mostOfSide int) (all []pg.Group, err error) {
	var messages []pg.Group
	if s.Outbox != nil {
		all, err = s.Outbox.GroupBlocked(ctx, mostOfSide)
	}
	if s.Inbox != nil && err == nil {
		messages, err = s.Inbox.GroupQuarantine(ctx, mostOfSide)
	}
	all = append(all, messages...)
	slices.SortStableFunc(all, func(a, b pg.Group) int { return cmp.Compare(b.Items, a.Items) })
	return all, err
}

// Result is the result of an action.
type Result struct {
	ActionID uuid.UUID `json:"action_id,omitzero"` // of its entries in the table audit; zero if nothing was changed
	Matched  int64     `json:"matched"`
	Done     int64     `json:"done"`
	Left     string    `json:"left,omitempty"`   // why nothing matches, although it is stuck
	Failed   []string  `json:"failed,omitempty"` // messages that could not be applied, and why: they stay
}

// Act retries or skips at most mostOfSide items of each side that match. A retry makes an aggregate
// try its first event at once, and applies a message. A skip gives up the first event of an
// aggregate for ever, and deletes a message. It changes no item that others have changed meanwhile.
// Without an entry nothing is changed: the result has how many items match.
//
// A skip takes an aggregate that is not parked only by the id of its event. A skip of a named
// aggregate needs that id, too, so that a repeated skip does not give up the next event.
// If the process dies in the middle of a retry, messages that it has applied stay. Another retry
// applies them again, which the inbox and the version make harmless.
func (s Sides) Act(ctx context.Context, action string, f pg.Filter, mostOfSide int, e pg.Entry) (r Result, err error) {
	if action == Skip && f.Aggregate != "" && f.ID == "" {
		return r, problem.InvalidField("id", "must name what to skip")
	}
	if f.ID == "" && f.Aggregate == "" {
		f.Action = action
	}
	found, err := s.Find(ctx, f, mostOfSide)
	if r.Matched = found.Total; err == nil && r.Matched == 0 {
		f.Action = ""
		var all Found
		if all, err = s.Find(ctx, f, 1); all.Total > 0 {
			r.Left = fmt.Sprintf(left[action], all.Total)
		}
	}
	if err != nil || e.Action == "" {
		return r, err
	}
	if len(found.Blocked) > 0 && action == Skip {
		r.Done, err = s.Outbox.SkipBlocked(ctx, found.Blocked, e)
	} else if len(found.Blocked) > 0 {
		r.Done, err = s.Outbox.RetryBlocked(ctx, found.Blocked, e)
	}
	err = errors.Join(err, s.actOnMessages(ctx, found.Messages, e, &r))
	if r.Done > 0 {
		r.ActionID = e.ActionID
	}
	return r, err
}

// actOnMessages deletes messages. A retry applies them first, in the order in which they were
// quarantined, and deletes those that are applied, also after an interrupt.
func (s Sides) actOnMessages(ctx context.Context, messages []pg.Quarantined, e pg.Entry, r *Result) error {
	var ids []int64
	for _, m := range messages {
		err := ctx.Err()
		if err == nil && e.Action == Retry {
			err = s.apply(ctx, m)
		}
		if err == nil {
			ids = append(ids, m.ID)
		} else if ctx.Err() == nil {
			r.Failed = append(r.Failed, fmt.Sprintf("message %d: %v", m.ID, err))
		}
	}
	if len(ids) == 0 {
		return ctx.Err()
	}
	record, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	n, err := s.Inbox.DeleteQuarantine(record, ids, e)
	r.Done += n
	return errors.Join(err, ctx.Err())
}

func (s Sides) apply(ctx context.Context, m pg.Quarantined) (err error) {
	if m.PayloadSHA256 != "" {
		return errors.New("its payload was not kept, because the quarantine was full: have it delivered again, see docs/operations.md#a-message-was-quarantined")
	}
	if m.Payload, err = s.Inbox.QuarantinedPayload(ctx, m.ID); err != nil {
		return err
	}
	return s.Replay(ctx, m)
}
