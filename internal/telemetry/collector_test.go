package telemetry_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	metricspb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracespb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"example.com/videocatalog/internal/telemetry"
)

// collector is where an exporter sends to, with gRPC's defaults, and the network
// between the two.
type collector struct {
	listener *bufconn.Listener

	mu     sync.Mutex
	silent *atomic.Bool // guarded by mu: of the newest connection
}

// dial connects the exporter.
func (c *collector) dial(ctx context.Context, _ string) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn, err := c.listener.DialContext(ctx)
	c.silent = new(atomic.Bool)
	return silentConn{conn, c.silent}, err
}

// cut lets nothing through any more on the newest connection, which does not end.
func (c *collector) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent.Store(true)
}

// silentConn loses what is written to it when it is silent; so nothing comes
// back either.
type silentConn struct {
	net.Conn
	silent *atomic.Bool
}

func (c silentConn) Write(b []byte) (int, error) {
	if c.silent.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// withCollector runs a test for each exporter, in time that passes by itself.
func withCollector(t *testing.T, test func(t *testing.T, c *collector, export func() error)) {
	t.Helper()
	run := func(name string, newExporter func(ctx context.Context, dial grpc.DialOption) (export, shutdown func(context.Context) error, err error)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &collector{listener: bufconn.Listen(1 << 20)}
				server := grpc.NewServer()
				metricspb.RegisterMetricsServiceServer(server, answersMetrics{})
				tracespb.RegisterTraceServiceServer(server, answersTraces{})
				var serving sync.WaitGroup
				serving.Go(func() { _ = server.Serve(c.listener) }) // an error shows in what is exported
				defer serving.Wait()
				defer server.Stop()
				export, shutdown, err := newExporter(t.Context(), grpc.WithContextDialer(c.dial))
				if err != nil {
					t.Fatal(err)
				}
				test(t, c, func() error { return export(t.Context()) })
				if err := shutdown(t.Context()); err != nil {
					t.Errorf("Shutdown() = %v", err)
				}
			})
		})
	}
	run("traces", func(ctx context.Context, dial grpc.DialOption) (export, shutdown func(context.Context) error, err error) {
		exporter, err := telemetry.NewTraceExporter(ctx, "http://127.0.0.1:4317", dial)
		if err != nil {
			return nil, nil, err
		}
		spans := tracetest.SpanStubs{{Name: "span"}}.Snapshots()
		return func(ctx context.Context) error { return exporter.ExportSpans(ctx, spans) }, exporter.Shutdown, nil
	})
	run("metrics", func(ctx context.Context, dial grpc.DialOption) (export, shutdown func(context.Context) error, err error) {
		exporter, err := telemetry.NewMetricExporter(ctx, "http://127.0.0.1:4317", dial)
		if err != nil {
			return nil, nil, err
		}
		return func(ctx context.Context) error { return exporter.Export(ctx, &metricdata.ResourceMetrics{}) }, exporter.Shutdown, nil
	})
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

// A connection that was cut without a word while it was idle costs the export that
// meets it, and no other: both exporters connect as package reconnect has it.
func TestExporterReplacesASilentConnection(t *testing.T) {
	withCollector(t, func(t *testing.T, c *collector, export func() error) {
		if err := export(); err != nil {
			t.Fatalf("export = %v, want nil", err)
		}
		time.Sleep(time.Minute)
		c.cut()
		if err := export(); err == nil {
			t.Error("export over a connection that was cut = nil, want an error")
		}
		time.Sleep(time.Second)
		if err := export(); err != nil {
			t.Errorf("the next export = %v, want nil", err)
		}
	})
}
