// Package telemetry provides traces, metrics and logs. It creates the providers,
// exports their data by OTLP or to Prometheus, and serves the private port.
//
// Everything is off by default. What is off has a nil provider, and code with a
// nil provider creates no spans and no metrics.
//
//   - The sampling decision is made where a trace begins: by the caller, or here by
//     Config.TraceRatio. All later steps follow it, also behind Pub/Sub.
//   - Nothing waits for a collector. Spans that cannot be sent in time are dropped;
//     Close waits as long as its context allows.
//   - Payloads, arguments of statements and secrets never appear in spans, metrics
//     or log lines. Ids do appear in the log.
//
// The private port must not be reachable from outside, because it has no
// authentication: it serves profiles and can change the log level.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/contrib/instrumentation/runtime"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Config has the settings of telemetry. The zero value turns everything off.
type Config struct {
	// Service and Version are the name and version on every span and metric.
	Service, Version string
	// Project is the Google Cloud project of spans and metrics. Only Google's
	// OTLP endpoint needs it.
	Project string
	// TracesEndpoint is where spans are sent by OTLP over gRPC, such as
	// http://localhost:4317 or https://telemetry.googleapis.com. An endpoint of
	// googleapis.com is called with Google's default credentials. Empty: no
	// spans.
	TracesEndpoint string
	// TraceRatio is the fraction of traces that are recorded, from 0 to 1. It
	// applies only to traces that begin here.
	TraceRatio float64
	// MetricsEndpoint is where metrics are sent by OTLP over gRPC, once a
	// minute; OpenTelemetry's OTEL_METRIC_EXPORT_INTERVAL changes that. Empty:
	// none are sent.
	MetricsEndpoint string
	// Prometheus also serves the metrics on the private port.
	Prometheus bool
}

// Validate returns every error of the Config, joined into one.
func (c Config) Validate() error {
	var errs []error
	for _, f := range []struct{ name, value string }{{"TracesEndpoint", c.TracesEndpoint}, {"MetricsEndpoint", c.MetricsEndpoint}} {
		if err := CheckEndpoint(f.value); err != nil {
			errs = append(errs, fmt.Errorf("%s %w", f.name, err))
		}
	}
	if !(c.TraceRatio >= 0 && c.TraceRatio <= 1) { // rejects NaN too
		errs = append(errs, errors.New("TraceRatio must be between 0 and 1"))
	}
	return errors.Join(errs...)
}

// CheckEndpoint returns an error if an endpoint is not valid. The error does
// not repeat the endpoint, which may contain a password.
func CheckEndpoint(endpoint string) error {
	if endpoint == "" {
		return nil
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return errors.New("must be a URL such as http://localhost:4317 or https://telemetry.googleapis.com")
	}
	return nil
}

// Telemetry has the providers of a process.
type Telemetry struct {
	// Tracing creates spans. Nil: no spans.
	Tracing trace.TracerProvider
	// Metrics holds the metrics. Nil: no metrics.
	Metrics metric.MeterProvider
	// Scrape serves the metrics to Prometheus. Nil: off.
	Scrape http.Handler

	close []func(context.Context) error
}

// cardinality is the largest number of attribute sets per instrument. It is
// more than we use, and small enough to limit the cost of a mistake.
const cardinality = 2000

// Start creates the providers. It does not connect yet. Later errors are
// logged.
func Start(ctx context.Context, cfg Config, log *slog.Logger) (_ *Telemetry, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	t := &Telemetry{}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.Close(ctx))
		}
	}()
	about, err := describe(ctx, cfg)
	if err != nil {
		return nil, err
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.WarnContext(context.WithoutCancel(ctx), "telemetry: failed", "err", err)
	}))
	if err := t.startTraces(ctx, cfg, about); err != nil {
		return nil, err
	}
	return t, t.startMetrics(ctx, cfg, about)
}

// describe returns the attributes of the process for every span and metric.
// OpenTelemetry's variables, such as OTEL_RESOURCE_ATTRIBUTES, add to them.
func describe(ctx context.Context, cfg Config) (*resource.Resource, error) {
	attributes := []attribute.KeyValue{
		attribute.String("service.name", cfg.Service), attribute.String("service.version", cfg.Version),
		attribute.String("service.instance.id", uuid.NewString()),
	}
	if cfg.Project != "" {
		attributes = append(attributes, attribute.String("gcp.project_id", cfg.Project))
	}
	about, err := resource.New(ctx, resource.WithAttributes(attributes...), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("describe the process: %w", err)
	}
	return about, nil
}

func (t *Telemetry) startTraces(ctx context.Context, cfg Config, about *resource.Resource) error {
	if cfg.TracesEndpoint == "" {
		return nil
	}
	exporter, err := newTraceExporter(ctx, cfg.TracesEndpoint)
	if err != nil {
		return err
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithResource(about),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(cfg.TraceRatio))),
		sdktrace.WithBatcher(exporter),
	)
	t.Tracing, t.close = provider, append(t.close, provider.Shutdown)
	return nil
}

func (t *Telemetry) startMetrics(ctx context.Context, cfg Config, about *resource.Resource) error {
	options := []sdkmetric.Option{sdkmetric.WithResource(about), sdkmetric.WithCardinalityLimit(cardinality)}
	readers := len(options)
	if cfg.MetricsEndpoint != "" {
		exporter, err := newMetricExporter(ctx, cfg.MetricsEndpoint)
		if err != nil {
			return err
		}
		options = append(options, sdkmetric.WithReader(sdkmetric.NewPeriodicReader(exporter)))
	}
	if cfg.Prometheus {
		registry := prometheus.NewRegistry()
		// OpenTelemetry has metrics of the Go runtime, but none of the process.
		if err := registry.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})); err != nil {
			return fmt.Errorf("observe process: %w", err)
		}
		// This strategy turns outbox.publish.delay in seconds into
		// outbox_publish_delay_seconds.
		exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry),
			otelprometheus.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes), otelprometheus.WithoutScopeInfo())
		if err != nil {
			return fmt.Errorf("make exporter for Prometheus: %w", err)
		}
		options = append(options, sdkmetric.WithReader(exporter))
		// Only the OpenMetrics format has exemplars.
		t.Scrape = promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true, ErrorHandling: promhttp.ContinueOnError})
	}
	if len(options) == readers {
		return nil
	}
	provider := sdkmetric.NewMeterProvider(options...)
	t.Metrics, t.close = provider, append(t.close, provider.Shutdown)
	return ObserveRuntime(provider)
}

// ObserveRuntime adds the metrics of the Go runtime to a provider.
func ObserveRuntime(provider metric.MeterProvider) error {
	if err := runtime.Start(runtime.WithMeterProvider(provider)); err != nil {
		return fmt.Errorf("observe Go runtime: %w", err)
	}
	return nil
}

// Meter returns a meter, or nil if metrics are off.
func (t *Telemetry) Meter(name string) metric.Meter {
	if t.Metrics == nil {
		return nil
	}
	return t.Metrics.Meter(name)
}

// Close sends the remaining data, as long as ctx allows, and shuts the
// providers down. Later calls do nothing.
func (t *Telemetry) Close(ctx context.Context) error {
	errs := make([]error, len(t.close))
	for i, end := range t.close {
		errs[i] = end(ctx)
	}
	t.close = nil
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("send the last spans and metrics: %w", err)
	}
	return nil
}
