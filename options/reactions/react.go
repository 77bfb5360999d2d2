package store

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// decider is how the command side reads and writes aggregates of one type, for reactions and
// timers. A is the aggregate, D an event of it.
type decider[A, D any] struct {
	commandSide
	// lock reads aggregates and locks their rows, in the order of their ids. Those that do
	// not exist are left out.
	lock func(ctx context.Context, q *sqlcgen.Queries, ids []uuid.UUID) ([]A, error)
	// lockFree does the same, and leaves out aggregates that another transaction has locked.
	lockFree func(ctx context.Context, q *sqlcgen.Queries, ids []uuid.UUID) ([]A, error)
	// identity returns the id and the version of an aggregate.
	identity func(A) (id uuid.UUID, version int64)
	// after returns the state after an event.
	after func(*D) A
	// record writes the state after an event, the event, and its timers.
	record func(ctx context.Context, q *sqlcgen.Queries, event *D) error
	stamp  Stamp
}

// Stamp makes the id and the time of an event.
type Stamp func() (domain.Stamp, error)

// React is how a consumer reacts to events: the function for consumer.React. It is called
// concurrently.
type React[E any] func(ctx context.Context, consumer string, received []envelope.Received[E]) ([]envelope.Outcome, error)

// reactTo returns how aggregates react to events.
//
// Everything is one transaction: the ids of the events in the inbox, the locks of the
// aggregates, the decisions, the rows, and the events in the outbox. So an event takes effect
// once, as long as the inbox remembers it. A crash before the commit leaves nothing, and the
// broker delivers the events again; after the commit, they are duplicates.
//
// Events of one aggregate are handled in the order of received. A snapshot is Stale, because
// nothing has happened. If a decision returns an error, no event took effect.
func reactTo[E, A, D any](d decider[A, D], reaction domain.Reaction[E, A, D]) React[E] {
	return func(ctx context.Context, consumer string, received []envelope.Received[E]) ([]envelope.Outcome, error) {
		outcomes := slices.Repeat([]envelope.Outcome{envelope.Duplicate}, len(received))
		var changed map[uuid.UUID]A // after the last decision
		err := inTx(ctx, d.pool, "store.React", func(ctx context.Context, q *sqlcgen.Queries) error {
			fresh, err := receive(ctx, q, consumer, received, outcomes)
			if err != nil || len(fresh) == 0 {
				return err
			}
			var ids []uuid.UUID
			for _, r := range fresh {
				ids = append(ids, reaction.Concerns(r.Event)...)
			}
			decided, err := d.begin(ctx, q, d.lock, ids)
			if err != nil {
				return err
			}
			for _, r := range fresh {
				ctx := envelope.WithCause(envelope.InTrace(ctx, r.Message.Traceparent), r.Message.CauseOfNext())
				for _, id := range once(reaction.Concerns(r.Event)) {
					event, err := decided.decide(id, func(a A, stamp domain.Stamp) (*D, error) { return reaction.Decide(a, r.Event, stamp) })
					if err == nil && event != nil {
						err = decided.write(ctx, event)
					}
					if err != nil {
						return fmt.Errorf("react to %s %s: %w", r.Message.Type, r.Message.ID, err)
					}
				}
			}
			changed = decided.made
			return nil
		})
		d.allCommitted(maps.Keys(changed), err)
		if err != nil {
			return nil, forConsumer(wrap(notTheEvents(err), "react to %d events", len(received)))
		}
		return outcomes, nil
	}
}

// receive records events in the inbox, and returns those that are new to the consumer. It
// sets the outcome of each that is not a duplicate.
func receive[E any](ctx context.Context, q *sqlcgen.Queries, consumer string, received []envelope.Received[E], outcomes []envelope.Outcome) ([]envelope.Received[E], error) {
	var ids []uuid.UUID
	var at []int // where they are in received
	for i, r := range received {
		if r.Message.Repeat == envelope.RepeatSnapshot {
			outcomes[i] = envelope.Stale
			continue
		}
		ids, at = append(ids, r.Message.ID), append(at, i)
	}
	if len(ids) == 0 {
		return nil, nil
	}
	recorded, err := q.InsertReactions(ctx, consumer, ids)
	if err != nil {
		return nil, fmt.Errorf("insert inbox: %w", err)
	}
	var fresh []envelope.Received[E]
	for _, n := range freshOf(ids, recorded) {
		outcomes[at[n]] = envelope.Applied
		fresh = append(fresh, received[at[n]])
	}
	return fresh, nil
}

// decisions are those of one transaction.
type decisions[A, D any] struct {
	decider[A, D]
	q      *sqlcgen.Queries
	states map[uuid.UUID]A // of all aggregates that are locked
	made   map[uuid.UUID]A // of those that have changed
}

// begin locks aggregates and reads their states.
func (d decider[A, D]) begin(ctx context.Context, q *sqlcgen.Queries,
	lock func(context.Context, *sqlcgen.Queries, []uuid.UUID) ([]A, error), ids []uuid.UUID,
) (decisions[A, D], error) {
	c := decisions[A, D]{decider: d, q: q, states: make(map[uuid.UUID]A), made: make(map[uuid.UUID]A)}
	if len(ids) == 0 {
		return c, nil
	}
	aggregates, err := lock(ctx, q, ids)
	if err != nil {
		return c, fmt.Errorf("lock: %w", err)
	}
	for _, a := range aggregates {
		id, _ := d.identity(a)
		c.states[id] = a
	}
	return c, nil
}

// decide returns the event of a decision; nil if there is none. A refusal by the rules, which
// is a *problem.Error, is a decision without an event.
func (c decisions[A, D]) decide(id uuid.UUID, decide func(A, domain.Stamp) (*D, error)) (*D, error) {
	stamp, err := c.stamp()
	if err != nil {
		return nil, err
	}
	before := c.states[id]
	event, err := decide(before, stamp)
	if refusal, ok := errors.AsType[*problem.Error](err); ok && refusal.Kind != problem.Unavailable {
		return nil, nil //nolint:nilnil // there is no event
	}
	if event == nil || err != nil {
		return nil, err
	}
	_, version := c.identity(before)
	nextID, nextVersion := c.identity(c.after(event))
	return event, checkNext(id, version, nextID, nextVersion)
}

// write records the event of a decision. Later decisions see the state after it.
func (c decisions[A, D]) write(ctx context.Context, event *D) error {
	after := c.after(event)
	id, _ := c.identity(after)
	c.states[id], c.made[id] = after, after
	return c.record(ctx, c.q, event)
}

// once returns ids without repetitions, in their order.
func once(ids []uuid.UUID) []uuid.UUID {
	var distinct []uuid.UUID
	for _, id := range ids {
		if !slices.Contains(distinct, id) {
			distinct = append(distinct, id)
		}
	}
	return distinct
}

// allCommitted calls onCommit for each aggregate that has changed.
func (s commandSide) allCommitted(ids iter.Seq[uuid.UUID], err error) {
	for id := range ids {
		s.committed(id, err)
	}
}

// Reactions is what the command side remembers of the events that consumers have reacted to.
type Reactions struct{ queries *sqlcgen.Queries }

// NewReactions returns the inbox of the command side.
func NewReactions(pool *pgxpool.Pool) *Reactions { return &Reactions{queriesOver(pool)} }

// Prune deletes the ids of events that happened and were received longer ago than olderThan,
// by the clock of the database. It deletes at most maxRows and returns how many. If such an
// event comes again, the consumer reacts to it again: olderThan must be longer than the topic
// and the owner's outbox keep it.
func (r *Reactions) Prune(ctx context.Context, consumer string, olderThan time.Duration, maxRows int) (int64, error) {
	n, err := r.queries.PruneReactions(ctx, consumer, olderThan, limit(maxRows))
	return n, wrap(err, "prune the inbox of the command side")
}
