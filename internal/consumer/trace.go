package consumer

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"example.com/videocatalog/internal/envelope"
)

// startSpan starts the span of a delivery, which lasts from its arrival until its end. A
// delivery whose trace is not sampled gets a span that does nothing.
func (r *run) startSpan(d *delivery) {
	ctx, sampled := envelope.ContinueTrace(r.work, d.Attributes[envelope.AttrTraceparent])
	if !sampled {
		d.span = trace.SpanFromContext(context.Background())
		return
	}
	_, d.span = r.tracer.Start(ctx, "consumer.process", trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes( //nolint:spancheck // handle ends it
		attribute.String("messaging.operation.type", "process"),
		attribute.String("messaging.destination.subscription.name", r.Source.String()),
		attribute.String("messaging.message.id", d.ID),
		attribute.String("event.id", d.Attributes[envelope.AttrEventID]),
		attribute.String("event.type", d.Attributes[envelope.AttrEventType]),
		attribute.String("event.aggregate_id", d.Attributes[envelope.AttrAggregateID]),
	))
}

// traced returns ctx with the span of a delivery, so that metrics and log lines refer to
// it.
func (d *delivery) traced(ctx context.Context) context.Context {
	return trace.ContextWithSpan(ctx, d.span)
}

// tracedTogether returns ctx with the span of the first sampled delivery, so that the
// statements of a transaction are below it. The spans of the others link to it.
func tracedTogether(ctx context.Context, deliveries []*delivery) context.Context {
	var first *delivery
	for _, d := range deliveries {
		switch {
		case !d.span.IsRecording():
		case first == nil:
			first = d
		default:
			d.span.AddLink(trace.Link{SpanContext: first.span.SpanContext()})
		}
	}
	if first == nil {
		return ctx
	}
	return first.traced(ctx)
}
