package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/server"
)

// side is one database of the service. Its pools connect when they are used, so that a side that
// is not used need not be reachable. If both sides have the same URL, both have the same pools.
type side struct {
	setting string
	calls   *pgxpool.Pool // for API calls, which so never take the connections that the loops need
	own     *pgxpool.Pool // for the loops, the probes and everything else
	writes  bool          // this process writes to the database
}

// sides says which databases a process or a command uses.
type sides struct{ commands, queries bool }

// sides returns the sides that the roles of this process use.
func (c config) sides() sides {
	both := c.has(roleAPI) || c.hasPartRole()
	return sides{commands: both || c.has(rolePublisher), queries: both || c.has(roleProjector)}
}

// open connects to the sides that are used. It waits for each up to Config.DatabaseWait, and
// returns an error for a database that this build cannot use. tracer sees every statement; it
// may be nil.
func (s *Service) open(ctx context.Context, used sides, tracer pgx.QueryTracer) (err error) {
	if s.commands.own == nil {
		s.closers = append(s.closers, s.closePools)
		if s.commands, err = s.openSide(ctx, server.SideCommands, "DATABASE_URL", s.cfg.DatabaseURL, tracer); err != nil {
			return err
		}
		s.commands.writes, s.queries = true, s.commands
	}
	if s.queries.own == s.commands.own && s.cfg.ReadDatabaseURL != s.cfg.DatabaseURL {
		if s.queries, err = s.openSide(ctx, server.SideQueries, "READ_DATABASE_URL", s.cfg.ReadDatabaseURL, tracer); err != nil {
			return err
		}
		s.queries.writes = s.cfg.has(roleProjector) || s.cfg.hasPartRole()
	}
	if used.commands {
		s.Commands = s.commands.own
		err = s.cfg.untilItWorks(ctx, s.commands.works)
	}
	if used.queries {
		s.Queries = s.queries.own
		err = errors.Join(err, s.cfg.untilItWorks(ctx, s.queries.works))
	}
	return err
}

func (s *Service) openSide(ctx context.Context, name, setting, url string, tracer pgx.QueryTracer) (d side, err error) {
	d.setting = setting
	var calls int32
	if s.Command == "serve" {
		calls, _ = s.cfg.connections()
	}
	if d.own, err = db.Open(ctx, url, s.cfg.DatabaseMaxConns-calls, tracer); err != nil {
		return d, fmt.Errorf("%s: %w", setting, err)
	}
	s.pools[name] = d.own
	if calls == 0 {
		return d, nil
	}
	if d.calls, err = db.Open(ctx, url, calls, tracer); err != nil {
		return d, fmt.Errorf("%s: %w", setting, err)
	}
	s.pools[name+".calls"] = d.calls
	return d, nil
}

// works returns why this build cannot use the database.
func (d side) works(ctx context.Context) error {
	err := db.Check(ctx, d.own)
	if err == nil && d.calls != nil {
		err = d.calls.Ping(ctx) // opens a connection for the first call
	}
	if err != nil {
		return fmt.Errorf("%s: %w", d.setting, err)
	}
	return nil
}

// readiness returns the readiness checks of the sides that are used, by name.
func (s *Service) readiness() map[string]func(context.Context) error {
	checks := make(map[string]func(context.Context) error)
	if s.Commands != nil {
		checks[server.SideCommands] = func(ctx context.Context) error { return db.Ping(ctx, s.Commands, s.commands.writes) }
	}
	if s.Queries != nil {
		checks[server.SideQueries] = func(ctx context.Context) error { return db.Ping(ctx, s.Queries, s.queries.writes) }
	}
	return checks
}

// untilItWorks calls do, which needs the database, until it succeeds, or for
// Config.DatabaseWait. It returns the last error. It stops at db.ErrUnfit, because waiting does
// not help then.
func (c config) untilItWorks(ctx context.Context, do func(context.Context) error) (last error) {
	ctx, cancel := context.WithTimeout(ctx, c.limits.DatabaseWait)
	defer cancel()
	_, err := backoff.Retry(ctx, func() (none struct{}, _ error) {
		if last = do(ctx); errors.Is(last, db.ErrUnfit) {
			return none, backoff.Permanent(last)
		}
		return none, last
	}, backoff.WithBackOff(backoff.NewConstantBackOff(200*time.Millisecond)))
	if err == nil {
		return nil
	}
	return last
}

// closePools closes the connections, and waits at most closeTimeout. If the database is
// unreachable, the connections of abandoned statements take longer: see db.Open.
func (s *Service) closePools() {
	closeInTime(func() {
		var closed sync.WaitGroup
		for _, pool := range s.pools {
			closed.Go(pool.Close)
		}
		closed.Wait()
	})
}
