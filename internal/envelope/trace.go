package envelope

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// traceparentBytes is the length of a traceparent of version 00
// (https://www.w3.org/TR/trace-context/#traceparent-header).
const traceparentBytes = 55

// Traceparent returns the trace position of ctx as a W3C traceparent; empty if ctx is in no
// trace. It includes whether the trace is sampled, so that the next process makes the same
// choice.
func Traceparent(ctx context.Context) string {
	at := trace.SpanContextFromContext(ctx)
	if !at.IsValid() {
		return ""
	}
	return "00-" + at.TraceID().String() + "-" + at.SpanID().String() + "-" + at.TraceFlags().String()
}

// ContinueTrace returns ctx in the trace of a traceparent, and whether that trace is
// sampled. If the traceparent is empty, malformed or not sampled, it returns ctx unchanged,
// because there is nothing to record.
func ContinueTrace(ctx context.Context, traceparent string) (continued context.Context, sampled bool) {
	// The last bit of the flags. It saves the parsing of unsampled traceparents, which nearly every event has. Only a
	// later version of the standard can have letters here.
	if len(traceparent) < traceparentBytes || traceparent[traceparentBytes-1] <= '9' && traceparent[traceparentBytes-1]%2 == 0 {
		return ctx, false
	}
	continued = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{AttrTraceparent: traceparent})
	if !trace.SpanContextFromContext(continued).IsSampled() {
		return ctx, false
	}
	return continued, true
}
