package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/metric"
)

const scope = "example.com/videocatalog/internal/server"

// catalogMetrics measure how far the catalog is behind the callers who wait for
// it. A nil *catalogMetrics records nothing.
type catalogMetrics struct {
	lag  metric.Int64Histogram
	wait metric.Float64Histogram
}

func newCatalogMetrics(provider metric.MeterProvider) (*catalogMetrics, error) {
	if provider == nil {
		return nil, nil //nolint:nilnil // see catalogMetrics
	}
	meter := provider.Meter(scope)
	var m catalogMetrics
	var errs [2]error
	m.lag, errs[0] = meter.Int64Histogram("catalog.version.lag", metric.WithUnit("{version}"),
		metric.WithExplicitBucketBoundaries(0, 1, 2, 5, 10, 20, 50, 100),
		metric.WithDescription("Versions that an entry was behind min_version when a caller of GetCatalogEntry asked for it; 0 when it was not."))
	m.wait, errs[1] = meter.Float64Histogram("catalog.version.wait", metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30),
		metric.WithDescription("How long callers of GetCatalogEntry waited for min_version, if the catalog was behind, also in vain."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("make instruments: %w", err)
	}
	return &m, nil
}

func (m *catalogMetrics) behind(ctx context.Context, versions int64) {
	if m != nil {
		m.lag.Record(ctx, max(0, versions))
	}
}

func (m *catalogMetrics) waited(ctx context.Context, d time.Duration) {
	if m != nil {
		m.wait.Record(ctx, d.Seconds())
	}
}
