package store

import (
	"context"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// A Database identifies the history of the database of a side. After a failover, a restore
// or a move, Live differs from Known. The data may then lack acknowledged changes and
// contradict the other side, until a repair.
type Database struct {
	Live  string // the current history
	Known string // the history in which the data was last known to be right
}

// Database returns the database of the command side. On a standby it returns
// problem.Unavailable.
func (o *Outbox) Database(ctx context.Context) (Database, error) {
	row, err := o.queries.GetCommandDatabase(ctx)
	return Database(row), wrap(err, "identify database")
}

// KnowDatabase records a database as the known one of the command side, and appends the entry
// to the audit, in one transaction. If it is known already, nothing changes.
func (o *Outbox) KnowDatabase(ctx context.Context, identity string, e admin.Entry) (changed bool, err error) {
	n, err := o.queries.KnowCommandDatabase(ctx, sqlcgen.KnowCommandDatabaseParams{
		Identity: identity, ActionID: e.ActionID, Actor: e.Actor.Name, Via: e.Actor.Via, Action: e.Action, Filter: e.Filter, Reason: e.Reason,
	})
	return n > 0, wrap(err, "know database")
}

// Database returns the database of the query side. On a standby it returns
// problem.Unavailable.
func (b *Inbox) Database(ctx context.Context) (Database, error) {
	row, err := b.queries.GetQueryDatabase(ctx)
	return Database(row), wrap(err, "identify database of the query side")
}

// KnowDatabase is the same as that of Outbox, for the query side.
func (b *Inbox) KnowDatabase(ctx context.Context, identity string, e admin.Entry) (changed bool, err error) {
	n, err := b.queries.KnowQueryDatabase(ctx, sqlcgen.KnowQueryDatabaseParams{
		Identity: identity, ActionID: e.ActionID, Actor: e.Actor.Name, Via: e.Actor.Via, Action: e.Action, Filter: e.Filter, Reason: e.Reason,
	})
	return n > 0, wrap(err, "know database of the query side")
}
