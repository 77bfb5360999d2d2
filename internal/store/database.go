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
func (s *Videos) Database(ctx context.Context) (Database, error) {
	row, err := s.queries.GetVideoDatabase(ctx)
	return Database(row), wrap(err, "identify database")
}

// KnowDatabase records a database as the known one of the command side.
func (s *Videos) KnowDatabase(ctx context.Context, identity string) error {
	return wrap(s.queries.KnowVideoDatabase(ctx, identity), "know database")
}

// TokenKey returns the 32 bytes that seal the tokens of the API. They are the same in every
// process and never change.
func (s *Videos) TokenKey(ctx context.Context) ([]byte, error) {
	key, err := s.queries.GetTokenKey(ctx)
	return key, wrap(err, "get token key")
}

// Database returns the database of the query side. On a standby it returns
// problem.Unavailable.
func (c *Catalog) Database(ctx context.Context) (Database, error) {
	row, err := c.queries.GetCatalogDatabase(ctx)
	return Database(row), wrap(err, "identify catalog database")
}

// KnowDatabase records a database as the known one of the query side.
func (c *Catalog) KnowDatabase(ctx context.Context, identity string) error {
	return wrap(c.queries.KnowCatalogDatabase(ctx, identity), "know catalog database")
}

// MoveFutureChanges makes entries visible to watches whose transaction id is still in the
// future. A dump has such entries after a restore into a younger cluster. It moves at most
// maxRows entries and returns how many. After a crash, the next call moves the rest.
func (c *Catalog) MoveFutureChanges(ctx context.Context, maxRows int) (int64, error) {
	n, err := c.queries.MoveFutureProjections(ctx, limit(maxRows))
	if n > 0 {
		c.changes.announce()
	}
	return n, wrap(err, "move changes of the future")
}
