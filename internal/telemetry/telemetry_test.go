package telemetry_test

import (
	"context"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"example.com/videocatalog/internal/telemetry"
)

var discard = slog.New(slog.DiscardHandler)

// What is not asked for is not there.
func TestNothingIsOnByItself(t *testing.T) {
	tel, err := telemetry.Start(t.Context(), telemetry.Config{}, discard)
	if err != nil {
		t.Fatal(err)
	}
	if tel.Tracing != nil || tel.Metrics != nil || tel.Scrape != nil || tel.Meter("x") != nil || tel.QueryTracer() != nil {
		t.Errorf("Start() of nothing = %+v, want no providers", tel)
	}
	if err := tel.Close(t.Context()); err != nil {
		t.Errorf("Close() = %v", err)
	}
}

// Mistakes are told all at once, and an endpoint is not repeated.
func TestConfigIsChecked(t *testing.T) {
	for _, test := range []struct {
		name string
		cfg  telemetry.Config
		want []string
	}{
		{"nothing", telemetry.Config{}, nil},
		{"all", telemetry.Config{TracesEndpoint: "http://localhost:4317", TraceRatio: 1, MetricsEndpoint: "https://example.com"}, nil},
		{"no URL", telemetry.Config{TracesEndpoint: "secret:4317"}, []string{"TracesEndpoint must be a URL"}},
		{"no host", telemetry.Config{MetricsEndpoint: "https://"}, []string{"MetricsEndpoint must be a URL"}},
		{"numbers", telemetry.Config{TraceRatio: 1.1, MetricsEndpoint: "http://x"}, []string{"TraceRatio must be"}},
		{"no number", telemetry.Config{TraceRatio: math.NaN()}, []string{"TraceRatio must be"}},
	} {
		err := test.cfg.Validate()
		if (err == nil) != (len(test.want) == 0) {
			t.Errorf("%s: Validate() = %v, want %q", test.name, err, test.want)
			continue
		}
		for _, want := range test.want {
			if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: Validate() = %v, want %q", test.name, err, want)
			}
		}
	}
}

// Prometheus reads names with units, exemplars of sampled traces, the runtime
// and the process.
func TestPrometheusReadsMetrics(t *testing.T) {
	tel, err := telemetry.Start(t.Context(), telemetry.Config{Service: "test", Version: "1", Prometheus: true}, discard)
	if err != nil {
		t.Fatal(err)
	}
	delay, err := tel.Meter("test").Float64Histogram("outbox.publish.delay", metric.WithUnit("s"))
	if err != nil {
		t.Fatal(err)
	}
	at := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	delay.Record(trace.ContextWithSpanContext(t.Context(), at), 0.1)
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
	request.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	response := httptest.NewRecorder()
	tel.Scrape.ServeHTTP(response, request)
	for _, want := range []string{
		"# TYPE outbox_publish_delay_seconds histogram", "outbox_publish_delay_seconds_count 1", `trace_id="01000000000000000000000000000000"`,
		`service_name="test"`, "go_goroutine_count", "process_resident_memory_bytes",
	} {
		if !strings.Contains(response.Body.String(), want) {
			t.Errorf("/metrics lacks %q", want)
		}
	}
	if t.Failed() {
		t.Log(response.Body.String())
	}
	if err := tel.Close(t.Context()); err != nil {
		t.Errorf("Close() = %v", err)
	}
}

// A collector that is not there holds up neither the start nor, beyond its
// context, the end.
func TestAbsentCollectorHoldsNothingUp(t *testing.T) {
	start := time.Now()
	tel, err := telemetry.Start(t.Context(), telemetry.Config{
		TracesEndpoint: "http://127.0.0.1:1", TraceRatio: 1, MetricsEndpoint: "http://127.0.0.1:1",
	}, discard)
	if err != nil {
		t.Fatal(err)
	}
	_, span := tel.Tracing.Tracer("test").Start(t.Context(), "lost")
	span.End()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := tel.Close(ctx); err == nil {
		t.Error("Close() = nil, want that something was lost")
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
}
