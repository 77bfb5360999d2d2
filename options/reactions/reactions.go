// Package reactions lets aggregates react to events, of this service or another, and act at a later time:
// "the payment was captured, so the order is confirmed", "the order is canceled if it is not paid in 15 minutes".
//
// A reaction takes effect once, because the id of its event is recorded in the transaction of its effects. A timer is a row.
// It is set and cancelled in the transaction that changes its aggregate, and deleted in the transaction of its effect. So it
// fires once, however many processes look for it and whenever they crash. Only the clock of the database counts.
package reactions

import (
	"context"
	"embed"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/options/reactions/internal/sqlcgen"
)

// Name is the name of the option, and role its value of ROLES.
const (
	Name = "reactions"
	role = "reactor"
)

// Of is the declaration of an aggregate type for the option, in app.Registration.Options[Name].
type Of struct {
	// Subscriptions are the subscriptions whose events it reacts to. Handler makes their handlers.
	Subscriptions []app.Subscription
	// Timers returns its timers, which NewTimers makes. Nil: it has none.
	Timers func(app.Backend) Timers
}

// Aggregates is the command side of an aggregate type, such as *store.Orders: A is the aggregate, D an event of it.
type Aggregates[A, D any] interface {
	Lock(ctx context.Context, tx *pg.Tx, ids []uuid.UUID, free bool) (map[uuid.UUID]A, error)
	Decide(ctx context.Context, tx *pg.Tx, id uuid.UUID, before A, decide func(A) (*D, error)) (after A, changed bool, err error)
	Committed(err error)
	Base() (pool *pgxpool.Pool, aggregateType string)
}

//go:embed migrations/*.sql
var migrations embed.FS

// Option returns the option.
func Option() app.Option {
	return app.Option{Name: Name, Role: role, Subscriptions: subscriptions, Start: start, Migrations: migrations}
}

// declared returns the declarations, each with its aggregate type. A type may have several registrations.
func declared(registered []app.Registration) (all []Of, types []string) {
	for _, r := range registered {
		if of, ok := r.Options[Name].(Of); ok {
			all, types = append(all, of), append(types, r.AggregateType)
		}
	}
	return all, types
}

func subscriptions(registered []app.Registration) (all []app.Subscription) {
	declarations, _ := declared(registered)
	for _, of := range declarations {
		all = append(all, of.Subscriptions...)
	}
	return all
}

// timersOf returns the timers of the service by aggregate type.
func timersOf(registered []app.Registration, made app.Backend) map[string]Timers {
	all := make(map[string]Timers)
	declarations, types := declared(registered)
	for i, of := range declarations {
		if of.Timers != nil {
			all[types[i]] = of.Timers(made)
		}
	}
	return all
}

// start measures the timers that wait, in each process that uses the command side, and fires them in a process with the role.
func start(_ context.Context, process *app.Process) error {
	if process.CommandPool == nil {
		return nil
	}
	process.AddCommandSteps(pruning(process)...)
	all := timersOf(process.Registered, process.Backend())
	if err := observe(process.Meter, all); err != nil {
		return err
	}
	if !slices.Contains(process.Roles, role) || len(all) == 0 {
		return nil
	}
	c, err := newClock(all, process.Permits, process.Log, process.Meter)
	if err != nil {
		return err
	}
	process.Go("timers", c.run, c.stuck)
	return nil
}

// pruning returns the steps of maintenance that delete old event ids from the inbox of the command side.
func pruning(process *app.Process) []app.Step {
	var steps []app.Step
	for _, of := range subscriptions(process.Registered) {
		steps = append(steps, app.Prune(func(ctx context.Context, olderThan time.Duration, maxRows int) (int64, error) {
			return prune(ctx, process.CommandPool, of.Consumer, olderThan, maxRows)
		}, process.Retention))
	}
	return steps
}

// prune deletes the ids of events that happened and were received longer ago than olderThan, by the clock of the database. It
// deletes at most maxRows and returns how many. If such an event comes again, the consumer reacts to it again: olderThan must be
// longer than the topic and the owner's outbox keep it.
func prune(ctx context.Context, pool *pgxpool.Pool, consumer string, olderThan time.Duration, maxRows int) (int64, error) {
	n, err := sqlcgen.New(pg.Autocommit(pool)).PruneReactions(ctx, consumer, olderThan, limit(maxRows))
	return n, pg.Wrap(err, "prune the inbox of the command side")
}

// stamp returns the id and the time of a new event, with its causation.
func stamp(causation domain.Causation) (domain.Stamp, error) {
	id, err := uuid.NewV7()
	return domain.Stamp{EventID: id, Time: time.Now().UTC(), Causation: causation}, err
}

func limit(n int) int32 { return int32(min(n, math.MaxInt32)) } //nolint:gosec // just checked
