package telemetry

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/oauth"

	"example.com/videocatalog/internal/reconnect"
)

// newTraceExporter returns an exporter that sends spans to an endpoint. Tests
// pass more options to use their own network.
func newTraceExporter(ctx context.Context, endpoint string, more ...grpc.DialOption) (sdktrace.SpanExporter, error) {
	dial, err := dialOptions(ctx, endpoint)
	if err != nil {
		return nil, err
	}
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(endpoint), otlptracegrpc.WithDialOption(append(dial, more...)...))
	if err != nil {
		return nil, fmt.Errorf("make exporter of traces: %w", err)
	}
	return exporter, nil
}

// newMetricExporter returns an exporter that sends metrics to an endpoint, like
// newTraceExporter.
func newMetricExporter(ctx context.Context, endpoint string, more ...grpc.DialOption) (sdkmetric.Exporter, error) {
	dial, err := dialOptions(ctx, endpoint)
	if err != nil {
		return nil, err
	}
	exporter, err := otlpmetricgrpc.New(ctx, otlpmetricgrpc.WithEndpointURL(endpoint), otlpmetricgrpc.WithDialOption(append(dial, more...)...))
	if err != nil {
		return nil, fmt.Errorf("make exporter of metrics: %w", err)
	}
	return exporter, nil
}

// dialOptions returns the options for connections to a collector. For an https
// endpoint of googleapis.com they include Google's default credentials.
func dialOptions(ctx context.Context, endpoint string) ([]grpc.DialOption, error) {
	options := reconnect.DialOptions()
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "https" || !strings.HasSuffix(u.Hostname(), ".googleapis.com") {
		return options, nil //nolint:nilerr // Validate checked the URL; other hosts must not get our token
	}
	perCall, err := oauth.NewApplicationDefault(context.WithoutCancel(ctx), "https://www.googleapis.com/auth/cloud-platform")
	if err != nil {
		return nil, fmt.Errorf("find credentials for %s: %w", u.Host, err)
	}
	return append(options, grpc.WithPerRPCCredentials(perCall)), nil
}
