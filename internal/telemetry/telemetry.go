// Package telemetry provides traces, metrics and logs. The variables of OpenTelemetry choose where
// traces and metrics go; the private port serves the metrics to Prometheus. By default both are
// off. Payloads, arguments of statements and secrets never appear in them or in the log.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	_ "net/http/pprof" //nolint:gosec // G108: nothing else serves http.DefaultServeMux, and this only on the private port
	"os"
	"time"

	"github.com/exaring/otelpgx"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/contrib/instrumentation/runtime"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Config configures telemetry, besides the variables of OpenTelemetry.
type Config struct {
	Service, Version string // of the process, on every span and metric
	Prometheus       bool   // makes Telemetry.Scrape
}

// Telemetry has the providers of a process. A provider that is off is nil.
type Telemetry struct {
	Tracing trace.TracerProvider
	Metrics metric.MeterProvider
	Scrape  http.Handler // serves the metrics to Prometheus

	close []func(context.Context) error
}

// instance is the same if a process starts telemetry again.
var instance = uuid.NewString()

// Start creates the providers. It does not connect yet. Later errors are logged.
func Start(ctx context.Context, cfg Config, log *slog.Logger) (*Telemetry, error) {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.WarnContext(context.WithoutCancel(ctx), "telemetry: failed", "err", err)
	}))
	registerGoogle()
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(attribute.String("service.name", cfg.Service),
		attribute.String("service.version", cfg.Version), attribute.String("service.instance.id", instance)), resource.WithFromEnv())
	if err != nil { // the rest of the resource is made, as OpenTelemetry specifies
		otel.Handle(fmt.Errorf("read OTEL_RESOURCE_ATTRIBUTES: %w", err))
	}
	t := &Telemetry{}
	if err = errors.Join(t.startTraces(ctx, about), t.startMetrics(ctx, about, cfg.Prometheus)); err != nil {
		return nil, fmt.Errorf("start telemetry: %w", errors.Join(err, t.Close(ctx)))
	}
	return t, nil
}

// asked reports whether a variable asks to export a signal. Without such a variable, autoexport
// would connect to localhost.
func asked(signal string) bool {
	return os.Getenv("OTEL_"+signal+"_EXPORTER") != "" || os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" ||
		os.Getenv("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT") != ""
}

func (t *Telemetry) startTraces(ctx context.Context, about *resource.Resource) error {
	if !asked("TRACES") {
		return nil
	}
	exporter, err := autoexport.NewSpanExporter(ctx)
	if err != nil {
		return fmt.Errorf("OTEL_TRACES_EXPORTER: %w", err)
	}
	if autoexport.IsNoneSpanExporter(exporter) {
		return nil
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithResource(about), sdktrace.WithBatcher(exporter))
	t.Tracing, t.close = provider, append(t.close, provider.Shutdown)
	return nil
}

func (t *Telemetry) startMetrics(ctx context.Context, about *resource.Resource, scraped bool) error {
	var readers []sdkmetric.Option
	if asked("METRICS") {
		reader, err := autoexport.NewMetricReader(ctx)
		if err != nil {
			return fmt.Errorf("OTEL_METRICS_EXPORTER: %w", err)
		}
		if !autoexport.IsNoneMetricReader(reader) {
			readers = append(readers, sdkmetric.WithReader(reader))
		}
	}
	if scraped {
		registry := prometheus.NewRegistry()
		reader, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo())
		if err != nil {
			return err
		}
		readers = append(readers, sdkmetric.WithReader(reader))
		t.Scrape = promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true, ErrorHandling: promhttp.ContinueOnError})
	}
	if len(readers) == 0 {
		return nil
	}
	provider := sdkmetric.NewMeterProvider(append(readers, sdkmetric.WithResource(about))...)
	t.Metrics, t.close = provider, append(t.close, provider.Shutdown)
	return runtime.Start(runtime.WithMeterProvider(provider))
}

// Meter returns a meter. If metrics are off, it measures nothing.
func (t *Telemetry) Meter(name string) metric.Meter {
	if t.Metrics == nil {
		return noop.Meter{}
	}
	return t.Metrics.Meter(name)
}

// Close sends the remaining data, as long as ctx allows.
func (t *Telemetry) Close(ctx context.Context) error {
	var errs []error
	for _, end := range t.close {
		errs = append(errs, end(ctx))
	}
	return errors.Join(errs...)
}

// QueryTracer returns a tracer for pgx, or nil if tracing and metrics are off.
func (t *Telemetry) QueryTracer() pgx.QueryTracer {
	if t.Tracing == nil && t.Metrics == nil {
		return nil
	}
	return otelpgx.NewTracer(otelpgx.WithTracerProvider(t.Tracing), otelpgx.WithMeterProvider(t.Metrics), otelpgx.WithDisableConnectionDetailsInAttributes())
}

// ObservePool adds metrics of a connection pool, labeled with name. Metrics must be on.
func (t *Telemetry) ObservePool(pool *pgxpool.Pool, name string) error {
	return otelpgx.RecordStats(pool, otelpgx.WithStatsMeterProvider(t.Metrics),
		otelpgx.WithStatsAttributes(attribute.String("db.client.connection.pool.name", name)))
}

// Private returns the handler of the private port: scrape at /metrics, and profiles at
// /debug/pprof/. It has no authentication, so the port must not be reachable from outside.
func Private(scrape http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", scrape)
	mux.Handle("GET /debug/pprof/", http.DefaultServeMux)
	return mux
}

// Serve serves a handler until ctx is done, then returns nil. It closes the listener and aborts
// the requests in flight.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler, log *slog.Logger) error {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // the error of a connection that is closed anyway
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the private port: %w", err)
	}
	return nil
}
