package store

import (
	"context"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

var _ admin.Outbox = (*Outbox)(nil)

// GroupBlocked implements admin.Outbox.
func (o *Outbox) GroupBlocked(ctx context.Context, maxRows int) ([]admin.Group, error) {
	rows, err := o.queries.GroupBlocked(ctx, limit(maxRows))
	if err != nil {
		return nil, wrap(err, "group blocked aggregates")
	}
	return mapSlice(rows, func(row sqlcgen.GroupBlockedRow) admin.Group {
		return admin.Group{
			Cause: row.Cause, Sample: unescape(row.Sample), Items: row.Items, Waiting: row.Waiting,
			First: notEpoch(row.FirstTime), Last: notEpoch(row.LastTime),
		}
	}), nil
}

// ListBlocked implements admin.Outbox.
func (o *Outbox) ListBlocked(ctx context.Context, filter admin.Filter, after envelope.Aggregate, maxRows int) ([]admin.Blocked, error) {
	rows, err := o.queries.ListBlocked(ctx, sqlcgen.ListBlockedParams{
		AfterType: after.Type, AfterID: after.ID, MaxRows: limit(maxRows),
		AggregateType: filter.Type, AggregateID: filter.ID, Cause: filter.Cause, Age: filter.Age,
	})
	if err != nil {
		return nil, wrap(err, "list blocked aggregates")
	}
	return mapSlice(rows, func(row sqlcgen.ListBlockedRow) admin.Blocked {
		return admin.Blocked{
			Aggregate: envelope.Aggregate{Type: row.AggregateType, ID: row.AggregateID},
			EventID:   row.EventID, EventType: row.EventType, EventTime: notEpoch(row.EventTime), Version: row.Version,
			Attempts: int(row.Attempts), LastError: unescape(row.LastError), Cause: row.Cause,
			NextRetry: timeOf(row.NextRetryAt), ParkedAt: timeOf(row.ParkedAt),
		}
	}), nil
}

// CountBlocked implements admin.Outbox.
func (o *Outbox) CountBlocked(ctx context.Context, filter admin.Filter) (int64, error) {
	n, err := o.queries.CountBlocked(ctx, sqlcgen.CountBlockedParams{
		AggregateType: filter.Type, AggregateID: filter.ID, Cause: filter.Cause, Age: filter.Age,
	})
	return n, wrap(err, "count blocked aggregates")
}

// RequeueBlocked implements admin.Outbox.
func (o *Outbox) RequeueBlocked(ctx context.Context, filter admin.Filter, after envelope.Aggregate, maxRows int, e admin.Entry) ([]envelope.Aggregate, error) {
	rows, err := o.queries.RequeueBlocked(ctx, sqlcgen.RequeueBlockedParams{
		AfterType: after.Type, AfterID: after.ID, MaxRows: limit(maxRows),
		AggregateType: filter.Type, AggregateID: filter.ID, Cause: filter.Cause, Age: filter.Age,
		ActionID: e.ActionID, Actor: e.Actor.Name, Via: e.Actor.Via, Action: e.Action, Filter: e.Filter, Reason: e.Reason,
	})
	if err != nil {
		return nil, wrap(err, "requeue blocked aggregates")
	}
	return mapSlice(rows, func(row sqlcgen.RequeueBlockedRow) envelope.Aggregate {
		return envelope.Aggregate{Type: row.AggregateType, ID: row.AggregateID}
	}), nil
}

// SkipBlocked implements admin.Outbox.
func (o *Outbox) SkipBlocked(ctx context.Context, filter admin.Filter, eventID uuid.UUID, after envelope.Aggregate, maxRows int, e admin.Entry) ([]envelope.Aggregate, error) {
	var only *uuid.UUID
	if eventID != uuid.Nil {
		only = &eventID
	}
	rows, err := o.queries.SkipBlocked(ctx, sqlcgen.SkipBlockedParams{
		AfterType: after.Type, AfterID: after.ID, MaxRows: limit(maxRows), EventID: only,
		AggregateType: filter.Type, AggregateID: filter.ID, Cause: filter.Cause, Age: filter.Age,
		ActionID: e.ActionID, Actor: e.Actor.Name, Via: e.Actor.Via, Action: e.Action, Filter: e.Filter, Reason: e.Reason,
	})
	if err != nil {
		return nil, wrap(err, "skip events of blocked aggregates")
	}
	return mapSlice(rows, func(row sqlcgen.SkipBlockedRow) envelope.Aggregate {
		return envelope.Aggregate{Type: row.AggregateType, ID: row.AggregateID}
	}), nil
}

// notEpoch returns a time, or the zero time for the epoch, which a query returns for no
// time.
func notEpoch(t time.Time) time.Time {
	if t.Unix() == 0 {
		return time.Time{}
	}
	return t.UTC()
}
