package store

import (
	"context"
	"math"
	"time"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// ListAudit implements admin.Outbox.
func (o *Outbox) ListAudit(ctx context.Context, before int64, maxRows int) ([]admin.Entry, error) {
	rows, err := o.queries.ListCommandAudit(ctx, orLast(before), limit(maxRows))
	if err != nil {
		return nil, wrap(err, "list audit")
	}
	return mapSlice(rows, entryOfAudit), nil
}

// PruneAudit deletes at most maxRows entries that are older than olderThan, by the clock of
// the database, and returns how many. It never deletes an entry of the last 30 days.
func (o *Outbox) PruneAudit(ctx context.Context, olderThan time.Duration, maxRows int) (int64, error) {
	n, err := o.queries.PruneCommandAudit(ctx, olderThan, limit(maxRows))
	return n, wrap(err, "prune audit")
}

// ListAudit implements admin.Quarantine.
func (b *Inbox) ListAudit(ctx context.Context, before int64, maxRows int) ([]admin.Entry, error) {
	rows, err := b.queries.ListQueryAudit(ctx, orLast(before), limit(maxRows))
	if err != nil {
		return nil, wrap(err, "list audit")
	}
	return mapSlice(rows, func(row sqlcgen.ListQueryAuditRow) admin.Entry {
		return entryOfAudit(sqlcgen.ListCommandAuditRow(row))
	}), nil
}

// PruneAudit deletes old entries of the query side. See [Outbox.PruneAudit].
func (b *Inbox) PruneAudit(ctx context.Context, olderThan time.Duration, maxRows int) (int64, error) {
	n, err := b.queries.PruneQueryAudit(ctx, olderThan, limit(maxRows))
	return n, wrap(err, "prune audit")
}

// orLast returns an id that all rows are before, if before is 0.
func orLast(before int64) int64 {
	if before == 0 {
		return math.MaxInt64
	}
	return before
}

func entryOfAudit(row sqlcgen.ListCommandAuditRow) admin.Entry {
	return admin.Entry{
		ID: row.ID, ActionID: row.ActionID, CreateTime: row.CreateTime.UTC(), Actor: admin.Actor{Name: row.Actor, Via: row.Via},
		DatabaseUser: row.DatabaseUser, Action: row.Action, Filter: row.Filter, Reason: row.Reason, Items: row.Items, Before: row.Before, After: row.After,
	}
}
