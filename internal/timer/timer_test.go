package timer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/timer"
)

// row is a timer in memory.
type row struct {
	due     time.Time
	refused bool // by the database
}

// memTimers are timers in memory.
type memTimers struct {
	mu     sync.Mutex
	rows   []row
	locked int   // how many of a batch are locked
	err    error // of every call
	fired  []time.Duration
	calls  int
}

func (m *memTimers) Fire(_ context.Context, maxTimers int) (done timer.Fired, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	if m.err != nil {
		return done, m.err
	}
	for i, r := range m.rows {
		switch {
		case r.due.After(time.Now()):
		case len(done.Late)+len(done.Failed) == maxTimers-m.locked:
			done.More = true
		case r.refused:
			done.Failed = append(done.Failed, fmt.Errorf("row %d is refused", i))
			m.rows[i].due = time.Now().Add(time.Hour)
		default:
			done.Late = append(done.Late, time.Since(r.due))
			m.rows[i].due = time.Now().Add(1000 * time.Hour)
		}
	}
	m.fired = append(m.fired, done.Late...)
	return done, nil
}

func (*memTimers) Waiting(context.Context, int) (time.Duration, int64, error) { return 0, 0, nil }

// run runs a clock for some time.
func run(t *testing.T, kinds map[string]timer.Timers, lasting time.Duration) {
	t.Helper()
	clock, err := timer.New(timer.Config{}, kinds, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), lasting)
	defer cancel()
	if err := clock.Run(ctx); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	if err := clock.Stuck(); err != nil {
		t.Errorf("Stuck() = %v after the end", err)
	}
}

// Every timer fires less than a second late, also if more are due than one transaction takes.
func TestClockFiresInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memTimers{locked: 1}
		for i := range 1000 {
			m.rows = append(m.rows, row{due: time.Now().Add(time.Duration(i%7) * time.Second)})
		}
		run(t, map[string]timer.Timers{"order": &m}, 10*time.Second)
		if len(m.fired) != 1000 {
			t.Errorf("%d timers have fired, want 1000", len(m.fired))
		}
		for _, late := range m.fired {
			if late > time.Second {
				t.Errorf("a timer fired %s late, want less than a second", late)
			}
		}
	})
}

// Timers that fail hold up no others.
func TestClockGoesOnAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m memTimers
		for i := range 300 {
			m.rows = append(m.rows, row{due: time.Now(), refused: i%100 == 50})
		}
		run(t, map[string]timer.Timers{"order": &m}, 10*time.Second)
		if len(m.fired) != 297 {
			t.Errorf("%d timers have fired, want 297", len(m.fired))
		}
	})
}

// While the database is unavailable, the clock pauses for up to a few seconds. One type does
// not wait for another, and timers that are due by then fire afterwards.
func TestClockOutlivesTheDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := memTimers{rows: []row{{due: time.Now()}}, err: fmt.Errorf("%w: no connection", envelope.ErrUnavailable)}
		broken := memTimers{err: errors.New("no such table")}
		good := memTimers{rows: []row{{due: time.Now()}}}
		go func() {
			time.Sleep(time.Minute)
			down.mu.Lock()
			defer down.mu.Unlock()
			if down.calls > 60 {
				t.Errorf("%d calls in a minute, want a pause between them", down.calls)
			}
			down.err = nil
		}()
		run(t, map[string]timer.Timers{"down": &down, "broken": &broken, "good": &good}, 70*time.Second)
		if len(down.fired) != 1 || len(good.fired) != 1 || good.fired[0] > time.Second {
			t.Errorf("fired %v after the outage and %v beside it, want one each", down.fired, good.fired)
		}
		if broken.calls > 200 {
			t.Errorf("%d calls of what always fails, want a pause between them", broken.calls)
		}
	})
}

// A Config with negative values is refused.
func TestConfig(t *testing.T) {
	if _, err := timer.New(timer.Config{Interval: -1}, nil, nil, nil); err == nil {
		t.Error("New() with a negative interval = nil, want an error")
	}
}
