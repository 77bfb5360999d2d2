package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// inTx runs fn in one transaction and commits it, unless fn fails.
//
// A statement that returns nothing (:exec) is not sent at once; it waits for
// the next one that does, or for the COMMIT, and BEGIN waits for the first. So
// "lock, update, append" is two round trips rather than five, and the row lock
// is held for one. The errors of a waiting statement come with whatever sends
// it. A number of affected rows is not to be had inside a transaction: lock the
// row first, then an update of it cannot miss.
//
// In a trace that is recorded it is a span, which the statements are under.
func inTx(ctx context.Context, pool *pgxpool.Pool, name string, fn func(ctx context.Context, q *sqlcgen.Queries) error) (err error) {
	if parent := trace.SpanFromContext(ctx); parent.IsRecording() {
		var span trace.Span
		ctx, span = parent.TracerProvider().Tracer(scope).Start(ctx, name)
		defer func() { endSpan(span, err) }()
	}
	conn, err := acquire(ctx, pool)
	if err != nil {
		return err
	}
	// A connection released inside a transaction is closed by the pool, which
	// rolls back; so whatever goes wrong below, nothing stays open.
	defer conn.Release()
	t := &tx{conn: conn.Conn(), waiting: &pgx.Batch{}}
	t.waiting.Queue("BEGIN")
	err = fn(ctx, sqlcgen.New(t))
	if err == nil {
		t.waiting.Queue("COMMIT")
		err = t.send(ctx).Close()
	}
	if err != nil {
		t.rollback(ctx)
	}
	return err
}

// scope is whose spans and metrics ours are.
const scope = "example.com/videocatalog/internal/store"

func endSpan(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

// tx is a transaction as sqlc's code sees it.
type tx struct {
	conn    *pgx.Conn
	waiting *pgx.Batch
}

// send sends what waits. The results come in order; Close fails with the first
// error among those that nobody read.
func (t *tx) send(ctx context.Context) pgx.BatchResults {
	batch := t.waiting
	t.waiting = &pgx.Batch{}
	return t.conn.SendBatch(ctx, batch)
}

// rollback keeps the connection for the next user. Where that fails, or takes
// long, the pool closes the connection, which has the same effect.
func (t *tx) rollback(ctx context.Context) {
	if t.conn.IsClosed() || t.conn.PgConn().TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = t.conn.Exec(ctx, "ROLLBACK") // see above
}

// Exec implements sqlcgen.DBTX.
func (t *tx) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	t.waiting.Queue(sql, args...)
	return pgconn.CommandTag{}, nil
}

// Query implements sqlcgen.DBTX.
func (t *tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	results, err := t.flush(ctx, sql, args)
	if err != nil {
		return nil, err
	}
	rows, err := results.Query()
	if err != nil {
		_ = results.Close() // the same error
		return nil, err
	}
	return &txRows{Rows: rows, results: results}, nil
}

// QueryRow implements sqlcgen.DBTX.
func (t *tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	results, err := t.flush(ctx, sql, args)
	return &txRow{results: results, err: err}
}

// flush sends what waits and then a statement that returns rows, and reads up to
// the result of that one.
func (t *tx) flush(ctx context.Context, sql string, args []any) (pgx.BatchResults, error) {
	before := t.waiting.Len()
	t.waiting.Queue(sql, args...)
	results := t.send(ctx)
	for range before {
		if _, err := results.Exec(); err != nil {
			_ = results.Close() // the same error
			return nil, err
		}
	}
	return results, nil
}

type txRow struct {
	results pgx.BatchResults
	err     error
}

func (r *txRow) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	err := r.results.QueryRow().Scan(dest...)
	if closeErr := r.results.Close(); err == nil {
		err = closeErr
	}
	return err
}

type txRows struct {
	pgx.Rows
	results pgx.BatchResults
	err     error
}

func (r *txRows) Close() {
	r.Rows.Close()
	if err := r.results.Close(); err != nil && r.err == nil {
		r.err = fmt.Errorf("close batch: %w", err)
	}
}

func (r *txRows) Err() error {
	if err := r.Rows.Err(); err != nil {
		return err
	}
	return r.err
}
