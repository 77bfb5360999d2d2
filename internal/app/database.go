package app

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/semaphore"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/transport"
)

// side is one database of the service. Its pools connect when they are used, so that a side that
// is not used need not be reachable. If both sides have the same URL, both have the same pools.
type side struct {
	calls *pgxpool.Pool // for API calls, so that they never take the connections of the loops; nil without the role api
	own   *pgxpool.Pool // for the loops, the probes and everything else
	// permits are for the transactions of consumers and timers in own. An outage of one side holds up no consumer of the other.
	permits *semaphore.Weighted
}

// OpenCommandSide sets CommandPool, and checks the schema of its database. The pool is closed when
// the subcommand ends.
func (p *Process) OpenCommandSide(ctx context.Context) error {
	return p.open(ctx, "DATABASE_URL", &p.commandSide, &p.CommandPool)
}

// OpenQuerySide does the same for QueryPool.
func (p *Process) OpenQuerySide(ctx context.Context) error {
	return p.open(ctx, "READ_DATABASE_URL", &p.querySide, &p.QueryPool)
}

func (p *Process) open(ctx context.Context, setting string, opened *side, pool **pgxpool.Pool) error {
	if err := p.openPools(ctx); err != nil {
		return err
	}
	*pool = opened.own
	return p.WhenAvailable(ctx, func(ctx context.Context) error {
		return pg.Wrap(db.Check(ctx, p.cfg.program.migrations(), *pool), "%s", setting)
	})
}

// WhenAvailable calls do. A process that serves calls it again while the database is unavailable, as in a failover.
func (p *Process) WhenAvailable(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for again := time.Tick(time.Second); ; {
		err := do(ctx)
		known, ok := errors.AsType[*problem.Error](err)
		away := ok && known.Kind == problem.Unavailable || errors.Is(err, context.DeadlineExceeded) // it does not answer
		if !away || p.Subcommand != "serve" {
			return err
		}
		p.Log.WarnContext(ctx, "start: waiting for the database", "err", err)
		select {
		case <-again:
		case <-ctx.Done():
			return err
		}
	}
}

// openPools makes the pools of both sides, once.
func (p *Process) openPools(ctx context.Context) (err error) {
	if p.pools != nil {
		return nil
	}
	p.pools = make(map[string]*pgxpool.Pool)
	// If the database is unreachable, closing may take seconds, until the lost connections have
	// ended: see db.Open.
	p.closers = append(p.closers, func() {
		closeInTime(func() {
			for _, pool := range p.pools {
				pool.Close()
			}
		})
	})
	p.commandSide, err = p.openSide(ctx, transport.SideCommands, p.cfg.DatabaseURL)
	p.querySide, p.Permits = p.commandSide, p.commandSide.permits
	if err == nil && p.cfg.ReadDatabaseURL != p.cfg.DatabaseURL {
		p.querySide, err = p.openSide(ctx, transport.SideQueries, p.cfg.ReadDatabaseURL)
	}
	return err
}

func (p *Process) openSide(ctx context.Context, name, url string) (d side, err error) {
	d.permits = semaphore.NewWeighted(int64(p.cfg.permits()))
	own := max(1, int32(p.cfg.DatabaseMaxConns)) // where no calls are served
	if p.Subcommand == "serve" && p.cfg.has(roleAPI) {
		own = p.cfg.ownConnections()
		url := p.callsURL(name, url) // only tenancy
		if d.calls, err = db.Open(ctx, url, int32(p.cfg.DatabaseMaxConns)-own, p.tel.QueryTracer()); err != nil {
			return d, err
		}
		p.pools[name+".calls"] = d.calls
	}
	if d.own, err = db.Open(ctx, url, own, p.tel.QueryTracer()); err == nil {
		p.pools[name] = d.own
	}
	return d, err
}

// readiness returns the readiness checks of the sides that are used, by name.
func (p *Process) readiness() map[string]func(context.Context) error {
	checks := make(map[string]func(context.Context) error)
	if p.CommandPool != nil {
		checks[transport.SideCommands] = func(ctx context.Context) error { return db.Ping(ctx, p.CommandPool, true) }
	}
	if p.QueryPool != nil {
		writes := p.querySide == p.commandSide || p.cfg.hasAny(roleProjector)
		checks[transport.SideQueries] = func(ctx context.Context) error { return db.Ping(ctx, p.QueryPool, writes) }
	}
	return checks
}
