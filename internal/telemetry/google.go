package telemetry

import (
	"context"
	"sync"

	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/oauth"

	"example.com/videocatalog/internal/reconnect"
)

// google is not a setting, because no other host may get the token.
const google = "telemetry.googleapis.com:443"

// registerGoogle adds the exporter google for OTEL_TRACES_EXPORTER and OTEL_METRICS_EXPORTER.
// It sends to Google's OTLP endpoint, with Google's default credentials.
var registerGoogle = sync.OnceFunc(func() {
	autoexport.RegisterSpanExporter("google", func(ctx context.Context) (sdktrace.SpanExporter, error) {
		dial, err := dialGoogle(ctx)
		if err != nil {
			return nil, err
		}
		return otlptracegrpc.New(ctx, otlptracegrpc.WithEndpoint(google), otlptracegrpc.WithDialOption(dial...))
	})
	autoexport.RegisterMetricReader("google", func(ctx context.Context) (sdkmetric.Reader, error) {
		dial, err := dialGoogle(ctx)
		if err != nil {
			return nil, err
		}
		exporter, err := otlpmetricgrpc.New(ctx, otlpmetricgrpc.WithEndpoint(google), otlpmetricgrpc.WithDialOption(dial...))
		return sdkmetric.NewPeriodicReader(exporter), err
	})
})

func dialGoogle(ctx context.Context) ([]grpc.DialOption, error) {
	perCall, err := oauth.NewApplicationDefault(context.WithoutCancel(ctx), "https://www.googleapis.com/auth/cloud-platform")
	return append(reconnect.DialOptions(), grpc.WithPerRPCCredentials(perCall)), err
}
