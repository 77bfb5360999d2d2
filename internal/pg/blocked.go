package pg

import (
	"context"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg/internal/sqlcgen"
)

// GroupBlocked returns the blocked aggregates by cause, the largest group first.
func (o *Outbox) GroupBlocked(ctx context.Context, maxRows int) ([]Group, error) {
	rows, err := o.queries.GroupBlocked(ctx, Limit(maxRows))
	if err != nil {
		return nil, Wrap(err, "group blocked aggregates")
	}
	return MapSlice(rows, func(row sqlcgen.GroupBlockedRow) Group {
		return Group{Cause: row.Cause, Sample: Unescape(row.Sample), Items: row.Items, Waiting: row.Waiting, Since: notEpoch(row.Since)}
	}), nil
}

// ListBlocked returns blocked aggregates that match, in the order of type and id, and how many
// match in all.
func (o *Outbox) ListBlocked(ctx context.Context, f Filter, maxRows int) (blocked []Blocked, total int64, err error) {
	rows, err := o.queries.ListBlocked(ctx, sqlcgen.ListBlockedParams{
		ID: Escape(f.ID), AggregateType: Escape(f.Type), AggregateID: Escape(f.Aggregate), Cause: Escape(f.Cause),
		Until: Optional(f.Until), Action: f.Action, MaxRows: Limit(maxRows),
	})
	for _, row := range rows {
		total = row.Total
		blocked = append(blocked, Blocked{
			Aggregate: envelope.Aggregate{Type: row.AggregateType, ID: row.AggregateID},
			EventID:   row.EventID, EventType: row.EventType, EventTime: notEpoch(row.EventTime), Version: row.Version,
			Attempts: int(row.Attempts), LastError: Unescape(row.LastError), Cause: row.Cause,
			NextRetry: TimeOf(row.NextRetryAt), ParkedAt: TimeOf(row.ParkedAt),
		})
	}
	return blocked, total, Wrap(err, "list blocked aggregates")
}

// RetryBlocked makes aggregates due immediately, with no attempts, and appends the entry to the
// audit, in one transaction. It returns how many aggregates it changed.
func (o *Outbox) RetryBlocked(ctx context.Context, blocked []Blocked, e Entry) (int64, error) {
	p := sqlcgen.RetryBlockedParams{ActionID: e.ActionID, Actor: e.Name, Via: e.Via, Action: e.Action, Filter: e.Filter, Reason: e.Reason}
	for _, b := range blocked {
		p.Types, p.Ids = append(p.Types, b.Type), append(p.Ids, b.ID)
	}
	n, err := o.queries.RetryBlocked(ctx, p)
	return n, Wrap(err, "retry blocked aggregates")
}

// SkipBlocked gives up the first event of each aggregate, and appends the entry, in one
// transaction. That event is never published, and the events behind it are tried next. An
// aggregate whose first event is no longer EventID, or no longer parked, stays as it is.
func (o *Outbox) SkipBlocked(ctx context.Context, blocked []Blocked, e Entry) (int64, error) {
	p := sqlcgen.SkipBlockedParams{ActionID: e.ActionID, Actor: e.Name, Via: e.Via, Action: e.Action, Filter: e.Filter, Reason: e.Reason}
	for _, b := range blocked {
		p.Types, p.Ids, p.EventIds = append(p.Types, b.Type), append(p.Ids, b.ID), append(p.EventIds, b.EventID)
		p.Parked = append(p.Parked, !b.ParkedAt.IsZero())
	}
	n, err := o.queries.SkipBlocked(ctx, p)
	return n, Wrap(err, "skip events of blocked aggregates")
}
