package outbox

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"example.com/videocatalog/internal/envelope"
)

// startSpan starts the span of an event whose trace is sampled, and writes the span into the
// traceparent. The span lasts from handing the event to the broker until the response, and
// belongs to the trace of its event. It is nil for other events, which are nearly all.
func (p *Publisher) startSpan(ctx context.Context, e *Claimed) trace.Span {
	if p.tracer == nil {
		return nil
	}
	ctx, sampled := envelope.ContinueTrace(ctx, e.Traceparent)
	if !sampled {
		return nil
	}
	ctx, span := p.tracer.Start(ctx, "outbox.publish", trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes( //nolint:spancheck // endSpan ends it
		attribute.String("messaging.system", "gcp_pubsub"), attribute.String("messaging.operation.type", "send"),
		attribute.String("messaging.gcp_pubsub.message.ordering_key", e.AggregateID),
		attribute.String("event.id", e.ID.String()), attribute.String("event.type", e.Type), attribute.Int64("event.version", e.Version),
		attribute.Int("outbox.attempts", e.Attempts),
	))
	e.Traceparent = envelope.Traceparent(ctx)
	return span //nolint:spancheck // endSpan ends it
}

// endSpan ends the span of an event, unless it is nil. It returns ctx with that span, so that
// the metrics of the event refer to it.
func endSpan(ctx context.Context, span trace.Span, err error) context.Context {
	if span == nil {
		return ctx
	}
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
	return trace.ContextWithSpan(ctx, span)
}
