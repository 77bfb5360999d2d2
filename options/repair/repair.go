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

// Part returns the option.
func Part() app.Part {
	return app.Part{
		Name: "repair", Start: start, Migrations: migrations,
		Commands: map[string]app.Command{"projection": runProjection, "databases": runDatabases},
		Help: `  server projection compare            compare entries with their owner, and show what differs (exit code 5); with TYPE, or TYPE ID..., only these
  server projection repair TYPE ID...  give entries the state of their owner; with --all: all that differ, also of an empty projection
  server databases accept              record the present databases as known, after a failover that you have looked at
`,
	}
}

// start watches the databases of the process, and compares projections if it uses both sides.
func start(_ context.Context, s *app.Service) error {
	w := newWatch(s)
	if err := w.observe(s.Meter); err != nil {
		return err
	}
	s.Go("watch of the databases", w.run, nil)
	if s.Commands == nil || s.Queries == nil {
		return nil
	}
	var sources []source
	for _, p := range all(s.Commands, s.Queries) {
		sources = append(sources, p.source(false))
	}
	l, err := newLoop(background, sources, comparisonsIn(s.Queries), s.Log, s.Meter)
	if err != nil {
		return err
	}
	s.Go("comparison of the projections", l.run, l.beats.Check)
	return nil
}
