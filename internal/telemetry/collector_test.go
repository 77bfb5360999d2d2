package telemetry_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	metricspb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracespb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"example.com/videocatalog/internal/reconnect/reconnecttest"
	"example.com/videocatalog/internal/telemetry"
)

// A connection that was cut without a word while it was idle costs the export that
// meets it, and no other: both exporters connect as package reconnect has it.
func TestExporterReplacesASilentConnection(t *testing.T) {
	const endpoint = "http://127.0.0.1:4317"
	for name, connect := range map[string]func(*testing.T, grpc.DialOption) (export, shutdown func(context.Context) error){
		"traces": func(t *testing.T, dial grpc.DialOption) (export, shutdown func(context.Context) error) {
			exporter, err := telemetry.NewTraceExporter(t.Context(), endpoint, dial)
			if err != nil {
				t.Fatal(err)
			}
			spans := tracetest.SpanStubs{{Name: "span"}}.Snapshots()
			return func(ctx context.Context) error { return exporter.ExportSpans(ctx, spans) }, exporter.Shutdown
		},
		"metrics": func(t *testing.T, dial grpc.DialOption) (export, shutdown func(context.Context) error) {
			exporter, err := telemetry.NewMetricExporter(t.Context(), endpoint, dial)
			if err != nil {
				t.Fatal(err)
			}
			return func(ctx context.Context) error { return exporter.Export(ctx, &metricdata.ResourceMetrics{}) }, exporter.Shutdown
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network, collector := reconnecttest.New(), grpc.NewServer()
				metricspb.RegisterMetricsServiceServer(collector, answersMetrics{})
				tracespb.RegisterTraceServiceServer(collector, answersTraces{})
				defer network.Serve(collector)()
				export, shutdown := connect(t, network.Dial())
				if err := export(t.Context()); err != nil {
					t.Errorf("export = %v, want nil", err)
				}
				time.Sleep(time.Minute)
				network.Silence()
				if err := export(t.Context()); err == nil {
					t.Error("export over a connection that was cut = nil, want an error")
				}
				time.Sleep(time.Second)
				if err := export(t.Context()); err != nil {
					t.Errorf("the next export = %v, want nil", err)
				}
				if err := shutdown(t.Context()); err != nil {
					t.Errorf("Shutdown() = %v", err)
				}
			})
		})
	}
}

type (
	answersMetrics struct {
		metricspb.UnimplementedMetricsServiceServer
	}
	answersTraces struct {
		tracespb.UnimplementedTraceServiceServer
	}
)

func (answersMetrics) Export(context.Context, *metricspb.ExportMetricsServiceRequest) (*metricspb.ExportMetricsServiceResponse, error) {
	return &metricspb.ExportMetricsServiceResponse{}, nil
}

func (answersTraces) Export(context.Context, *tracespb.ExportTraceServiceRequest) (*tracespb.ExportTraceServiceResponse, error) {
	return &tracespb.ExportTraceServiceResponse{}, nil
}
