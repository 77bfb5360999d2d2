package store

import (
	"context"
	"time"
)

// PruneAudit deletes at most maxRows entries that are older than olderThan, by the clock of
// the database, and returns how many. It never deletes an entry of the last 30 days.
func (o *Outbox) PruneAudit(ctx context.Context, olderThan time.Duration, maxRows int) (int64, error) {
	n, err := o.queries.PruneCommandAudit(ctx, olderThan, limit(maxRows))
	return n, wrap(err, "prune audit")
}

// PruneAudit deletes old entries of the query side. See [Outbox.PruneAudit].
func (b *Inbox) PruneAudit(ctx context.Context, olderThan time.Duration, maxRows int) (int64, error) {
	n, err := b.queries.PruneQueryAudit(ctx, olderThan, limit(maxRows))
	return n, wrap(err, "prune audit")
}
