package app

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/timer"
)

// startReactor starts what reacts to events and what fires timers, if the process has that
// role and the service has any.
func (i *instance) startReactor(ctx context.Context) error {
	if !i.cfg.has(roleReactor) || len(withReactions(i.registered)) == 0 {
		return nil
	}
	made := Backend{Commands: i.database.commands.own, Wake: i.wake, Purged: i.wakeEraser}
	clock, err := timer.New(timer.Config{}, timers(i.registered, made), i.log, i.tel.Meter(scope))
	if err != nil {
		return err
	}
	i.loops, i.checks = append(i.loops, clock.Run), append(i.checks, clock.Stuck)
	reacted := reactions(i.registered, made)
	if len(reacted) == 0 {
		return nil
	}
	if err := i.startPubSub(ctx); err != nil {
		return err
	}
	cfg := i.cfg.consumer
	cfg.Tracing, cfg.Workers = i.tel.Tracing, reactionWorkers(reacted)
	// A message that cannot be handled goes to the quarantine, which is on the query side.
	reactor, err := consumer.New(cfg, sources(i.client, reacted), store.NewInbox(i.database.queries.own), i.log, i.tel.Meter(scope))
	if err != nil {
		return err
	}
	i.loops, i.checks = append(i.loops, reactor.Run), append(i.checks, reactor.Stuck)
	return nil
}

// pruneReactions returns the steps of maintenance that delete old event ids from the inbox of
// the command side.
func (i *instance) pruneReactions() []Step {
	var steps []Step
	inbox := store.NewReactions(i.database.commands.own)
	for _, s := range reactions(i.registered, Backend{Commands: i.database.commands.own}) {
		steps = append(steps, func(ctx context.Context) (more bool, err error) {
			n, err := inbox.Prune(ctx, s.Consumer, i.cfg.InboxRetention, PruneRows)
			return n == PruneRows, err
		})
	}
	return steps
}

// reactions returns the subscriptions to whose events this service reacts.
func reactions(registered []Registration, made Backend) []Subscription {
	var all []Subscription
	for _, r := range registered {
		if r.Reactions != nil {
			all = append(all, r.Reactions(made)...)
		}
	}
	return all
}

// timers returns the timers of this service by aggregate type.
func timers(registered []Registration, made Backend) map[string]timer.Timers {
	all := make(map[string]timer.Timers)
	for _, r := range registered {
		if r.Timers != nil {
			all[r.AggregateType] = r.Timers(made)
		}
	}
	return all
}

// reacts reports whether this process reacts to events or fires timers.
func (c config) reacts() bool {
	return c.has(roleReactor) && len(withReactions(c.program.Registrations(nil))) > 0
}

// reactionWorkers returns how many transactions of reactions run at the same time.
func reactionWorkers(reacted []Subscription) int { return max(2, len(reacted)) }

// reactorWorkers returns how many workers the role reactor has. Timers need a connection only
// for moments, and are among everything else.
func (c config) reactorWorkers() int {
	reacted := reactions(c.program.Registrations(nil), Backend{})
	if !c.has(roleReactor) || len(reacted) == 0 {
		return 0
	}
	return reactionWorkers(reacted)
}

// withReactions returns the registrations that have reactions or timers.
func withReactions(registered []Registration) []Registration {
	return slices.DeleteFunc(slices.Clone(registered), func(r Registration) bool { return r.Reactions == nil && r.Timers == nil })
}

// replayed returns the subscriptions whose messages can be applied again from the quarantine:
// with a pool of the command side also those to whose events the service reacts.
func replayed(registered []Registration, commands *pgxpool.Pool) []Subscription {
	all := subscriptions(registered)
	if commands != nil {
		all = append(all, reactions(registered, Backend{Commands: commands})...)
	}
	return all
}
