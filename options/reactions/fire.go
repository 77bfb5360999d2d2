package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
	"example.com/videocatalog/internal/timer"
)

// setTimers sets and cancels the timers of an event, in the transaction that appends it.
func setTimers(ctx context.Context, q *sqlcgen.Queries, m envelope.Message, timers []domain.Timer) error {
	if len(timers) == 0 {
		return nil
	}
	id, err := uuid.Parse(m.AggregateID)
	if err != nil {
		return fmt.Errorf("set timers: %w", err)
	}
	var names, cancelled []string
	var afters []time.Duration
	for _, t := range timers {
		if slices.Contains(names, t.Name) || slices.Contains(cancelled, t.Name) {
			return fmt.Errorf("event %s of %s %s has the timer %q twice", m.ID, m.AggregateType, m.AggregateID, t.Name)
		}
		if t.After == 0 {
			cancelled = append(cancelled, t.Name)
			continue
		}
		names, afters = append(names, t.Name), append(afters, t.After)
	}
	if len(cancelled) > 0 {
		if err := q.CancelTimers(ctx, m.AggregateType, id, cancelled); err != nil {
			return fmt.Errorf("cancel timers: %w", err)
		}
	}
	if len(names) == 0 {
		return nil
	}
	m.Cause = envelope.CauseOf(ctx)
	cause := m.CauseOfNext()
	if err := q.SetTimers(ctx, sqlcgen.SetTimersParams{
		AggregateType: m.AggregateType, AggregateID: id, CausationID: cause.CausationID, CorrelationID: cause.CorrelationID,
		Names: names, Afters: afters,
	}); err != nil {
		return fmt.Errorf("set timers: %w", err)
	}
	return nil
}

// timers fires the timers of one aggregate type. It implements timer.Timers.
type timers[A, D any] struct {
	decider[A, D]
	alarm domain.Alarm[A, D]
}

// pages is how many pages of due timers Fire reads to find one whose aggregate is free.
const pages = 20

// Fire implements timer.Timers.
//
// One transaction locks the aggregates, lets them decide, writes their rows and events, and
// deletes the timers. A crash before the commit leaves the timers, which fire again. The order
// of locks is that of commands and reactions: the aggregate, then its timers. An aggregate that
// is locked is left out, and nothing waits for it. If the database refuses the transaction, or
// it takes half of the time of ctx, each timer gets one of its own, and the one that fails is
// postponed. After one that took too long, the others wait for the next call.
func (t timers[A, D]) Fire(ctx context.Context, maxTimers int) (timer.Fired, error) {
	fired, ids, err := t.fireTogether(ctx, maxTimers)
	if err == nil || ctx.Err() != nil || len(ids) == 0 || errors.Is(err, envelope.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
		return fired, err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		select {
		case <-ctx.Done():
		case <-time.After(endingPause):
		}
	}
	fired = timer.Fired{More: len(ids) == maxTimers}
	for _, id := range ids {
		alone, err := t.fireAlone(ctx, id)
		fired.Late, fired.Failed = append(fired.Late, alone.Late...), append(fired.Failed, alone.Failed...)
		if alone.More || err != nil {
			fired.More = true
			return fired, err
		}
	}
	return fired, nil
}

// endingPause is how long the server may take to end a transaction that was given up. Until
// then its locks stay, and its aggregates would be left out.
const endingPause = 100 * time.Millisecond

// fireAlone fires the first due timer of an aggregate, or postpones it if it fails. More: it
// took too long, so there is no time for others.
func (t timers[A, D]) fireAlone(ctx context.Context, id uuid.UUID) (timer.Fired, error) {
	limited, cancel := halfOf(ctx)
	defer cancel()
	fired, due, err := t.fireOf(limited, []uuid.UUID{id})
	if err == nil || len(due) != 1 || errors.Is(err, envelope.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
		return fired, err
	}
	fired = timer.Fired{More: limited.Err() != nil}
	postponed, postponeErr := t.postpone(ctx, t.queries, due[0], err)
	if postponed {
		fired.Failed = []error{err}
	}
	return fired, postponeErr
}

// halfOf returns a context with half of the time that ctx has left. So there is time to
// postpone a timer that has taken all of it.
func halfOf(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)/2)
}

// fireTogether fires due timers in one transaction, and returns the aggregates that it has
// tried.
func (t timers[A, D]) fireTogether(ctx context.Context, maxTimers int) (fired timer.Fired, ids []uuid.UUID, err error) {
	ctx, cancel := halfOf(ctx)
	defer cancel()
	after := sqlcgen.ListDueAggregatesRow{} // before all
	for range pages {
		due, err := t.queries.ListDueAggregates(ctx, sqlcgen.ListDueAggregatesParams{
			AggregateType: t.aggregateType, AfterDue: after.DueAt, AfterID: after.AggregateID, MaxRows: limit(maxTimers),
		})
		if err != nil || len(due) == 0 {
			return timer.Fired{}, nil, forConsumer(wrap(notTheEvents(err), "list due timers"))
		}
		ids, after = nil, due[len(due)-1]
		for _, row := range due {
			ids = append(ids, row.AggregateID)
		}
		fired, _, err = t.fireOf(ctx, ids)
		fired.More = len(due) == maxTimers
		if err != nil || len(fired.Late)+len(fired.Failed) > 0 || !fired.More {
			return fired, ids, err
		}
		// All of them are locked, or were fired by another process meanwhile.
	}
	return fired, nil, nil
}

// fireOf fires due timers of aggregates, one of each. It returns those that it has found.
func (t timers[A, D]) fireOf(ctx context.Context, ids []uuid.UUID) (fired timer.Fired, due []sqlcgen.ListDueTimersRow, err error) {
	var changed map[uuid.UUID]A // after the last decision
	err = inTx(ctx, t.pool, "store.Fire", func(ctx context.Context, q *sqlcgen.Queries) error {
		decided, err := t.begin(ctx, q, t.lockFree, ids)
		if err != nil || len(decided.states) == 0 {
			return err
		}
		if due, err = q.ListDueTimers(ctx, t.aggregateType, slices.Collect(maps.Keys(decided.states))); err != nil {
			return err
		}
		if fired, err = t.fire(ctx, q, decided, due); err == nil {
			changed = decided.made
		}
		return err
	})
	t.allCommitted(maps.Keys(changed), err)
	if err != nil {
		return timer.Fired{}, due, forConsumer(wrap(notTheEvents(err), "fire timers of %s", t.aggregateType))
	}
	return fired, due, nil
}

// ring calls the alarm. It turns a panic into an error: one timer must not end the process.
func (t timers[A, D]) ring(aggregate A, name string, stamp domain.Stamp) (event *D, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return t.alarm(aggregate, name, stamp)
}

// fire lets each aggregate decide. A timer whose decision fails is postponed, and harms no
// other.
func (t timers[A, D]) fire(ctx context.Context, q *sqlcgen.Queries, decided decisions[A, D], due []sqlcgen.ListDueTimersRow) (timer.Fired, error) {
	var fired timer.Fired
	for _, row := range due {
		event, err := decided.decide(row.AggregateID, func(a A, stamp domain.Stamp) (*D, error) { return t.ring(a, row.Name, stamp) })
		if err != nil {
			fired.Failed = append(fired.Failed, fmt.Errorf("timer %s of %s %s: %w", row.Name, t.aggregateType, row.AggregateID, err))
			if _, err := t.postpone(ctx, q, row, err); err != nil {
				return timer.Fired{}, err
			}
			continue
		}
		fired.Late = append(fired.Late, time.Duration(row.LateSeconds*float64(time.Second)))
		if err := q.DeleteTimer(ctx, t.aggregateType, row.AggregateID, row.Name); err != nil {
			return timer.Fired{}, fmt.Errorf("delete timer: %w", err)
		}
		if event == nil {
			continue
		}
		cause := envelope.Cause{CausationID: row.CausationID, CorrelationID: row.CorrelationID}
		if err := decided.write(envelope.WithCause(ctx, cause), event); err != nil {
			return timer.Fired{}, err
		}
	}
	return fired, nil
}

// The pause after a failure doubles with each, from the first to the second.
const (
	firstPostponement = time.Second
	lastPostponement  = time.Hour
)

// postpone has a timer that failed fire again later. It reports whether the timer is still
// due: a commit whose response came too late may have fired it.
func (t timers[A, D]) postpone(ctx context.Context, q *sqlcgen.Queries, row sqlcgen.ListDueTimersRow, cause error) (bool, error) {
	after := firstPostponement << min(row.Attempts, 20)
	text := escape(cause.Error())
	n, err := q.PostponeTimer(ctx, sqlcgen.PostponeTimerParams{
		After: min(after, lastPostponement), LastError: &text, AggregateType: t.aggregateType, AggregateID: row.AggregateID, Name: row.Name,
	})
	if err != nil {
		return false, fmt.Errorf("postpone timer: %w", err)
	}
	return n > 0, nil
}

// Waiting implements timer.Timers.
func (t timers[A, D]) Waiting(ctx context.Context, maxCounted int) (late time.Duration, waiting int64, err error) {
	row, err := t.queries.MeasureTimers(ctx, t.aggregateType, limit(maxCounted))
	return time.Duration(row.LateSeconds * float64(time.Second)), row.Waiting, wrap(err, "measure timers")
}
