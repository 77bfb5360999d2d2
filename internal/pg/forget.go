package pg

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/pg/internal/sqlcgen"
)

// InboxRows is how many ids one statement of CountInbox and ForgetInbox reads or deletes.
const InboxRows = 10_000

// CountInbox counts the events that the inbox of a consumer has. It reads all of them: some seconds for ten million.
func CountInbox(ctx context.Context, pool *pgxpool.Pool, consumer string) (n int64, err error) {
	for after, more := uuid.Nil, true; more; {
		page, err := sqlcgen.New(pool).CountInbox(ctx, after, consumer, InboxRows)
		if err != nil {
			return n, Wrap(err, "count the inbox of %s", consumer)
		}
		n += page.Read
		after, more = page.LastID, page.Read == InboxRows
	}
	return n, nil
}

// ForgetInbox makes every event new to a consumer: it appends the entry to the audit, and then empties
// the inbox, in short transactions. It returns how many events were deleted.
func ForgetInbox(ctx context.Context, pool *pgxpool.Pool, consumer string, e Entry, items int64) (n int64, err error) {
	q := sqlcgen.New(pool)
	if err := q.InsertSeekAudit(ctx, sqlcgen.InsertSeekAuditParams{
		ActionID: e.ActionID, Actor: e.Name, Via: e.Via, Action: e.Action, Filter: e.Filter, Reason: e.Reason, Items: items,
	}); err != nil {
		return 0, Wrap(err, "append audit")
	}
	for after, more := uuid.Nil, true; more; {
		page, err := q.ClearInbox(ctx, after, consumer, InboxRows)
		if err != nil {
			return n, Wrap(err, "clear the inbox of %s", consumer)
		}
		n += page.Read
		after, more = page.LastID, page.Read == InboxRows
	}
	return n, nil
}
