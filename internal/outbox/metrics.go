package outbox

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// instrument makes the instruments, and observes the broker.
func (p *Publisher) instrument(broker Broker, meter metric.Meter) error {
	var errs [3]error
	var delay metric.Float64Histogram
	p.events, errs[0] = meter.Int64Counter("outbox.events", metric.WithUnit("{event}"),
		metric.WithDescription("Events of passes, by outcome: published, unsettled, refused (by the broker), unknown. Unsettled events were published, but the settlement failed, its result is unknown, or the lease was lost. They are published again, unless the settlement took effect. Events that are only deferred are not counted."))
	p.breaker, errs[1] = meter.Int64Gauge("outbox.breaker.open", metric.WithUnit("{breaker}"),
		metric.WithDescription("1 while this process considers the broker unavailable and sends only probes, else 0."))
	// Bounds in seconds, because the default bounds are meant for milliseconds.
	delay, errs[2] = meter.Float64Histogram("outbox.publish.delay", metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 3600),
		metric.WithDescription("Time from when an event happened, by the clock of its command and before the commit, until the acknowledgement of the broker was read. Negative values, which wrong clocks cause, count as 0. Not of events that are published again."))
	if err := errors.Join(errs[:]...); err != nil {
		return fmt.Errorf("make instruments: %w", err)
	}
	p.breaker.Record(context.Background(), 0)
	p.broker = observed{broker, p.cfg, delay}
	return nil
}

// count counts the events of a pass. settled means that the settlement took effect.
func (p *Publisher) count(ctx context.Context, result Result, settled bool) {
	published := "published"
	if !settled {
		published = "unsettled"
	}
	for outcome, n := range map[string]int{published: result.Published, "refused": result.Refused, "unknown": result.Unknown} {
		p.events.Add(ctx, int64(n), metric.WithAttributes(attribute.String("outcome", outcome)))
	}
}
