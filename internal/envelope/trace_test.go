package envelope_test

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"example.com/videocatalog/internal/envelope"
)

const (
	sampledParent   = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	unsampledParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
)

func inTrace(t *testing.T, flags trace.TraceFlags) context.Context {
	t.Helper()
	traceID, err := trace.TraceIDFromHex("0af7651916cd43dd8448eb211c80319c")
	if err != nil {
		t.Fatal(err)
	}
	spanID, err := trace.SpanIDFromHex("b7ad6b7169203331")
	if err != nil {
		t.Fatal(err)
	}
	return trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceID, SpanID: spanID, TraceFlags: flags}))
}

// A traceparent has the trace, the span, and whether the trace is sampled.
func TestTraceparent(t *testing.T) {
	for _, test := range []struct {
		name string
		ctx  context.Context
		want string
	}{
		{"no trace", t.Context(), ""},
		{"sampled", inTrace(t, trace.FlagsSampled), sampledParent},
		{"not sampled", inTrace(t, 0), unsampledParent},
	} {
		if got := envelope.Traceparent(test.ctx); got != test.want {
			t.Errorf("%s: Traceparent() = %q, want %q", test.name, got, test.want)
		}
	}
}

// Only a sampled trace is continued. A malformed traceparent is ignored.
func TestContinueTrace(t *testing.T) {
	for _, test := range []struct {
		name, traceparent string
		want              bool
	}{
		{"none", "", false},
		{"sampled", sampledParent, true},
		{"sampled, with a flag of level 2", sampledParent[:53] + "03", true},
		{"not sampled", unsampledParent, false},
		{"not sampled, with a flag of level 2", sampledParent[:53] + "02", false},
		{"short", sampledParent[:54], false},
		{"no hex", "00-zzf7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false},
		{"zero trace", "00-00000000000000000000000000000000-b7ad6b7169203331-01", false},
	} {
		ctx, sampled := envelope.ContinueTrace(t.Context(), test.traceparent)
		if sampled != test.want {
			t.Errorf("%s: sampled = %t, want %t", test.name, sampled, test.want)
		}
		if got := envelope.Traceparent(ctx) != ""; got != test.want {
			t.Errorf("%s: the context is in trace %q", test.name, envelope.Traceparent(ctx))
		}
	}
}

// Without a sampled trace, nothing is allocated.
func TestNoTraceCostsNothing(t *testing.T) {
	ctx := t.Context()
	allocations := testing.AllocsPerRun(100, func() {
		_ = envelope.Traceparent(ctx)
		_, _ = envelope.ContinueTrace(ctx, "")
		_, _ = envelope.ContinueTrace(ctx, unsampledParent)
	})
	if allocations != 0 {
		t.Errorf("got %g allocations, want 0", allocations)
	}
}
