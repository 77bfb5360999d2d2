package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/server"
)

// database has the pools of the sides that this process uses. A side that is not used is
// nil. If both sides have the same URL, both have the same pools.
type database struct{ commands, queries *pools }

// pools are the connections to one database. calls is for API calls, and nil if there are
// none. own is for the loops, the probes and everything else. So API calls never take the
// connections that the loops need.
type pools struct {
	calls, own *pgxpool.Pool
	writes     bool // this process writes to the database
}

// sides says which databases a process or a command uses.
type sides struct{ commands, queries bool }

// sides returns the sides that the roles of this process use.
func (c config) sides() sides {
	return sides{
		commands: c.has(roleAPI) || c.has(rolePublisher) || c.hasPartRole(),
		queries:  c.has(roleAPI) || c.has(roleProjector) || c.hasPartRole(),
	}
}

// openDatabase connects to the sides that are used. It waits for them up to
// config.databaseWait, and returns an error for a database that this build cannot use.
// calls is how many connections to each are for API calls. tracer sees every statement; it
// may be nil.
func openDatabase(ctx context.Context, cfg config, used sides, calls int32, tracer pgx.QueryTracer) (d database, err error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.databaseWait)
	defer cancel()
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if used.commands {
		if d.commands, err = openPools(ctx, cfg, cfg.DatabaseURL, calls, tracer); err != nil {
			return d, fmt.Errorf("DATABASE_URL: %w", err)
		}
		d.commands.writes = true
	}
	if !used.queries {
		return d, nil
	}
	if used.commands && cfg.ReadDatabaseURL == cfg.DatabaseURL {
		d.queries = d.commands
		return d, nil
	}
	if d.queries, err = openPools(ctx, cfg, cfg.ReadDatabaseURL, calls, tracer); err != nil {
		return d, fmt.Errorf("READ_DATABASE_URL: %w", err)
	}
	d.queries.writes = cfg.has(roleProjector) || cfg.hasPartRole()
	return d, nil
}

// openPools opens the pools to one database and checks it. It returns pools that it has
// opened even with an error.
func openPools(ctx context.Context, cfg config, url string, calls int32, tracer pgx.QueryTracer) (*pools, error) {
	sizes := []int32{cfg.DatabaseMaxConns - calls}
	if calls > 0 {
		sizes = append(sizes, calls)
	}
	all, err := db.OpenAll(ctx, url, tracer, sizes...)
	if err != nil {
		return nil, err
	}
	p := &pools{own: all[0]}
	if calls > 0 {
		p.calls = all[1]
	}
	return p, untilItWorks(ctx, func(ctx context.Context) error {
		err := db.Check(ctx, cfg.program.migrations(), all...)
		if err == nil && calls > 0 {
			err = p.calls.Ping(ctx) // opens a connection for the first call
		}
		return err
	})
}

// untilItWorks calls do, which needs the database, until it succeeds or ctx ends. It
// returns the last error. It stops at db.ErrUnfit, because waiting does not help then.
func untilItWorks(ctx context.Context, do func(context.Context) error) error {
	for {
		err := do(ctx)
		if err == nil || errors.Is(err, db.ErrUnfit) || !sleep(ctx, 200*time.Millisecond) {
			return err
		}
	}
}

// close closes the connections, and waits at most closeTimeout. If the database is
// unreachable, the connections of abandoned statements take longer: see db.Open.
func (d database) close() {
	closeInTime(func() {
		var closed sync.WaitGroup
		for _, pool := range d.all() {
			closed.Go(pool.Close)
		}
		closed.Wait()
	})
}

// commandPool returns the pool of the command side; nil if this process does not use it.
func (d database) commandPool() *pgxpool.Pool {
	if d.commands == nil {
		return nil
	}
	return d.commands.own
}

// all returns the pools by name, each once.
func (d database) all() map[string]*pgxpool.Pool {
	pools := make(map[string]*pgxpool.Pool)
	add := func(name string, pool *pgxpool.Pool) {
		if pool != nil {
			pools[name] = pool
		}
	}
	if d.commands != nil {
		add("commands", d.commands.own)
		add("commands.calls", d.commands.calls)
	}
	if d.queries != nil && d.queries != d.commands {
		add("queries", d.queries.own)
		add("queries.calls", d.queries.calls)
	}
	return pools
}

// sides returns the readiness checks of the sides that are used, by name.
func (d database) sides() map[string]func(context.Context) error {
	sides := make(map[string]func(context.Context) error)
	if d.commands != nil {
		sides[server.SideCommands] = d.commands.check
	}
	if d.queries != nil {
		sides[server.SideQueries] = d.queries.check
	}
	return sides
}

// check returns why a side cannot serve.
func (p *pools) check(ctx context.Context) error { return db.Ping(ctx, p.own, p.writes) }
