package telemetry

import (
	"context"
	"strings"

	"github.com/exaring/otelpgx"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/attribute"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
)

// QueryTracer returns a tracer for pgx, or nil if tracing and metrics are off.
// It creates a span for each statement in a recorded trace, and metrics for all
// statements. A span has the text of the statement, without its arguments.
func (t *Telemetry) QueryTracer() pgx.QueryTracer {
	if t.Tracing == nil && t.Metrics == nil {
		return nil
	}
	options := []otelpgx.Option{
		otelpgx.WithTracerProvider(tracenoop.NewTracerProvider()), otelpgx.WithMeterProvider(metricnoop.NewMeterProvider()),
		otelpgx.WithSpanNameFunc(queryName), otelpgx.WithDisableConnectionDetailsInAttributes(),
	}
	if t.Tracing != nil {
		options = append(options, otelpgx.WithTracerProvider(t.Tracing))
	}
	if t.Metrics != nil {
		options = append(options, otelpgx.WithMeterProvider(t.Metrics))
	}
	tracer := otelpgx.NewTracer(options...)
	if t.Metrics == nil {
		return recorded{tracer}
	}
	return tracer
}

// recorded skips statements outside a recorded trace, which saves a few percent
// per transaction. The library would otherwise read the clock and wrap the
// context of every statement, for metrics that nobody reads.
type recorded struct{ *otelpgx.Tracer }

func (t recorded) TraceQueryStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if !isRecording(ctx) {
		return ctx
	}
	return t.Tracer.TraceQueryStart(ctx, conn, data)
}

func (t recorded) TraceQueryEnd(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryEndData) {
	if isRecording(ctx) {
		t.Tracer.TraceQueryEnd(ctx, conn, data)
	}
}

func (t recorded) TraceBatchStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	if !isRecording(ctx) {
		return ctx
	}
	return t.Tracer.TraceBatchStart(ctx, conn, data)
}

func (t recorded) TraceBatchQuery(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchQueryData) {
	if isRecording(ctx) {
		t.Tracer.TraceBatchQuery(ctx, conn, data)
	}
}

func (t recorded) TraceBatchEnd(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchEndData) {
	if isRecording(ctx) {
		t.Tracer.TraceBatchEnd(ctx, conn, data)
	}
}

func (t recorded) TraceAcquireStart(ctx context.Context, pool *pgxpool.Pool, data pgxpool.TraceAcquireStartData) context.Context {
	if !isRecording(ctx) {
		return ctx
	}
	return t.Tracer.TraceAcquireStart(ctx, pool, data)
}

func (t recorded) TraceAcquireEnd(ctx context.Context, pool *pgxpool.Pool, data pgxpool.TraceAcquireEndData) {
	if isRecording(ctx) {
		t.Tracer.TraceAcquireEnd(ctx, pool, data)
	}
}

func (t recorded) TracePrepareStart(ctx context.Context, conn *pgx.Conn, data pgx.TracePrepareStartData) context.Context {
	if !isRecording(ctx) {
		return ctx
	}
	return t.Tracer.TracePrepareStart(ctx, conn, data)
}

func (t recorded) TracePrepareEnd(ctx context.Context, conn *pgx.Conn, data pgx.TracePrepareEndData) {
	if isRecording(ctx) {
		t.Tracer.TracePrepareEnd(ctx, conn, data)
	}
}

func isRecording(ctx context.Context) bool { return trace.SpanFromContext(ctx).IsRecording() }

// queryName returns the name of a query in db/queries, which sqlc keeps in its
// text. For other statements it returns the first word.
func queryName(sql string) string {
	if named, ok := strings.CutPrefix(sql, "-- name: "); ok {
		name, _, _ := strings.Cut(named, " ")
		return name
	}
	word, _, _ := strings.Cut(strings.TrimSpace(sql), " ")
	return strings.ToUpper(word)
}

// ObservePool adds metrics of a connection pool, labeled with name.
func (t *Telemetry) ObservePool(pool *pgxpool.Pool, name string) error {
	if t.Metrics == nil {
		return nil
	}
	return otelpgx.RecordStats(pool, otelpgx.WithStatsMeterProvider(t.Metrics),
		otelpgx.WithStatsAttributes(attribute.String("db.client.connection.pool.name", name)))
}
