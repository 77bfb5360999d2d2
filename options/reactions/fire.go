package reactions

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/googleapis/gax-go/v2"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/options/reactions/internal/sqlcgen"
)

// Timers are the timers of one aggregate type. Its methods are called concurrently, by any number of processes.
type Timers interface {
	// Fire fires up to maxTimers timers that are due, beginning with the one that was due first. If the database is unavailable,
	// the error wraps envelope.ErrUnavailable; timers that have fired stay fired.
	Fire(ctx context.Context, maxTimers int) (Fired, error)
	// Waiting returns by how much the oldest timer is late, and how many timers wait, counted up to maxCounted.
	Waiting(ctx context.Context, maxCounted int) (late time.Duration, waiting int64, err error)
}

// Fired is the result of a call of Fire.
type Fired struct {
	Late   []time.Duration // of each timer that has fired: how long it had been due
	Failed []error         // of each timer that could not fire, and was postponed
	More   bool            // more timers are due
}

// NewTimers returns the timers of an aggregate type. alarm returns what an aggregate does when one of its timers fires: its next
// event, or nil. It is pure. A *problem.Error is the same as nil, unless it is Unavailable. After any other error the timer is
// tried again later, perhaps by another build.
func NewTimers[A, D any](of Aggregates[A, D], alarm func(aggregate A, timer string, stamp domain.Stamp) (*D, error)) Timers {
	pool, aggregateType := of.Base()
	return alarms[A, D]{of: of, alarm: alarm, aggregateType: aggregateType, queries: sqlcgen.New(pg.Autocommit(pool))}
}

type alarms[A, D any] struct {
	of            Aggregates[A, D]
	alarm         func(A, string, domain.Stamp) (*D, error)
	aggregateType string
	queries       *sqlcgen.Queries
}

// pages is how many pages of due timers Fire reads to find one whose aggregate is free.
const pages = 20

// Fire implements Timers: it fires the timers that are due.
//
// One transaction locks the aggregates, lets them decide, writes their rows and events, and deletes the timers. A crash before
// the commit leaves the timers, which fire again. It locks in the same order as commands and reactions: the aggregate, then its
// timers. A locked aggregate is left out, and nothing waits for it. If the transaction fails, or
// takes more than half of the time of ctx, each timer gets its own, and is postponed if that fails. After one of these took too
// long, the rest waits for the next call.
func (t alarms[A, D]) Fire(ctx context.Context, maxTimers int) (Fired, error) {
	fired, ids, err := t.fireTogether(ctx, maxTimers)
	if err == nil || ctx.Err() != nil || len(ids) == 0 || isAway(err) {
		return fired, err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		_ = gax.Sleep(ctx, endingPause)
	}
	fired = Fired{More: len(ids) == maxTimers}
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

// endingPause is how long the database may take to end a transaction that was given up. Until then its aggregates stay locked,
// and Fire leaves them out.
const endingPause = 100 * time.Millisecond

// isAway reports whether the database is unavailable. A timer that takes too long does not count.
func isAway(err error) bool {
	return errors.Is(err, envelope.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded)
}

// fireAlone fires the first due timer of an aggregate, or postpones it if it fails. More is true if it took too long: there is
// no time for others.
func (t alarms[A, D]) fireAlone(ctx context.Context, id uuid.UUID) (Fired, error) {
	limited, cancel := halfOf(ctx)
	defer cancel()
	fired, due, err := t.fireOf(limited, []uuid.UUID{id})
	fired.More = limited.Err() != nil
	if err != nil && len(due) == 0 && !fired.More && !isAway(err) { // its aggregate cannot be read
		due, _ = t.queries.ListDueTimers(ctx, t.aggregateType, []uuid.UUID{id})
	}
	switch {
	case err == nil, isAway(err), len(due) != 1 && fired.More:
		return fired, err
	case len(due) != 1:
		return Fired{Failed: []error{err}}, nil
	}
	postponed, postponeErr := t.postpone(ctx, t.queries, due[0], err)
	fired = Fired{More: fired.More}
	if postponed {
		fired.Failed = []error{err}
	}
	return fired, postponeErr
}

// halfOf returns a context with half of the time that ctx has left. The other half is for the next steps, such as a postponement.
func halfOf(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)/2)
}

// fireTogether fires due timers in one transaction, and returns the aggregates that it tried last.
func (t alarms[A, D]) fireTogether(ctx context.Context, maxTimers int) (fired Fired, ids []uuid.UUID, err error) {
	ctx, cancel := halfOf(ctx)
	defer cancel()
	after := sqlcgen.ListDueAggregatesRow{} // before all
	for range pages {
		due, err := t.queries.ListDueAggregates(ctx, sqlcgen.ListDueAggregatesParams{
			AggregateType: t.aggregateType, AfterDue: after.DueAt, AfterID: after.AggregateID, MaxRows: limit(maxTimers),
		})
		if err != nil || len(due) == 0 {
			return Fired{}, nil, pg.WrapEvents(err, "list due timers")
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

// fireOf fires due timers of aggregates, one of each aggregate. It also returns the due timers that it found.
func (t alarms[A, D]) fireOf(ctx context.Context, ids []uuid.UUID) (fired Fired, due []sqlcgen.ListDueTimersRow, err error) {
	pool, _ := t.of.Base()
	changed := false // set before the commit
	err = pg.InTx(ctx, pool, "reactions.Fire", func(ctx context.Context, tx *pg.Tx) error {
		states, err := t.of.Lock(ctx, tx, ids, true)
		if err != nil || len(states) == 0 {
			return err
		}
		if due, err = sqlcgen.New(tx).ListDueTimers(ctx, t.aggregateType, slices.Collect(maps.Keys(states))); err != nil {
			return err
		}
		some := false
		for _, row := range due {
			made, err := t.fire(ctx, tx, states[row.AggregateID], row, &fired)
			if err != nil {
				return err
			}
			some = some || made
		}
		changed = some
		return nil
	})
	if changed {
		t.of.Committed(err)
	}
	if err != nil {
		return Fired{}, due, pg.WrapEvents(err, "fire timers of %s", t.aggregateType)
	}
	return fired, due, nil
}

// fire lets an aggregate decide. A timer whose decision fails is postponed, and harms no other.
func (t alarms[A, D]) fire(ctx context.Context, tx *pg.Tx, state A, row sqlcgen.ListDueTimersRow, fired *Fired) (changed bool, err error) {
	q := sqlcgen.New(tx)
	var failure error
	_, changed, err = t.of.Decide(ctx, tx, row.AggregateID, state, func(before A) (event *D, err error) {
		if event, failure = t.ring(before, row); failure != nil {
			return nil, failure
		}
		tx.Queue(q.DeleteTimer(ctx, t.aggregateType, row.AggregateID, row.Name)) // before its event, which may set it again
		return event, nil
	})
	if failure != nil {
		fired.Failed = append(fired.Failed, fmt.Errorf("timer %s of %s %s: %w", row.Name, t.aggregateType, row.AggregateID, failure))
		_, err = t.postpone(ctx, q, row, failure)
		return false, err
	}
	fired.Late = append(fired.Late, time.Duration(row.LateSeconds*float64(time.Second)))
	return changed, err
}

// ring calls the alarm. It turns a panic into an error: one timer must not end the process.
func (t alarms[A, D]) ring(aggregate A, row sqlcgen.ListDueTimersRow) (event *D, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	causation := domain.Causation{CausationID: row.CausationID, CorrelationID: row.CorrelationID}
	return stamped("timer "+row.Name, causation, func(stamp domain.Stamp) (*D, error) { return t.alarm(aggregate, row.Name, stamp) })
}

// The pause of a timer doubles with each failure, from firstPostponement to lastPostponement.
const (
	firstPostponement = time.Second
	lastPostponement  = time.Hour
)

// postpone postpones a timer that failed. It reports whether the timer was still due: a commit whose response came too late may
// have fired it.
func (t alarms[A, D]) postpone(ctx context.Context, q *sqlcgen.Queries, row sqlcgen.ListDueTimersRow, cause error) (bool, error) {
	after := firstPostponement << min(row.Attempts, 20)
	text := pg.Escape(cause.Error())
	n, err := q.PostponeTimer(ctx, sqlcgen.PostponeTimerParams{
		After: min(after, lastPostponement), LastError: &text, AggregateType: t.aggregateType, AggregateID: row.AggregateID, Name: row.Name,
	})
	if err != nil {
		return false, fmt.Errorf("postpone timer: %w", err)
	}
	return n > 0, nil
}

// Waiting implements Timers.
func (t alarms[A, D]) Waiting(ctx context.Context, maxCounted int) (late time.Duration, waiting int64, err error) {
	row, err := t.queries.MeasureTimers(ctx, t.aggregateType, limit(maxCounted))
	return time.Duration(row.LateSeconds * float64(time.Second)), row.Waiting, pg.Wrap(err, "measure timers")
}
