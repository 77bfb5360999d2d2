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

// database has the pools of the two sides. If both have the same URL, both have the same pools.
// A pool connects when it is used, so that a side that is not used need not be reachable.
type database struct {
	commands, queries *pools
	used              sides
}

// pools are the connections to one database. calls is for API calls, own is for the loops, the
// probes and everything else. So API calls never take the connections that the loops need.
type pools struct {
	calls, own *pgxpool.Pool
	writes     bool // this process writes to the database
}

// sides says which databases a process or a command uses.
type sides struct{ commands, queries bool }

// sides returns the sides that the roles of this process use.
func (c config) sides() sides {
	both := c.has(roleAPI) || c.hasPartRole()
	return sides{commands: both || c.has(rolePublisher), queries: both || c.has(roleProjector)}
}

// open connects to the sides that are used. It waits for them up to Config.DatabaseWait, and
// returns an error for a database that this build cannot use. calls is how many connections to
// each are for API calls. tracer sees every statement; it may be nil.
func (s *Service) open(ctx context.Context, used sides, calls int32, tracer pgx.QueryTracer) error {
	if s.database.commands == nil {
		s.closers = append(s.closers, s.closeDatabase)
		if err := s.database.open(ctx, s.cfg, calls, tracer); err != nil {
			return err
		}
	}
	s.database.used = used
	if used.commands {
		s.Commands = s.database.commands.own
		if err := s.cfg.untilItWorks(ctx, s.database.commands.works); err != nil {
			return fmt.Errorf("DATABASE_URL: %w", err)
		}
	}
	if used.queries {
		s.Queries = s.database.queries.own
		if err := s.cfg.untilItWorks(ctx, s.database.queries.works); err != nil {
			return fmt.Errorf("READ_DATABASE_URL: %w", err)
		}
	}
	return nil
}

func (d *database) open(ctx context.Context, cfg config, calls int32, tracer pgx.QueryTracer) (err error) {
	if d.commands, err = openPools(ctx, cfg.DatabaseURL, calls, cfg.DatabaseMaxConns-calls, tracer); err != nil {
		return fmt.Errorf("DATABASE_URL: %w", err)
	}
	d.commands.writes, d.queries = true, d.commands
	if cfg.ReadDatabaseURL == cfg.DatabaseURL {
		return nil
	}
	if d.queries, err = openPools(ctx, cfg.ReadDatabaseURL, calls, cfg.DatabaseMaxConns-calls, tracer); err != nil {
		return fmt.Errorf("READ_DATABASE_URL: %w", err)
	}
	d.queries.writes = cfg.has(roleProjector) || cfg.hasPartRole()
	return nil
}

func openPools(ctx context.Context, url string, calls, own int32, tracer pgx.QueryTracer) (*pools, error) {
	sizes := []int32{own}
	if calls > 0 {
		sizes = append(sizes, calls)
	}
	all, err := db.OpenAll(ctx, url, tracer, sizes...)
	if err != nil {
		return nil, err
	}
	return &pools{own: all[0], calls: all[len(all)-1]}, nil
}

// all returns the pools, each once.
func (p *pools) all() []*pgxpool.Pool {
	if p.calls == p.own {
		return []*pgxpool.Pool{p.own}
	}
	return []*pgxpool.Pool{p.own, p.calls}
}

// works returns why this build cannot use the database.
func (p *pools) works(ctx context.Context) error {
	if err := db.Check(ctx, p.all()...); err != nil {
		return err
	}
	return p.calls.Ping(ctx) // opens a connection for the first call
}

// ready returns why a side cannot serve now.
func (p *pools) ready(ctx context.Context) error { return db.Ping(ctx, p.own, p.writes) }

// untilItWorks calls do, which needs the database, until it succeeds, or for
// Config.DatabaseWait. It returns the last error. It stops at db.ErrUnfit, because waiting does
// not help then.
func (c config) untilItWorks(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.limits.DatabaseWait)
	defer cancel()
	var last error
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		last = do(ctx)
		if errors.Is(last, db.ErrUnfit) {
			return struct{}{}, backoff.Permanent(last)
		}
		return struct{}{}, last
	}, backoff.WithBackOff(backoff.NewConstantBackOff(200*time.Millisecond)))
	if err != nil {
		return last
	}
	return nil
}

// closeDatabase closes the connections, and waits at most closeTimeout. If the database is
// unreachable, the connections of abandoned statements take longer: see db.Open.
func (s *Service) closeDatabase() {
	closeInTime(func() {
		var closed sync.WaitGroup
		for _, pool := range s.database.all() {
			closed.Go(pool.Close)
		}
		closed.Wait()
	})
}

// all returns the pools by name, each once.
func (d database) all() map[string]*pgxpool.Pool {
	all := make(map[string]*pgxpool.Pool)
	for name, p := range map[string]*pools{"commands": d.commands, "queries": d.queries} {
		if p == nil || name == "queries" && p == d.commands {
			continue
		}
		all[name] = p.own
		if p.calls != p.own {
			all[name+".calls"] = p.calls
		}
	}
	return all
}

// readiness returns the readiness checks of the sides that are used, by name.
func (d database) readiness() map[string]func(context.Context) error {
	checks := make(map[string]func(context.Context) error)
	if d.used.commands {
		checks[server.SideCommands] = d.commands.ready
	}
	if d.used.queries {
		checks[server.SideQueries] = d.queries.ready
	}
	return checks
}
