// Package repair compares projections with their owners, and repairs them.
//
// In the background it finds entries that are not what their owner has, and databases that were
// replaced, for example by a failover: the data may then lack acknowledged changes. It repairs only
// differences that need no decision by a person. The command projection repair makes all entries
// equal to their owner, also in an empty projection.
package repair

import (
	"context"
	"embed"

	"example.com/videocatalog/internal/app"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Option returns the option.
func Option() app.Option {
	return app.Option{
		Name: "repair", Start: start, Migrations: migrations,
		Subcommands: map[string]app.Subcommand{"projection": runProjection, "databases": runDatabases},
		Help: `  server projection compare            compare entries with their owner, and show what differs (exit code 5); with TYPE, or TYPE ID..., only these
  server projection repair TYPE ID...  give entries the state of their owner; with --all: all that differ, also of an empty projection
  server databases accept              record the present databases as known, after a failover that you have looked at
`,
	}
}

// start watches the databases of the process, and compares projections if it uses both sides.
func start(_ context.Context, process *app.Process) error {
	w := newWatch(process)
	if err := w.observe(process.Meter); err != nil {
		return err
	}
	process.Go("watch of the databases", w.run, nil)
	if process.CommandPool == nil || process.QueryPool == nil {
		return nil
	}
	var sources []source
	for _, p := range all(process.CommandPool, process.QueryPool) {
		sources = append(sources, p.source(false))
	}
	l, err := newLoop(background, sources, comparisonsIn(process.QueryPool), process.Log, process.Meter)
	if err != nil {
		return err
	}
	process.Go("comparison of the projections", l.run, l.beats.Check)
	return nil
}
