package reactions

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"golang.org/x/sync/semaphore"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg/pgtest"
)

var must = pgtest.Must

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

func (m *memTimers) Fire(_ context.Context, maxTimers int) (done Fired, err error) {
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
func run(t *testing.T, kinds map[string]Timers, lasting time.Duration) {
	t.Helper()
	c, err := newClock(kinds, semaphore.NewWeighted(2), slog.New(slog.DiscardHandler), noop.Meter{})
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), lasting)
	defer cancel()
	if err := c.run(ctx); err != nil {
		t.Errorf("run() = %v, want nil", err)
	}
	if err := c.stuck(); err != nil {
		t.Errorf("stuck() = %v after the end", err)
	}
}

// Every timer fires less than a second late, also if more are due than one transaction takes.
func TestClockFiresInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memTimers{locked: 1}
		for i := range 1000 {
			m.rows = append(m.rows, row{due: time.Now().Add(time.Duration(i%7) * time.Second)})
		}
		run(t, map[string]Timers{"order": &m}, 10*time.Second)
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

// While the database is unavailable, the clock pauses for up to a few seconds. One type does
// not wait for another, and timers that have become due fire afterwards.
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
		run(t, map[string]Timers{"down": &down, "broken": &broken, "good": &good}, 70*time.Second)
		if len(down.fired) != 1 || len(good.fired) != 1 || good.fired[0] > time.Second {
			t.Errorf("fired %v after the outage and %v beside it, want one each", down.fired, good.fired)
		}
		if broken.calls > 200 {
			t.Errorf("%d calls of what always fails, want a pause between them", broken.calls)
		}
	})
}

// scripted are timers that a test fires by a function.
type scripted func(ctx context.Context) (Fired, error)

func (f scripted) Fire(ctx context.Context, _ int) (Fired, error) { return f(ctx) }

func (scripted) Waiting(context.Context, int) (time.Duration, int64, error) { return 0, 0, nil }

// The pauses grow to retryMax during an outage, and are short again after it. If more timers
// are due and none of them fires, because other processes lock them, the clock pauses, too.
func TestClockPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, last := time.Now(), time.Now()
		var calls int
		longest, shortest, after := time.Duration(0), time.Hour, time.Duration(0)
		run(t, map[string]Timers{"order": scripted(func(context.Context) (Fired, error) {
			pause := time.Since(last)
			last = time.Now()
			switch calls++; {
			case time.Since(start) > 11*time.Minute: // the pause after the outage is over by then
				after = max(after, pause)
			case time.Since(start) > 10*time.Minute:
			case time.Since(start) > time.Minute: // the pauses have grown by then
				longest, shortest = max(longest, pause), min(shortest, pause)
			}
			if time.Since(start) < 10*time.Minute {
				return Fired{}, envelope.ErrUnavailable
			}
			return Fired{More: true}, nil
		})}, 12*time.Minute)
		if longest > 7500*time.Millisecond || shortest < 2500*time.Millisecond {
			t.Errorf("pauses of %s to %s in an outage, want 2.5s to 7.5s", shortest, longest)
		}
		if after > 750*time.Millisecond || calls > 1000 {
			t.Errorf("pauses of up to %s after it, and %d calls, want up to 750ms, and some hundred calls", after, calls)
		}
	})
}

// A call of Fire gets a context that ends after timeout. If the call does not end, stuck returns an
// error until it has ended.
func TestClockIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var limit time.Duration
		kinds := map[string]Timers{
			"slow": scripted(func(ctx context.Context) (Fired, error) {
				deadline, _ := ctx.Deadline()
				limit = time.Until(deadline)
				<-ctx.Done()
				return Fired{}, ctx.Err()
			}),
			"hung": scripted(func(context.Context) (Fired, error) {
				<-release
				return Fired{}, nil
			}),
		}
		c, err := newClock(kinds, semaphore.NewWeighted(2), slog.New(slog.DiscardHandler), noop.Meter{})
		must(t, err)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = c.run(ctx) })
		for _, test := range []struct {
			after time.Duration
			stuck bool
		}{{40 * time.Second, false}, {10 * time.Second, true}, {time.Hour, true}} {
			time.Sleep(test.after)
			if err := c.stuck(); (err != nil) != test.stuck || err != nil && (!strings.Contains(err.Error(), "timers of hung") || strings.Contains(err.Error(), "slow")) {
				t.Errorf("stuck() %s later = %v, want an error of the type that hangs alone: %t", test.after, err, test.stuck)
			}
		}
		close(release)
		stop()
		running.Wait()
		if limit != 10*time.Second {
			t.Errorf("Fire() has %s, want 10s", limit)
		}
		time.Sleep(time.Hour)
		if err := c.stuck(); err != nil {
			t.Errorf("stuck() = %v after the end, want nil", err)
		}
	})
}

// Fired and failed timers are counted by aggregate type. A timer that failed is in the log.
func TestClockIsObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		calls := 0
		kinds := map[string]Timers{"order": scripted(func(context.Context) (Fired, error) {
			switch calls++; calls {
			case 1:
				return Fired{Late: []time.Duration{time.Second, 2 * time.Second}, Failed: []error{errors.New("row 5 is refused")}}, nil
			case 2:
				return Fired{}, envelope.ErrUnavailable
			}
			return Fired{}, nil
		})}
		reader := metric.NewManualReader()
		meter := metric.NewMeterProvider(metric.WithReader(reader)).Meter("test")
		c, err := newClock(kinds, semaphore.NewWeighted(2), slog.New(slog.NewTextHandler(&logged, nil)), meter)
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := c.run(ctx); err != nil {
			t.Error(err)
		}
		want := map[string]float64{
			"timer.fired order": 2, "timer.failures order refused": 1, "timer.failures order unavailable": 1,
			"timer.lateness order": 3,
		}
		if diff := cmp.Diff(want, measured(t, reader)); diff != "" {
			t.Errorf("metrics (-want +got):\n%s", diff)
		}
		if n := strings.Count(logged.String(), "row 5 is refused"); n != 1 {
			t.Errorf("the log names the timer that failed %d times, want once:\n%s", n, logged.String())
		}
	})
}

// measured returns the values of metrics, by the name of the metric and the values of its
// attributes. For a histogram it returns the sum.
func measured(t *testing.T, reader metric.Reader) map[string]float64 {
	t.Helper()
	var data metricdata.ResourceMetrics
	must(t, reader.Collect(t.Context(), &data))
	values := make(map[string]float64)
	add := func(name string, of attribute.Set, value float64) {
		for _, a := range of.ToSlice() {
			name += " " + a.Value.AsString()
		}
		values[name] = value
	}
	for _, m := range data.ScopeMetrics[0].Metrics {
		switch d := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range d.DataPoints {
				add(m.Name, p.Attributes, float64(p.Value))
			}
		case metricdata.Histogram[float64]:
			for _, p := range d.DataPoints {
				add(m.Name, p.Attributes, p.Sum)
			}
		default:
			t.Errorf("%s is a %T", m.Name, d)
		}
	}
	return values
}
