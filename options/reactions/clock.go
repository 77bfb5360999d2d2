// Package timer fires: it lets aggregates act when their time has come, such as "cancel this
// order if it is not paid in 15 minutes".
//
// A timer is a row. It is set and cancelled in the transaction that changes its aggregate,
// and it is deleted in the transaction of what it causes. So a timer fires once, however many
// processes look for it and whenever they crash. Only the clock of the database counts.
//
// A timer that fails is tried again later, and later each time; others do not wait for it.
package timer

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/otel/metric"
	"golang.org/x/sync/errgroup"

	"example.com/videocatalog/internal/fields"
	"example.com/videocatalog/internal/telemetry/heartbeat"
)

// Timers are the timers of one aggregate type. Its methods are called concurrently, by any
// number of processes.
type Timers interface {
	// Fire fires up to maxTimers timers that are due, beginning with the one that was due
	// first. If the database is unavailable, the error wraps envelope.ErrUnavailable; what has
	// fired before stays so.
	Fire(ctx context.Context, maxTimers int) (Fired, error)
	// Waiting returns by how much the oldest timer is late, and how many timers wait,
	// counted up to maxCounted.
	Waiting(ctx context.Context, maxCounted int) (late time.Duration, waiting int64, err error)
}

// Fired is the result of a call of Fire.
type Fired struct {
	Late   []time.Duration // of each timer that has fired: how long it had been due
	Failed []error         // of each timer that could not fire, and was postponed
	More   bool            // more timers are due
}

// Config configures a Clock. A field with the zero value gets its default.
type Config struct {
	// Batch is the largest number of timers that one transaction fires; default 100.
	Batch int
	// Interval is the average pause between two searches for due timers; default 500 ms. The
	// pauses are random, from a half to one and a half of it.
	Interval time.Duration
	// Timeout limits a call of Fire; default 10 s.
	Timeout time.Duration
	// RetryMax is the longest pause after a failure; default 5 s.
	RetryMax time.Duration
}

// WithDefaults returns the Config with every default filled in, as New uses it.
func (c Config) WithDefaults() Config {
	c.Batch = cmp.Or(c.Batch, 100)
	c.Interval = cmp.Or(c.Interval, 500*time.Millisecond)
	c.Timeout = cmp.Or(c.Timeout, 10*time.Second)
	c.RetryMax = cmp.Or(c.RetryMax, 5*time.Second)
	return c
}

// Clock fires the timers of some aggregate types.
type Clock struct {
	cfg     Config
	types   map[string]Timers
	log     *slog.Logger
	metrics *metrics
	loops   map[string]*heartbeat.Loop
}

// New makes a Clock for timers by their aggregate type. meter may be nil.
func New(cfg Config, types map[string]Timers, log *slog.Logger, meter metric.Meter) (*Clock, error) {
	if err := fields.NotNegative(cfg); err != nil {
		return nil, err
	}
	m, err := newMetrics(meter)
	if err != nil {
		return nil, err
	}
	c := &Clock{cfg: cfg.WithDefaults(), types: types, log: log, metrics: m, loops: make(map[string]*heartbeat.Loop)}
	for aggregateType := range types {
		c.loops[aggregateType] = heartbeat.New("timers of "+aggregateType, c.cfg.Timeout+c.cfg.RetryMax)
	}
	return c, nil
}

// Stuck returns an error if a transaction takes three times as long as it may.
func (c *Clock) Stuck() error {
	var errs []error
	for _, loop := range c.loops {
		errs = append(errs, loop.Check())
	}
	return errors.Join(errs...)
}

// Run fires timers until ctx ends. It then returns nil. The types do not wait for each other.
func (c *Clock) Run(ctx context.Context) error {
	var g errgroup.Group
	for aggregateType, timers := range c.types {
		g.Go(func() error {
			c.run(ctx, ofType{Timers: timers, name: aggregateType, loop: c.loops[aggregateType]})
			return nil
		})
	}
	return g.Wait()
}

// ofType are the timers of one aggregate type while the clock runs.
type ofType struct {
	Timers
	name string
	loop *heartbeat.Loop
}

// run fires the timers of one type until ctx ends.
func (c *Clock) run(ctx context.Context, of ofType) {
	defer of.loop.Rest()
	pause := c.cfg.Interval
	for ctx.Err() == nil {
		of.loop.Beat()
		fired, err := c.fire(ctx, of)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			pause = min(2*pause, c.cfg.RetryMax)
			c.metrics.unavailable(ctx, of.name)
			c.log.WarnContext(ctx, "timer: cannot fire, trying again", "aggregate_type", of.name, "retry_in", pause, "err", err)
		case fired.More && len(fired.Late)+len(fired.Failed) > 0:
			continue
		default:
			pause = c.cfg.Interval
		}
		sleep(ctx, pause/2+rand.N(pause))
	}
}

// fire calls Fire once, and counts and logs the result.
func (c *Clock) fire(ctx context.Context, of ofType) (Fired, error) {
	limited, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	fired, err := of.Fire(limited, c.cfg.Batch)
	c.metrics.fired(ctx, of.name, fired)
	for _, err := range fired.Failed {
		c.log.ErrorContext(ctx, "timer: failed, trying again later", "aggregate_type", of.name, "err", err)
	}
	return fired, err
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
