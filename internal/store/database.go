package store

import (
	"context"
)

// A Database says in which history of which database a side is. After a failover,
// a restore or a move, Live is another than Known: what is there may lack what
// was acknowledged, and contradict the other side, until a rebuild.
type Database struct {
	Live  string // where the side is
	Known string // where it was last known to be right
}

// Database returns the database of the command side; domain.Unavailable on a
// standby.
func (s *Videos) Database(ctx context.Context) (Database, error) {
	row, err := s.queries.GetVideoDatabase(ctx)
	return Database(row), wrap(err, "identify database")
}

// KnowDatabase makes a database the known one of the command side.
func (s *Videos) KnowDatabase(ctx context.Context, identity string) error {
	return wrap(s.queries.KnowVideoDatabase(ctx, identity), "know database")
}

// TokenKey returns the 32 bytes that seal the tokens of the API, the same in every
// process and for good.
func (s *Videos) TokenKey(ctx context.Context) ([]byte, error) {
	key, err := s.queries.GetTokenKey(ctx)
	return key, wrap(err, "get token key")
}

// Database returns the database of the query side; domain.Unavailable on a
// standby.
func (c *Catalog) Database(ctx context.Context) (Database, error) {
	row, err := c.queries.GetCatalogDatabase(ctx)
	return Database(row), wrap(err, "identify catalog database")
}

// KnowDatabase makes a database the known one of the query side.
func (c *Catalog) KnowDatabase(ctx context.Context, identity string) error {
	return wrap(c.queries.KnowCatalogDatabase(ctx, identity), "know catalog database")
}

// MoveFutureChanges lets watches see entries that a transaction yet to come seems
// to have written, at most maxRows, and returns how many. A dump that is restored
// into a younger cluster has such. A crash leaves the rest for the next call.
func (c *Catalog) MoveFutureChanges(ctx context.Context, maxRows int) (int64, error) {
	n, err := c.queries.MoveFutureProjections(ctx, limit(maxRows))
	if n > 0 {
		c.changes.announce()
	}
	return n, wrap(err, "move changes of the future")
}
