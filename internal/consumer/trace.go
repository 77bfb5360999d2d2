package consumer

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"example.com/videocatalog/internal/envelope"
)

// begin starts the span of a delivery, which lasts from its arrival until it is settled. A
// delivery whose trace is not sampled gets no span.
func (r *run) begin(d *delivery) {
	if r.tracer == nil {
		return
	}
	msg := d.msg
	ctx, sampled := envelope.ContinueTrace(r.work, msg.Attributes[envelope.AttrTraceparent])
	if !sampled {
		return
	}
	attributes := []attribute.KeyValue{
		attribute.String("messaging.system", "gcp_pubsub"), attribute.String("messaging.operation.type", "process"),
		attribute.String("messaging.destination.subscription.name", d.source.String()), attribute.String("messaging.message.id", msg.ID),
		attribute.String("messaging.gcp_pubsub.message.ordering_key", msg.OrderingKey),
		attribute.String("event.id", msg.Attributes[envelope.AttrEventID]), attribute.String("event.type", msg.Attributes[envelope.AttrEventType]),
	}
	if msg.DeliveryAttempt != nil {
		attributes = append(attributes, attribute.Int("messaging.gcp_pubsub.message.delivery_attempt", *msg.DeliveryAttempt))
	}
	_, d.span = r.tracer.Start(ctx, "consumer.process", trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(attributes...)) //nolint:spancheck // end ends it
}

// end ends the span of a message.
func (d *delivery) end(became string) {
	if d.span == nil {
		return
	}
	d.span.SetAttributes(attribute.String("outcome", became))
	if became == "given_back" {
		d.span.SetStatus(codes.Error, "given back to the broker")
	}
	d.span.End()
}

// traced returns ctx with the span of a delivery, so that metrics and log lines refer to
// it.
func (d *delivery) traced(ctx context.Context) context.Context {
	if d.span == nil {
		return ctx
	}
	return trace.ContextWithSpan(ctx, d.span)
}

// beginBatch starts the spans of a transaction over deliveries, one in each sampled trace.
// There is only one transaction, so its statements are under the first span, and the other
// spans link to that. It returns the first span, or nil if nothing is traced.
func (r *run) beginBatch(deliveries []*delivery) (first trace.Span, end func(error)) {
	var spans []trace.Span
	for _, d := range deliveries {
		if d.span == nil {
			continue
		}
		options := []trace.SpanStartOption{trace.WithAttributes(
			attribute.Int("messaging.batch.message_count", len(deliveries)), attribute.Int64("event.version", d.envelope.Version))}
		if first != nil {
			options = append(options, trace.WithLinks(trace.Link{SpanContext: first.SpanContext()}))
		}
		_, span := r.tracer.Start(d.traced(r.work), "consumer.project", options...)
		if first == nil {
			first = span
		}
		spans = append(spans, span)
	}
	return first, func(err error) {
		for _, span := range spans {
			if err != nil {
				span.SetStatus(codes.Error, err.Error())
			}
			span.End()
		}
	}
}
