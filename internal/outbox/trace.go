package outbox

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"example.com/videocatalog/internal/envelope"
)

// observed is a Broker that measures the delay of each message, and makes a span for each message whose trace
// is sampled. The span belongs to the trace of its event, and lasts until the response.
type observed struct {
	Broker

	cfg   Config
	delay metric.Float64Histogram
}

// Publish implements Broker. It writes the span into the traceparent of the message.
func (o observed) Publish(m envelope.Message) Receipt {
	ctx, sampled := context.Background(), false
	if o.cfg.Tracing != nil {
		ctx, sampled = envelope.ContinueTrace(ctx, m.Traceparent)
	}
	if sampled {
		tracer := o.cfg.Tracing.Tracer("example.com/videocatalog/internal/outbox")
		ctx, _ = tracer.Start(ctx, "outbox.publish", trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes( //nolint:spancheck // Wait ends it
			attribute.String("messaging.system", o.cfg.System), attribute.String("messaging.operation.type", "send"),
			attribute.String("event.id", m.ID.String()), attribute.String("event.type", m.Type),
			attribute.String("event.aggregate_id", m.AggregateID), attribute.Int64("event.version", m.Version),
		))
		m.Traceparent = envelope.Traceparent(ctx)
	}
	receipt, occurredAt, again := o.Broker.Publish(m), m.OccurredAt, m.Repeat != ""
	return waiter(func(waiting context.Context) error {
		err := receipt.Wait(waiting)
		if err == nil && !again {
			o.delay.Record(ctx, max(0, time.Since(occurredAt).Seconds())) // the clock of the command may be ahead
		}
		span := trace.SpanFromContext(ctx) // does nothing if there is none
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
		return err
	})
}

// waiter is a Receipt that ends the observation of a message.
type waiter func(ctx context.Context) error

// Wait implements Receipt.
func (w waiter) Wait(ctx context.Context) error { return w(ctx) }
