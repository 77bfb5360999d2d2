package reactions

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/propagation"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/options/reactions/internal/sqlcgen"
	"example.com/videocatalog/options/reactions/timers"
)

// Handler returns a handler with which aggregates react to events of another type, or of their own type. Both functions are pure.
// concerns returns the ids of the aggregates that an event concerns. Each decides once: it returns its next event, or nil if it
// does nothing. An aggregate that does not exist decides as the zero A, and may return its first event. A *problem.Error that
// is not Unavailable is a refusal by the rules, and the same as nil. After any other error the event is tried again, and then
// goes to the quarantine.
//
// Everything is one transaction: the ids of the events in the inbox, the locks of the aggregates, the decisions, the rows, and
// the events in the outbox. So an event takes effect once, as long as the inbox remembers it. A crash before the commit leaves
// nothing, and the broker delivers the events again; after the commit, they are duplicates.
//
// Events of one aggregate are handled in the order in which they came. A snapshot is Stale, because nothing has happened. If a
// decision returns an error, no event of its batch took effect.
func Handler[E, A, D any](decode func(envelope.Message) (E, error), of Aggregates[A, D],
	concerns func(E) []uuid.UUID, decide func(A, E, domain.Stamp) (*D, error),
) consumer.Handler {
	r := reaction[E, A, D]{of, concerns, decide}
	return consumer.Handle(func(m envelope.Message) (received[E], error) {
		e, err := decode(m)
		m.Payload = nil // it is decoded
		return received[E]{m, e}, err
	}, r.react)
}

// received is an event with the message that brought it.
type received[E any] struct {
	Message envelope.Message
	Event   E
}

type reaction[E, A, D any] struct {
	of       Aggregates[A, D]
	concerns func(E) []uuid.UUID
	decide   func(A, E, domain.Stamp) (*D, error)
}

// react handles a batch of events of a consumer. It is called concurrently.
func (r reaction[E, A, D]) react(ctx context.Context, consumerName string, batch []received[E]) ([]envelope.Outcome, error) {
	pool, _ := r.of.Base()
	var outcomes []envelope.Outcome
	changed := false // set before the commit
	err := pg.InTx(ctx, pool, "reactions.React", func(ctx context.Context, tx *pg.Tx) (err error) {
		var fresh []received[E]
		if fresh, outcomes, err = receive(ctx, tx, consumerName, batch); err != nil || len(fresh) == 0 {
			return err
		}
		var ids []uuid.UUID
		for _, e := range fresh {
			ids = append(ids, r.concerns(e.Event)...)
		}
		states := make(map[uuid.UUID]A)
		if len(ids) > 0 {
			if states, err = r.of.Lock(ctx, tx, ids, false); err != nil {
				return fmt.Errorf("lock: %w", err)
			}
		}
		some := false
		for _, e := range fresh {
			made, err := r.handle(ctx, tx, consumerName, states, e)
			if err != nil {
				return fmt.Errorf("react to %s %s: %w", e.Message.Type, e.Message.ID, err)
			}
			some = some || made
		}
		changed = some
		return nil
	})
	if changed {
		r.of.Committed(err)
	}
	if err != nil {
		return nil, pg.WrapEvents(err, "react to %d events", len(batch))
	}
	return outcomes, nil
}

// handle lets the aggregates that an event concerns decide, and reports whether one has changed.
func (r reaction[E, A, D]) handle(ctx context.Context, tx *pg.Tx, consumerName string, states map[uuid.UUID]A, e received[E]) (changed bool, err error) {
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{envelope.AttrTraceparent: e.Message.Traceparent}) // sampled or not
	causation := domain.Causation(timers.CausationOfNext(e.Message))
	for _, id := range once(r.concerns(e.Event)) {
		after, made, err := r.of.Decide(ctx, tx, id, states[id], func(before A) (*D, error) {
			return stamped("reaction "+consumerName, causation, func(stamp domain.Stamp) (*D, error) { return r.decide(before, e.Event, stamp) })
		})
		if err != nil {
			return false, err
		}
		if made {
			states[id], changed = after, true
		}
	}
	return changed, nil
}

// stamped returns the event of a decision; nil if there is none. A *problem.Error that is not Unavailable is a refusal by
// the rules: a decision without an event. The caller of the event is the name of the reaction or the timer.
func stamped[D any](caller string, causation domain.Causation, decide func(domain.Stamp) (*D, error)) (*D, error) {
	at, err := stamp(causation)
	if err != nil {
		return nil, err
	}
	at.Caller = caller
	event, err := decide(at)
	if refusal, ok := errors.AsType[*problem.Error](err); ok && refusal.Kind != problem.Unavailable {
		return nil, nil //nolint:nilnil // there is no event
	}
	return event, err
}

// receive records events in the inbox. It returns the events that are new to the consumer, and the outcome of each event.
func receive[E any](ctx context.Context, tx *pg.Tx, consumerName string, batch []received[E]) (fresh []received[E], outcomes []envelope.Outcome, err error) {
	outcomes = slices.Repeat([]envelope.Outcome{envelope.Duplicate}, len(batch))
	var ids []uuid.UUID
	for i, r := range batch {
		if r.Message.Repeat == envelope.RepeatSnapshot {
			outcomes[i] = envelope.Stale
			continue
		}
		ids = append(ids, r.Message.ID)
	}
	if len(ids) == 0 {
		return nil, outcomes, nil
	}
	recorded, err := sqlcgen.New(tx).InsertReactions(ctx, consumerName, ids)
	if err != nil {
		return nil, nil, fmt.Errorf("insert inbox: %w", err)
	}
	for i, r := range batch {
		n := slices.Index(recorded, r.Message.ID)
		if n < 0 || outcomes[i] == envelope.Stale {
			continue
		}
		recorded = slices.Delete(recorded, n, n+1) // the same event a second time in the batch is a duplicate
		outcomes[i] = envelope.Applied
		fresh = append(fresh, r)
	}
	return fresh, outcomes, nil
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
