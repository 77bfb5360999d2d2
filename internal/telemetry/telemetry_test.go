package telemetry_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"

	"example.com/videocatalog/internal/telemetry"
)

var discard = slog.New(slog.DiscardHandler)

// Nothing is exported unless a variable asks for it.
func TestVariablesTurnExportOn(t *testing.T) {
	credentials := filepath.Join(t.TempDir(), "credentials.json")
	if err := os.WriteFile(credentials, []byte(`{"type":"authorized_user","client_id":"a","client_secret":"b","refresh_token":"c"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name                   string
		environ                map[string]string
		traces, metrics, fails bool
	}{
		{"nothing", nil, false, false, false},
		{"an endpoint", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, true, true, false},
		{"an endpoint of traces", map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}, true, false, false},
		{"an endpoint of metrics", map[string]string{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:1"}, false, true, false},
		{"an endpoint, but no traces", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"}, false, true, false},
		{"gRPC", map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, true, false, false},
		{"a wrong attribute", map[string]string{"OTEL_RESOURCE_ATTRIBUTES": "team=shop,"}, false, false, false},
		{"no such exporter", map[string]string{"OTEL_METRICS_EXPORTER": "pigeon"}, false, false, true},
		{"google", map[string]string{"OTEL_TRACES_EXPORTER": "google", "OTEL_METRICS_EXPORTER": "google", "GOOGLE_APPLICATION_CREDENTIALS": credentials}, true, true, false},
		{"google without credentials", map[string]string{"OTEL_TRACES_EXPORTER": "google", "GOOGLE_APPLICATION_CREDENTIALS": credentials + "x"}, false, false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			for name, value := range test.environ {
				t.Setenv(name, value)
			}
			var log strings.Builder
			tel, err := telemetry.Start(t.Context(), telemetry.Config{}, slog.New(slog.NewTextHandler(&log, nil)))
			if (err != nil) != test.fails || strings.Contains(log.String(), "OTEL_RESOURCE_ATTRIBUTES") != (test.environ["OTEL_RESOURCE_ATTRIBUTES"] != "") {
				t.Fatalf("Start() = %v, log = %s, want an error: %t, and the name of a variable that is dropped", err, &log, test.fails)
			}
			if err != nil {
				if !strings.Contains(err.Error(), "S_EXPORTER") {
					t.Errorf("Start() = %v, want it to name the variable", err)
				}
				return
			}
			if (tel.Tracing != nil) != test.traces || (tel.Metrics != nil) != test.metrics || (tel.Meter("x") != noop.Meter{}) != test.metrics {
				t.Errorf("Start() = %+v, want traces: %t, metrics: %t", tel, test.traces, test.metrics)
			}
			if on := test.traces || test.metrics; (tel.QueryTracer() != nil) != on || tel.Scrape != nil {
				t.Errorf("QueryTracer() = %v, Scrape = %v, want a tracer: %t, and no metrics for Prometheus", tel.QueryTracer(), tel.Scrape, on)
			}
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			_ = tel.Close(ended) // nobody listens there
		})
	}
}

// Prometheus reads names with units, exemplars of sampled traces, and metrics of the runtime.
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
	telemetry.Private(tel.Scrape).ServeHTTP(response, request)
	for _, want := range []string{
		"# TYPE outbox_publish_delay_seconds histogram", "outbox_publish_delay_seconds_count 1", `trace_id="01000000000000000000000000000000"`,
		`service_name="test"`, "go_goroutine_count",
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

// A collector that is unavailable delays neither the start nor, beyond its context, the end.
func TestAbsentCollectorDelaysNothing(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	start := time.Now()
	tel, err := telemetry.Start(t.Context(), telemetry.Config{}, discard)
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
