package store

import (
	"context"
)

// A Database identifies the history of the database of a side. After a failover, a restore
// or a move, Live differs from Known. The data may then lack acknowledged changes and
// contradict the other side, until a rebuild.
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

// KnowDatabase records a database as the known one of the command side.
func (o *Outbox) KnowDatabase(ctx context.Context, identity string) error {
	return wrap(o.queries.KnowCommandDatabase(ctx, identity), "know database")
}

// TokenKey returns the 32 bytes that seal the tokens of the API. They are the same in every
// process and never change.
func (o *Outbox) TokenKey(ctx context.Context) ([]byte, error) {
	key, err := o.queries.GetTokenKey(ctx)
	return key, wrap(err, "get token key")
}

// Database returns the database of the query side. On a standby it returns
// problem.Unavailable.
func (b *Inbox) Database(ctx context.Context) (Database, error) {
	row, err := b.queries.GetQueryDatabase(ctx)
	return Database(row), wrap(err, "identify database of the query side")
}

// KnowDatabase records a database as the known one of the query side.
func (b *Inbox) KnowDatabase(ctx context.Context, identity string) error {
	return wrap(b.queries.KnowQueryDatabase(ctx, identity), "know database of the query side")
}
