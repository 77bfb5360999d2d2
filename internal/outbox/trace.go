package outbox

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"example.com/videocatalog/internal/envelope"
)

// passTrace holds the spans of a pass: one per event whose trace is sampled. A span lasts
// from handing the event to the broker until the response, and belongs to the trace of its
// event. The zero value has no spans, as in nearly every pass.
type passTrace struct {
	tracer trace.Tracer // nil if nothing is traced
	spans  []trace.Span // by the index of the event; nil if there is none
}

// publish starts the span of the i-th of n events, and returns the message with that span
// in its traceparent. Without a span it returns the message unchanged.
func (t *passTrace) publish(ctx context.Context, i, n int, e Claimed) envelope.Message {
	if t.tracer == nil {
		return e.Message
	}
	ctx, sampled := envelope.ContinueTrace(ctx, e.Traceparent)
	if !sampled {
		return e.Message
	}
	if t.spans == nil {
		t.spans = make([]trace.Span, n)
	}
	ctx, t.spans[i] = t.tracer.Start(ctx, "outbox.publish", trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes( //nolint:spancheck // responded ends it
		attribute.String("messaging.system", "gcp_pubsub"), attribute.String("messaging.operation.type", "send"),
		attribute.String("messaging.gcp_pubsub.message.ordering_key", e.AggregateID),
		attribute.String("event.id", e.ID.String()), attribute.String("event.type", e.Type), attribute.Int64("event.version", e.Version),
		attribute.Int("outbox.attempts", e.Attempts),
	))
	e.Traceparent = envelope.Traceparent(ctx)
	return e.Message
}

// responded ends the span of the i-th event. It returns ctx with that span, so that the
// metrics of the event refer to it.
func (t *passTrace) responded(ctx context.Context, i int, err error) context.Context {
	if t.spans == nil || t.spans[i] == nil {
		return ctx
	}
	span := t.spans[i]
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
	return trace.ContextWithSpan(ctx, span)
}
