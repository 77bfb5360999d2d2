package admin

import (
	"context"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/problem"
)

// Outbox has the blocked aggregates of the command side.
type Outbox interface {
	// GroupBlocked returns the blocked aggregates by cause, the largest group first.
	GroupBlocked(ctx context.Context, maxRows int) ([]Group, error)
	// ListBlocked returns blocked aggregates that match, in the order of type and id,
	// behind the given one. An age matches only parked ones.
	ListBlocked(ctx context.Context, filter Filter, after envelope.Aggregate, maxRows int) ([]Blocked, error)
	// CountBlocked counts what an action with this filter would change: aggregates that are
	// parked, and a blocked one that is named by its id.
	CountBlocked(ctx context.Context, filter Filter) (int64, error)
	// RequeueBlocked makes at most maxRows of them due immediately, with no attempts, and
	// appends the entry, in one transaction. It returns them in order.
	RequeueBlocked(ctx context.Context, filter Filter, after envelope.Aggregate, maxRows int, entry Entry) ([]envelope.Aggregate, error)
	// SkipBlocked gives up the first event of each, in the same way. That event is never
	// published, and the events behind it are tried next. If eventID is not uuid.Nil, it
	// gives up no other event.
	SkipBlocked(ctx context.Context, filter Filter, eventID uuid.UUID, after envelope.Aggregate, maxRows int, entry Entry) ([]envelope.Aggregate, error)
}

// Requeue makes parked aggregates try their first event again. With an id it does that for
// a blocked aggregate too, which would try again by itself later. The error is
// problem.NotFound if a named aggregate is not blocked, and problem.Invalid for a wrong
// request.
func Requeue(ctx context.Context, outbox Outbox, r Request) (Result, error) {
	return actOnBlocked(ctx, outbox, r, ActionRequeue, outbox.RequeueBlocked)
}

// Skip gives up the first event of aggregates: see Outbox.SkipBlocked. For a named aggregate
// it must be named too, so that a repeated skip does not give up the next one. It returns the
// same errors as Requeue.
func Skip(ctx context.Context, outbox Outbox, r Request) (Result, error) {
	if r.Filter.ID != "" && r.EventID == uuid.Nil {
		return Result{}, problem.InvalidField("event_id", "must name the first event of the aggregate, as the list shows it")
	}
	return actOnBlocked(ctx, outbox, r, ActionSkip, func(ctx context.Context, filter Filter, after envelope.Aggregate, maxRows int, entry Entry) ([]envelope.Aggregate, error) {
		return outbox.SkipBlocked(ctx, filter, r.EventID, after, maxRows, entry)
	})
}

// actOnBlocked changes what matches, in the order of the keys, in transactions of at most
// actionRows. So every aggregate is changed at most once, even if it is blocked again
// meanwhile. A crash leaves the transactions before it, with their rows in the audit.
func actOnBlocked(ctx context.Context, outbox Outbox, r Request, action string,
	act func(context.Context, Filter, envelope.Aggregate, int, Entry) ([]envelope.Aggregate, error),
) (Result, error) {
	run, err := begin(ctx, r, action, outbox.CountBlocked)
	if err != nil || r.DryRun {
		return run.Result, err
	}
	var after envelope.Aggregate
	for rows := run.rows(); rows > 0; rows = run.rows() {
		changed, err := act(ctx, r.Filter, after, rows, run.entry)
		if err != nil {
			return run.Result, err
		}
		if len(changed) == 0 {
			break
		}
		after = changed[len(changed)-1]
		run.done(len(changed))
	}
	if r.Filter.ID != "" && run.Done == 0 {
		return run.Result, problem.Errorf(problem.NotFound, "%s/%s is not blocked%s", r.Filter.Type, r.Filter.ID, byEvent(r.EventID))
	}
	return run.Result, nil
}

func byEvent(id uuid.UUID) string {
	if id == uuid.Nil {
		return ""
	}
	return " by event " + id.String()
}
