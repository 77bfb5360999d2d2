package store

import (
	"context"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// Blocked is an aggregate with an event that the broker refused, until all its events that
// were set aside are published.
type Blocked struct {
	envelope.Aggregate
	EventID   uuid.UUID // the first event set aside; uuid.Nil if nothing is set aside, for example after a skip
	Version   int64
	Attempts  int       // of that event, since a person last requeued or skipped
	LastError string    // of that event; empty if an earlier event was refused
	NextRetry time.Time // zero if parked
	ParkedAt  time.Time // zero if not parked
}

// ListBlocked returns blocked aggregates, parked ones first.
func (o *Outbox) ListBlocked(ctx context.Context, maxRows int) ([]Blocked, error) {
	rows, err := o.queries.ListOutboxBlocked(ctx, limit(maxRows))
	if err != nil {
		return nil, wrap(err, "list blocked aggregates")
	}
	return mapSlice(rows, func(row sqlcgen.ListOutboxBlockedRow) Blocked {
		return Blocked{
			Aggregate: envelope.Aggregate{Type: row.AggregateType, ID: row.AggregateID},
			EventID:   row.EventID, Version: row.Version, Attempts: int(row.Attempts), LastError: unescape(row.LastError),
			NextRetry: timeOf(row.NextRetryAt), ParkedAt: timeOf(row.ParkedAt),
		}
	}), nil
}

// RequeueEvent makes a blocked aggregate, parked or not, due immediately, with its attempts
// reset to 0. If it is not blocked, the error is problem.NotFound.
func (o *Outbox) RequeueEvent(ctx context.Context, aggregate envelope.Aggregate) error {
	n, err := o.queries.RequeueOutbox(ctx, aggregate.Type, aggregate.ID)
	if err != nil {
		return wrap(err, "requeue %s %s", aggregate.Type, aggregate.ID)
	}
	if n == 0 {
		return problem.Errorf(problem.NotFound, "%s %q is not blocked", aggregate.Type, aggregate.ID)
	}
	return nil
}

// SkipEvent gives up the refused event of a blocked aggregate. That event is never
// published, and the events behind it are tried next. If that event does not block the
// aggregate, the error is problem.NotFound.
func (o *Outbox) SkipEvent(ctx context.Context, aggregate envelope.Aggregate, eventID uuid.UUID) error {
	n, err := o.queries.SkipOutbox(ctx, aggregate.Type, aggregate.ID, eventID)
	if err != nil {
		return wrap(err, "skip event %s", eventID)
	}
	if n == 0 {
		return problem.Errorf(problem.NotFound, "event %q does not block %s %q", eventID, aggregate.Type, aggregate.ID)
	}
	return nil
}
