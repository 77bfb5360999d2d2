package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"example.com/videocatalog/internal/domain"
)

// metrics are the instruments of a projector.
type metrics struct {
	events       metric.Int64Counter
	unknownTypes metric.Int64Counter
	failures     metric.Int64Counter
	ackFailures  metric.Int64Counter
	acks         metric.Int64Counter
	nacks        metric.Int64Counter
	inHand       metric.Int64UpDownCounter
	batchSize    metric.Int64Histogram
	duration     metric.Float64Histogram
	delay        metric.Float64Histogram
	lag          metric.Float64Histogram
}

var outcomes = map[domain.Outcome]metric.MeasurementOption{
	domain.Applied:         outcome("applied"),
	domain.AppliedAfterGap: outcome("applied_after_gap"),
	domain.Stale:           outcome("stale"),
	domain.Duplicate:       outcome("duplicate"),
	domain.Conflicting:     outcome("conflict"),
}

var (
	outcomeQuarantined = outcome("quarantined")
	outcomeUnknown     = outcome("unknown") // a new one, which outcomes does not have yet
)

func outcome(name string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", name)))
}

// What failed, under the name that OpenTelemetry has for it.
var (
	failedReceive     = errorType("receive")
	failedUnavailable = errorType("unavailable")
	failedRefused     = errorType("refused")
	failedPanic       = errorType("panic")
)

func errorType(name string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("error.type", name)))
}

// seconds are bucket bounds; the default ones are meant for milliseconds.
var seconds = metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 3600)

func newMetrics(meter metric.Meter) (*metrics, error) {
	if meter == nil {
		meter = noop.Meter{}
	}
	var m metrics
	var errs [11]error
	m.events, errs[0] = meter.Int64Counter("consumer.events", metric.WithUnit("{event}"),
		metric.WithDescription("Messages applied or set aside, counted when that is committed, by outcome: applied, applied_after_gap, stale, duplicate, conflict (two events claim one version), quarantined, unknown (one that has no name here yet)."))
	m.unknownTypes, errs[1] = meter.Int64Counter("consumer.unknown_types", metric.WithUnit("{event}"),
		metric.WithDescription("Events of a type that this build does not know; each is also one of consumer.events."))
	m.failures, errs[2] = meter.Int64Counter("consumer.failures", metric.WithUnit("{failure}"),
		metric.WithDescription("Failures, by error.type: the database was unavailable, the store refused, a panic, the subscription could not be received from."))
	m.ackFailures, errs[3] = meter.Int64Counter("consumer.ack_failures", metric.WithUnit("{message}"),
		metric.WithDescription("Messages whose ack the broker did not confirm, under exactly-once delivery."))
	m.acks, errs[8] = meter.Int64Counter("consumer.acks", metric.WithUnit("{message}"),
		metric.WithDescription("Messages acknowledged, counted before the broker confirms it: those of consumer.ack_failures are among them. The nack ratio is consumer.nacks / (consumer.acks + consumer.nacks)."))
	m.inHand, errs[9] = meter.Int64UpDownCounter("consumer.messages", metric.WithUnit("{message}"),
		metric.WithDescription("Messages in hand: received and not yet settled."))
	m.delay, errs[10] = meter.Float64Histogram("consumer.delivery.delay", metric.WithUnit("s"), seconds,
		metric.WithDescription("From when the broker took an event, by its clock, until it was applied; 0 where the clocks say less."))
	m.nacks, errs[4] = meter.Int64Counter("consumer.nacks", metric.WithUnit("{message}"),
		metric.WithDescription("Messages given back to the broker, which happens only at shutdown, and when the store refuses them while the subscription cannot be received from."))
	m.batchSize, errs[5] = meter.Int64Histogram("consumer.batch.size", metric.WithUnit("{event}"),
		metric.WithExplicitBucketBoundaries(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000),
		metric.WithDescription("Events applied in one transaction."))
	m.duration, errs[6] = meter.Float64Histogram("consumer.message.duration", metric.WithUnit("s"), seconds,
		metric.WithDescription("From the arrival of a message until it was settled."))
	m.lag, errs[7] = meter.Float64Histogram("consumer.lag", metric.WithUnit("s"), seconds,
		metric.WithDescription("From when an event happened, by the clock of its command, until it was applied; 0 where the clocks say less."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("make instruments: %w", err)
	}
	m.inHand.Add(context.Background(), 0) // it is 0, and not unknown, until the first message
	return &m, nil
}

func (m *metrics) projected(ctx context.Context, deliveries []*delivery, got []domain.Outcome) {
	m.batchSize.Record(ctx, int64(len(deliveries)))
	for i, d := range deliveries {
		option, ok := outcomes[got[i]]
		if !ok {
			option = outcomeUnknown
		}
		m.events.Add(ctx, 1, option)
		if d.event.Type == "" {
			m.unknownTypes.Add(ctx, 1)
		}
		if got[i] == domain.Applied || got[i] == domain.AppliedAfterGap {
			traced := d.traced(ctx)
			m.lag.Record(traced, since(d.event.OccurredAt))
			m.delay.Record(traced, since(d.msg.PublishTime))
		}
	}
}

// since is never negative: the time is of another clock, which may be ahead, and
// the sum of a histogram must not fall.
func since(t time.Time) float64 { return max(0, time.Since(t).Seconds()) }

func (m *metrics) quarantined(ctx context.Context) { m.events.Add(ctx, 1, outcomeQuarantined) }

func (m *metrics) received(ctx context.Context) { m.inHand.Add(ctx, 1) }

func (m *metrics) left(ctx context.Context) { m.inHand.Add(ctx, -1) }

func (m *metrics) handled(ctx context.Context, d time.Duration) {
	m.acks.Add(ctx, 1)
	m.duration.Record(ctx, d.Seconds())
}

func (m *metrics) failed(ctx context.Context, what metric.MeasurementOption) {
	m.failures.Add(ctx, 1, what)
}

func (m *metrics) ackFailed(ctx context.Context) { m.ackFailures.Add(ctx, 1) }

func (m *metrics) nacked(ctx context.Context) { m.nacks.Add(ctx, 1) }
