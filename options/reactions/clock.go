package reactions

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/googleapis/gax-go/v2"
	"go.opentelemetry.io/otel/metric"
	"golang.org/x/sync/semaphore"

	"example.com/videocatalog/internal/telemetry/heartbeat"
)

const (
	batch    = 100                    // the largest number of timers that one transaction fires
	interval = 500 * time.Millisecond // the average pause between two searches; each is random, from a half to one and a half of it
	timeout  = 10 * time.Second       // limit of one call of Fire
	retryMax = 5 * time.Second        // the largest average pause after failures
)

// clock fires the timers of some aggregate types. A timer that fails is tried again after a growing pause. Other timers do
// not wait for it.
type clock struct {
	types   map[string]Timers
	permits *semaphore.Weighted
	log     *slog.Logger
	metrics *metrics
	loops   map[string]*heartbeat.Loop
}

// newClock makes a clock for timers by their aggregate type. Each call of Fire takes a permit. meter may be nil.
func newClock(types map[string]Timers, permits *semaphore.Weighted, log *slog.Logger, meter metric.Meter) (*clock, error) {
	m, err := newMetrics(meter)
	if err != nil {
		return nil, err
	}
	c := &clock{types: types, permits: permits, log: log, metrics: m, loops: make(map[string]*heartbeat.Loop)}
	for aggregateType := range types {
		c.loops[aggregateType] = heartbeat.New("timers of "+aggregateType, timeout+retryMax)
	}
	return c, nil
}

// stuck returns an error if the loop of a type makes no progress for three times timeout+retryMax.
func (c *clock) stuck() error {
	return heartbeat.Check(slices.Collect(maps.Values(c.loops))...)
}

// run fires timers until ctx ends, and returns nil. The types do not wait for each other.
func (c *clock) run(ctx context.Context) error {
	var types sync.WaitGroup
	for aggregateType := range c.types {
		types.Go(func() { c.runType(ctx, aggregateType) })
	}
	types.Wait()
	return nil
}

// runType fires the timers of one type until ctx ends.
func (c *clock) runType(ctx context.Context, aggregateType string) {
	loop, pause := c.loops[aggregateType], interval
	defer loop.Rest()
	for {
		loop.Rest()
		if c.permits.Acquire(ctx, 1) != nil {
			return
		}
		loop.Beat()
		fired, err := c.fire(ctx, aggregateType)
		c.permits.Release(1)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			pause = min(2*pause, retryMax)
			c.metrics.unavailable(ctx, aggregateType)
			c.log.WarnContext(ctx, "timer: cannot fire, trying again", "aggregate_type", aggregateType, "retry_in_ms", pause.Milliseconds(), "err", err)
		case fired.More && len(fired.Late)+len(fired.Failed) > 0:
			continue
		default:
			pause = interval
		}
		_ = gax.Sleep(ctx, pause/2+rand.N(pause)) // Acquire checks ctx
	}
}

// fire calls Fire once, and counts and logs the result.
func (c *clock) fire(ctx context.Context, aggregateType string) (Fired, error) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	fired, err := c.types[aggregateType].Fire(limited, batch)
	c.metrics.fired(ctx, aggregateType, fired)
	for _, err := range fired.Failed {
		c.log.ErrorContext(ctx, "timer: failed, trying again later", "aggregate_type", aggregateType, "err", err)
	}
	return fired, err
}
