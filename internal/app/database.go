package app

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/port"
)

// side is one database of the service. Its pools connect when they are used, so that a side that
// is not used need not be reachable. If both sides have the same URL, both have the same pools.
type side struct {
	calls *pgxpool.Pool // for API calls, so that they never take the connections of the loops; nil without the role api
	own   *pgxpool.Pool // for the loops, the probes and everything else
}

// sides returns which sides the roles of this process use.
func (c config) sides() (commands, queries bool) {
	both := c.has(roleAPI) || c.hasPartRole()
	return both || c.has(rolePublisher), both || c.has(roleProjector)
}

// Open makes the pools, and checks the schemas of the sides that a process or a command uses. The
// pools are closed when the command ends.
func (s *Service) Open(ctx context.Context, commands, queries bool) (err error) {
	if s.pools == nil {
		s.pools = make(map[string]*pgxpool.Pool)
		s.closers = append(s.closers, func() { closeInTime(s.closePools) })
		s.commands, err = s.openSide(ctx, port.SideCommands, s.cfg.DatabaseURL)
		s.queries = s.commands
		if err == nil && s.cfg.ReadDatabaseURL != s.cfg.DatabaseURL {
			s.queries, err = s.openSide(ctx, port.SideQueries, s.cfg.ReadDatabaseURL)
		}
	}
	if err == nil && commands {
		s.Commands = s.commands.own
		err = s.check(ctx, "DATABASE_URL", s.Commands)
	}
	if err == nil && queries {
		s.Queries = s.queries.own
		err = s.check(ctx, "READ_DATABASE_URL", s.Queries)
	}
	return err
}

func (s *Service) check(ctx context.Context, setting string, pool *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := db.Check(ctx, s.cfg.program.migrations(), pool); err != nil {
		return fmt.Errorf("%s: %w", setting, err)
	}
	return nil
}

func (s *Service) openSide(ctx context.Context, name, url string) (d side, err error) {
	own := max(1, int32(s.cfg.DatabaseMaxConns)) // where no calls are served
	if s.Command == "serve" && s.cfg.has(roleAPI) {
		own = s.cfg.ownConnections()
		if d.calls, err = db.Open(ctx, url, int32(s.cfg.DatabaseMaxConns)-own, s.tel.QueryTracer()); err != nil {
			return d, err
		}
		s.pools[name+".calls"] = d.calls
	}
	if d.own, err = db.Open(ctx, url, own, s.tel.QueryTracer()); err == nil {
		s.pools[name] = d.own
	}
	return d, err
}

// readiness returns the readiness checks of the sides that are used, by name.
func (s *Service) readiness() map[string]func(context.Context) error {
	checks := make(map[string]func(context.Context) error)
	if s.Commands != nil {
		checks[port.SideCommands] = func(ctx context.Context) error { return db.Ping(ctx, s.Commands, true) }
	}
	if s.Queries != nil {
		writes := s.queries == s.commands || s.cfg.has(roleProjector) || s.cfg.hasPartRole()
		checks[port.SideQueries] = func(ctx context.Context) error { return db.Ping(ctx, s.Queries, writes) }
	}
	return checks
}

// closePools closes the connections. If the database is unreachable, this may take seconds,
// until the lost connections have ended: see db.Open.
func (s *Service) closePools() {
	for _, pool := range s.pools {
		pool.Close()
	}
}
