package telemetry

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/oauth"
	"google.golang.org/grpc/keepalive"
)

// newTraceExporter makes what sends spans to an endpoint. more is for tests,
// which bring a network of their own.
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

// newMetricExporter makes what sends metrics to an endpoint, like
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

// dialOptions answers how to stay connected with a collector, and who we are if
// it is Google's. One that was away gets something again a few seconds after its
// return; gRPC's own pauses between attempts to connect grow to two minutes. A
// connection that was cut without a word is given up after 40 s at most in which
// calls wait for an answer; TCP may take a quarter of an hour.
//
// A ping is sent only while a call waits and nothing has come for 30 s, so once
// per call at most. A server with gRPC's default policy counts one that comes
// within 5 minutes of another as a strike, closes the connection at the third, and
// forgets the strikes whenever it sends an answer (google.golang.org/grpc v1.85.0,
// internal/transport/http2_server.go, handlePing). So it closes one only when it
// has answered none of several calls; then a new one costs nothing.
func dialOptions(ctx context.Context, endpoint string) ([]grpc.DialOption, error) {
	reconnect := backoff.DefaultConfig
	reconnect.MaxDelay = 5 * time.Second
	options := []grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: 5 * time.Second}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "https" || !strings.HasSuffix(u.Hostname(), ".googleapis.com") {
		return options, nil //nolint:nilerr // Validate has read the URL; others get no token of ours
	}
	perCall, err := oauth.NewApplicationDefault(context.WithoutCancel(ctx), "https://www.googleapis.com/auth/cloud-platform")
	if err != nil {
		return nil, fmt.Errorf("find credentials for %s: %w", u.Host, err)
	}
	return append(options, grpc.WithPerRPCCredentials(perCall)), nil
}
