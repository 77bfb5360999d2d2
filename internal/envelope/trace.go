package envelope

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// traceparentBytes is the length of a traceparent of version 00
// (https://www.w3.org/TR/trace-context/#traceparent-header).
const traceparentBytes = 55

// Traceparent returns where ctx is in its trace, in the form of W3C; empty when
// it is in none. Whether the trace is sampled is part of it, so that whoever
// goes on with it decides the same.
func Traceparent(ctx context.Context) string {
	at := trace.SpanContextFromContext(ctx)
	if !at.IsValid() {
		return ""
	}
	return "00-" + at.TraceID().String() + "-" + at.SpanID().String() + "-" + at.TraceFlags().String()
}

// ContinueTrace returns ctx in the trace that a traceparent names, and whether
// that is sampled. Without a traceparent, or with a malformed one, or one that
// is not sampled, it returns ctx as it is: there is nothing to record then.
func ContinueTrace(ctx context.Context, traceparent string) (continued context.Context, sampled bool) {
	if !looksSampled(traceparent) {
		return ctx, false
	}
	continued = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{AttrTraceparent: traceparent})
	if !trace.SpanContextFromContext(continued).IsSampled() {
		return ctx, false
	}
	return continued, true
}

// looksSampled reads the last bit of the flags. It spares what is not sampled,
// which is nearly every event, the parsing.
func looksSampled(traceparent string) bool {
	if len(traceparent) < traceparentBytes {
		return false
	}
	last := traceparent[traceparentBytes-1]
	return last >= '0' && last <= '9' && last%2 == 1 || last >= 'a' && last <= 'f' && last%2 == 0
}
