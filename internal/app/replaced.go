package app

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/server"
	"example.com/videocatalog/internal/store"
)

const (
	// identityInterval is the pause between two checks of the databases.
	identityInterval = 10 * time.Second
	// identityReminder is how often the log repeats that a database was replaced.
	identityReminder = time.Hour
)

// side is one of the two sides, and whether its database was replaced: it is not the one in
// which the data was last known to be right.
type side struct {
	name    string // commands or queries
	look    func(context.Context) (store.Database, error)
	repairs []Step // the work that a replaced database needs immediately

	state  atomic.Int64 // 1 if replaced, 0 if not, -1 if not known yet
	logged time.Time    // when the replacement was last logged
}

// sidesOf returns the sides that this process uses. An outbox or an inbox is nil if it is
// not used. repairs is the work that a replaced database of the query side needs at once.
func sidesOf(events *store.Outbox, inbox *store.Inbox, repairs []Step) []*side {
	var sides []*side
	if events != nil {
		sides = append(sides, &side{name: server.SideCommands, look: events.Database})
	}
	if inbox != nil {
		sides = append(sides, &side{name: server.SideQueries, look: inbox.Database, repairs: repairs})
	}
	for _, s := range sides {
		s.state.Store(-1)
	}
	return sides
}

// observeReplaced lets a meter show which sides have a replaced database.
func observeReplaced(meter metric.Meter, sides []*side) error {
	if meter == nil {
		return nil
	}
	_, err := meter.Int64ObservableGauge("database.replaced", metric.WithUnit("{database}"),
		metric.WithDescription("1 while the database of a side (commands, queries) was replaced, for example by a failover or a restore, and the new one is not yet recorded as known; else 0."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			for _, s := range sides {
				if state := s.state.Load(); state >= 0 {
					o.Observe(state, metric.WithAttributes(attribute.String("side", s.name)))
				}
			}
			return nil
		}))
	return err
}

// watchDatabases checks the database of each side until ctx ends. Any number of processes
// may run it at once.
func watchDatabases(ctx context.Context, sides []*side, log *slog.Logger) error {
	for {
		for _, s := range sides {
			s.check(ctx, log)
		}
		if !sleep(ctx, identityInterval) {
			return nil
		}
	}
}

// check checks the database once. It does not log that the database is unavailable: that is
// no replacement, and other code logs it.
func (s *side) check(ctx context.Context, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, identityInterval)
	defer cancel()
	database, err := s.look(ctx)
	if err == nil {
		s.note(ctx, database, log)
	}
	for _, repair := range s.repairs {
		for more := true; more && err == nil; {
			more, err = repair(ctx) // after an error, the next check does the rest
		}
	}
	if known, ok := errors.AsType[*problem.Error](err); err != nil && ctx.Err() == nil && (!ok || known.Kind != problem.Unavailable) {
		log.ErrorContext(ctx, "database: cannot be identified or repaired", "side", s.name, "err", err)
	}
}

// note records which database was found, and logs a replacement.
func (s *side) note(ctx context.Context, database store.Database, log *slog.Logger) {
	if database.Live == database.Known {
		s.state.Store(0)
		s.logged = time.Time{}
		return
	}
	s.state.Store(1)
	if time.Since(s.logged) >= identityReminder {
		s.logged = time.Now()
		log.ErrorContext(ctx, "database: replaced by another history of it, and what was acknowledged may be lost: see docs/failover.md",
			"side", s.name, "live", database.Live, "known", database.Known)
	}
}
