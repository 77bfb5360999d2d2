// Package telemetry shows what the process does: it makes the providers of
// traces and metrics, sends what they have by OTLP or lets Prometheus fetch it,
// writes the log, and serves the private port.
//
// Nothing here is on by itself. What is off has a nil provider, and whoever is
// given one begins no span and keeps no metric.
//
// # What it promises
//
//   - Sampling is decided where a trace begins, by the caller or, without one,
//     by the ratio here; every step along the way, also behind Pub/Sub, does the
//     same.
//   - Nothing waits for a collector. Spans that cannot be sent in time are
//     dropped; Close waits as long as its context allows.
//   - No payload, argument of a statement, or secret becomes part of a span, a
//     metric or a log line; but the log tells ids.
//
// The private port has what nobody outside may see. It is not authenticated:
// whoever can reach it may read profiles and change the level of the log.
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

// Config says what is shown, and to whom. The zero value shows nothing.
type Config struct {
	// Service and Version are the name and version that everything carries.
	Service, Version string
	// Project is the project of Google Cloud that spans and metrics belong to.
	// Its OTLP endpoint needs it, others do not.
	Project string
	// TracesEndpoint is where spans are sent by OTLP over gRPC, such as
	// http://localhost:4317 or https://telemetry.googleapis.com; empty: there are
	// no spans. At an address of googleapis.com the process shows who it is with
	// Google's default credentials.
	TracesEndpoint string
	// TraceRatio is the part of the traces that begin here that is recorded, from
	// 0 to 1.
	TraceRatio float64
	// MetricsEndpoint is where metrics are sent, like TracesEndpoint, every minute:
	// OpenTelemetry's OTEL_METRIC_EXPORT_INTERVAL may say otherwise.
	MetricsEndpoint string
	// Prometheus says that metrics are also fetched, from the private port.
	Prometheus bool
}

// Validate tells everything that is wrong with a Config.
func (c Config) Validate() error {
	var errs []error
	for _, f := range []struct{ name, value string }{{"TracesEndpoint", c.TracesEndpoint}, {"MetricsEndpoint", c.MetricsEndpoint}} {
		if err := CheckEndpoint(f.value); err != nil {
			errs = append(errs, fmt.Errorf("%s %w", f.name, err))
		}
	}
	if !(c.TraceRatio >= 0 && c.TraceRatio <= 1) { // nor NaN
		errs = append(errs, errors.New("TraceRatio must be between 0 and 1"))
	}
	return errors.Join(errs...)
}

// CheckEndpoint returns what is wrong with an endpoint, without repeating it: it
// may have a password in it.
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
	// Tracing makes spans; nil: there are none.
	Tracing trace.TracerProvider
	// Metrics keeps metrics; nil: nobody reads them.
	Metrics metric.MeterProvider
	// Scrape returns Prometheus; nil: nobody fetches.
	Scrape http.Handler

	close []func(context.Context) error
}

// cardinality is how many sets of attributes an instrument may have: more than
// we ever use, and few enough for a mistake to be cheap.
const cardinality = 2000

// Start makes the providers. It connects to nobody yet. What goes wrong later
// is logged.
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

// describe returns what every span and metric says of the process. Variables of
// OpenTelemetry, such as OTEL_RESOURCE_ATTRIBUTES, add to it.
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
		// OpenTelemetry has the Go runtime, but no process.
		if err := registry.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})); err != nil {
			return fmt.Errorf("observe process: %w", err)
		}
		// outbox.publish.delay in seconds is outbox_publish_delay_seconds.
		exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry),
			otelprometheus.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes), otelprometheus.WithoutScopeInfo())
		if err != nil {
			return fmt.Errorf("make exporter for Prometheus: %w", err)
		}
		options = append(options, sdkmetric.WithReader(exporter))
		// Exemplars are in the format of OpenMetrics only.
		t.Scrape = promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true, ErrorHandling: promhttp.ContinueOnError})
	}
	if len(options) == readers {
		return nil
	}
	provider := sdkmetric.NewMeterProvider(options...)
	t.Metrics, t.close = provider, append(t.close, provider.Shutdown)
	return ObserveRuntime(provider)
}

// ObserveRuntime lets a provider show the Go runtime.
func ObserveRuntime(provider metric.MeterProvider) error {
	if err := runtime.Start(runtime.WithMeterProvider(provider)); err != nil {
		return fmt.Errorf("observe Go runtime: %w", err)
	}
	return nil
}

// Meter returns a meter; nil when nobody reads metrics.
func (t *Telemetry) Meter(name string) metric.Meter {
	if t.Metrics == nil {
		return nil
	}
	return t.Metrics.Meter(name)
}

// Close sends what is left, as long as ctx allows, and ends the providers.
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
