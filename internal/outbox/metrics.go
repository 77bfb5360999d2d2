package outbox

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"example.com/videocatalog/internal/event"
)

// metrics are the instruments of a publisher.
type metrics struct {
	events     metric.Int64Counter
	batch      metric.Int64Histogram
	delay      metric.Float64Histogram
	lostLeases metric.Int64Counter
}

var (
	outcomePublished = metric.WithAttributes(attribute.String("outcome", "published"))
	outcomeUnsettled = metric.WithAttributes(attribute.String("outcome", "unsettled"))
	outcomeRefused   = metric.WithAttributes(attribute.String("outcome", "refused"))
	outcomeUnknown   = metric.WithAttributes(attribute.String("outcome", "unknown"))
)

func newMetrics(meter metric.Meter) (*metrics, error) {
	if meter == nil {
		meter = noop.Meter{}
	}
	var m metrics
	var err error
	if m.events, err = meter.Int64Counter("outbox.events", metric.WithUnit("{event}"),
		metric.WithDescription("Events of passes, by what became of them: published, published but unsettled and therefore to be published again, refused by the broker, or unknown.")); err != nil {
		return nil, fmt.Errorf("make instrument: %w", err)
	}
	if m.batch, err = meter.Int64Histogram("outbox.batch.size", metric.WithUnit("{event}"),
		metric.WithDescription("Events per pass that claimed a lane.")); err != nil {
		return nil, fmt.Errorf("make instrument: %w", err)
	}
	if m.delay, err = meter.Float64Histogram("outbox.publish.delay", metric.WithUnit("s"),
		metric.WithDescription("From when an event happened until the broker acknowledged it.")); err != nil {
		return nil, fmt.Errorf("make instrument: %w", err)
	}
	if m.lostLeases, err = meter.Int64Counter("outbox.lost_leases", metric.WithUnit("{lease}"),
		metric.WithDescription("Settlements that came after the lease was taken over.")); err != nil {
		return nil, fmt.Errorf("make instrument: %w", err)
	}
	return &m, nil
}

func (m *metrics) published(ctx context.Context, e event.Message) {
	m.delay.Record(ctx, time.Since(e.OccurredAt).Seconds())
}

func (m *metrics) pass(ctx context.Context, claim event.Claim, result Result, settled bool) {
	m.batch.Record(ctx, int64(len(claim.Events)))
	published := outcomePublished
	if !settled {
		published = outcomeUnsettled
	}
	m.events.Add(ctx, int64(result.Published), published)
	m.events.Add(ctx, int64(result.Refused), outcomeRefused)
	m.events.Add(ctx, int64(result.Unknown), outcomeUnknown)
}

func (m *metrics) lostLease(ctx context.Context) { m.lostLeases.Add(ctx, 1) }
