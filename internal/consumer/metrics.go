package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"example.com/videocatalog/internal/envelope"
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

// Outcomes that no handler returns.
const (
	outcomeQuarantined envelope.Outcome = "quarantined"
	outcomeUnhandled   envelope.Outcome = "unhandled"
	outcomeUnknown     envelope.Outcome = "unknown" // a handler returned a value that is not an outcome
)

// labels are the attributes of the metrics of one aggregate type. They are made once.
type labels struct {
	aggregate metric.MeasurementOption
	outcomes  map[envelope.Outcome]metric.MeasurementOption
}

func newLabels(aggregateType string) labels {
	aggregate := attribute.String("aggregate_type", aggregateType)
	l := labels{aggregate: metric.WithAttributeSet(attribute.NewSet(aggregate)), outcomes: make(map[envelope.Outcome]metric.MeasurementOption)}
	for _, o := range []envelope.Outcome{envelope.Applied, envelope.AppliedAfterGap, envelope.Stale, envelope.Duplicate, envelope.Conflict, outcomeQuarantined, outcomeUnhandled, outcomeUnknown} {
		l.outcomes[o] = metric.WithAttributeSet(attribute.NewSet(aggregate, attribute.String("outcome", string(o))))
	}
	return l
}

// outcome returns the attributes of an outcome.
func (l labels) outcome(o envelope.Outcome) metric.MeasurementOption {
	if option, ok := l.outcomes[o]; ok {
		return option
	}
	return l.outcomes[outcomeUnknown]
}

// What failed, as the attribute error.type of OpenTelemetry.
var (
	failedReceive     = errorType("receive")
	failedUnavailable = errorType("unavailable")
	failedRefused     = errorType("refused")
	failedPanic       = errorType("panic")
)

func errorType(name string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("error.type", name)))
}

// seconds sets bucket bounds in seconds, because the default bounds are meant for
// milliseconds.
var seconds = metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 3600)

func newMetrics(meter metric.Meter) (*metrics, error) {
	if meter == nil {
		meter = noop.Meter{}
	}
	var m metrics
	var errs [11]error
	m.events, errs[0] = meter.Int64Counter("consumer.events", metric.WithUnit("{event}"),
		metric.WithDescription("Messages applied or set aside, counted after the commit, by aggregate_type (a type with a handler, or other) and outcome: applied, applied_after_gap, stale, duplicate, conflict (two events have the same version), quarantined, unhandled (no handler for its aggregate type: it is only acknowledged), unknown (its handler returned none of these)."))
	m.unknownTypes, errs[1] = meter.Int64Counter("consumer.unknown_types", metric.WithUnit("{event}"),
		metric.WithDescription("Events of a type that this build does not know. Each is counted in consumer.events, too."))
	m.failures, errs[2] = meter.Int64Counter("consumer.failures", metric.WithUnit("{failure}"),
		metric.WithDescription("Failures, by error.type: unavailable (the database), refused (by the store), panic, receive (the subscription could not be read)."))
	m.ackFailures, errs[3] = meter.Int64Counter("consumer.ack_failures", metric.WithUnit("{message}"),
		metric.WithDescription("Messages whose ack the broker did not confirm, with exactly-once delivery."))
	m.acks, errs[8] = meter.Int64Counter("consumer.acks", metric.WithUnit("{message}"),
		metric.WithDescription("Messages acknowledged, counted before the broker confirms the ack. So it includes those of consumer.ack_failures. The nack ratio is consumer.nacks / (consumer.acks + consumer.nacks)."))
	m.inHand, errs[9] = meter.Int64UpDownCounter("consumer.messages", metric.WithUnit("{message}"),
		metric.WithDescription("Messages in hand: received, but not yet acknowledged or given back."))
	m.delay, errs[10] = meter.Float64Histogram("consumer.delivery.delay", metric.WithUnit("s"), seconds,
		metric.WithDescription("Time from the broker's receipt of an event, by its clock, until the event was applied. Negative values, which wrong clocks cause, count as 0."))
	m.nacks, errs[4] = meter.Int64Counter("consumer.nacks", metric.WithUnit("{message}"),
		metric.WithDescription("Messages given back to the broker. This happens only at shutdown, and if the store refuses a message while the subscription cannot be read."))
	m.batchSize, errs[5] = meter.Int64Histogram("consumer.batch.size", metric.WithUnit("{event}"),
		metric.WithExplicitBucketBoundaries(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000),
		metric.WithDescription("Events applied in one transaction."))
	m.duration, errs[6] = meter.Float64Histogram("consumer.message.duration", metric.WithUnit("s"), seconds,
		metric.WithDescription("Time from the arrival of a message until it was acknowledged or given back."))
	m.lag, errs[7] = meter.Float64Histogram("consumer.lag", metric.WithUnit("s"), seconds,
		metric.WithDescription("Time from when an event happened, by the clock of its command, until it was applied. Negative values, which wrong clocks cause, count as 0. Not of events that are published again."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("make instruments: %w", err)
	}
	m.inHand.Add(context.Background(), 0) // so that it shows 0 before the first message
	return &m, nil
}

func (m *metrics) projected(ctx context.Context, to *route, deliveries []*delivery, got []envelope.Outcome) {
	m.batchSize.Record(ctx, int64(len(deliveries)))
	for i, d := range deliveries {
		m.events.Add(ctx, 1, to.labels.outcome(got[i]))
		if d.envelope.Repeat != envelope.RepeatSnapshot && !slices.Contains(to.handler.types, d.envelope.Type) {
			m.unknownTypes.Add(ctx, 1, to.labels.aggregate)
		}
		if got[i] == envelope.Applied || got[i] == envelope.AppliedAfterGap {
			traced := d.traced(ctx)
			if d.envelope.Repeat == "" {
				m.lag.Record(traced, since(d.envelope.OccurredAt), to.labels.aggregate)
			}
			m.delay.Record(traced, since(d.msg.PublishTime), to.labels.aggregate)
		}
	}
}

// since returns the seconds since t, at least 0. Another clock has set t and may be ahead,
// and the sum of a histogram must not fall.
func since(t time.Time) float64 { return max(0, time.Since(t).Seconds()) }

func (m *metrics) quarantined(ctx context.Context, d *delivery) {
	m.events.Add(ctx, 1, d.route.labels.outcome(outcomeQuarantined))
}

func (m *metrics) unhandled(ctx context.Context, d *delivery) {
	m.events.Add(ctx, 1, d.route.labels.outcome(outcomeUnhandled))
}

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
