package telemetry

import (
	"github.com/exaring/otelpgx"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/attribute"
)

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
