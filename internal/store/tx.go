package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// InTx runs fn in one transaction. It commits unless fn fails.
//
// A statement without a result (:exec) is not sent immediately: see [Queue]. It waits for
// the next statement with a result, or for the COMMIT. BEGIN waits for the first statement.
// So "lock, update, append" takes two round trips instead of five, and holds the row lock
// for one. Inside a transaction the number of affected rows is not available: lock the row
// first, then its update cannot miss.
//
// In a recorded trace the transaction is a span, and its statements are under it.
func InTx(ctx context.Context, pool *pgxpool.Pool, name string, fn func(ctx context.Context, tx Tx) error) (err error) {
	if parent := trace.SpanFromContext(ctx); parent.IsRecording() {
		var span trace.Span
		ctx, span = parent.TracerProvider().Tracer(scope).Start(ctx, name)
		defer func() { endSpan(span, err) }()
	}
	conn, err := acquire(ctx, pool)
	if err != nil {
		return err
	}
	// If a connection is released inside a transaction, the pool closes it, and the server
	// rolls back. So no transaction stays open, whatever fails below.
	defer conn.Release()
	t := &tx{conn: conn.Conn(), waiting: &pgx.Batch{}}
	t.waiting.Queue("BEGIN")
	err = fn(ctx, t)
	if err == nil {
		t.waiting.Queue("COMMIT")
		err = t.send(ctx).Close()
	}
	if err != nil {
		t.rollback(ctx)
	}
	return err
}

// Queue marks a statement without a result (:exec) in a transaction. Such a statement waits,
// so it has no error yet, and Queue returns none. Its error comes from the statement, or the
// COMMIT, that sends it.
//
//	store.Queue(q.DeleteTimer(ctx, id))
func Queue(error) {}

// Tx is a transaction or a pool, on which the queries of sqlc run. In the packages that sqlc makes
// for options its name is DBTX.
type Tx = sqlcgen.DBTX

// inTx is [InTx] with the queries of this package.
func inTx(ctx context.Context, pool *pgxpool.Pool, name string, fn func(ctx context.Context, q *sqlcgen.Queries) error) error {
	return InTx(ctx, pool, name, func(ctx context.Context, tx Tx) error { return fn(ctx, sqlcgen.New(tx)) })
}

// scope is the name of this package's tracer.
const scope = "example.com/videocatalog/internal/store"

func endSpan(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

// tx is one transaction; it implements sqlcgen.DBTX.
type tx struct {
	conn    *pgx.Conn
	waiting *pgx.Batch
}

// send sends the waiting statements. The results come in order. Close returns the first
// error among the results that were not read.
func (t *tx) send(ctx context.Context) pgx.BatchResults {
	batch := t.waiting
	t.waiting = &pgx.Batch{}
	return t.conn.SendBatch(ctx, batch)
}

// rollback ends the transaction, so that the pool can reuse the connection. If it fails or
// takes long, the pool closes the connection, which also rolls back.
func (t *tx) rollback(ctx context.Context) {
	if t.conn.IsClosed() || t.conn.PgConn().TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = t.conn.Exec(ctx, "ROLLBACK") // on an error the pool closes the connection
}

// Exec implements sqlcgen.DBTX. It never returns an error: see [Queue].
func (t *tx) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	t.waiting.Queue(sql, args...)
	return pgconn.CommandTag{}, nil
}

// Query implements sqlcgen.DBTX. It sends the waiting statements and then this one. It reads the
// results of the waiting statements.
func (t *tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	before := t.waiting.Len()
	t.waiting.Queue(sql, args...)
	results := t.send(ctx)
	for range before {
		if _, err := results.Exec(); err != nil {
			_ = results.Close() // the same error
			return nil, err
		}
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
	rows, err := t.Query(ctx, sql, args...)
	return row{rows, err}
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

// acquire takes a connection from a pool. It waits at most half of the time until the
// deadline of ctx, and then returns problem.Unavailable. That is not a
// context.DeadlineExceeded: no statement has started, and with many callers each would log
// a line.
//
// Without this limit, too many callers would all wait until little time is left, and start
// work that they cannot finish. pgx closes the connection of an abandoned statement, so the
// pool would mostly open connections, and few calls would succeed. With the limit some calls
// are refused, and the others succeed.
func acquire(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Conn, error) {
	half := ctx
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		half, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	conn, err := pool.Acquire(half)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		refusal := problem.Errorf(problem.Unavailable, "there is no connection to the database: call again later")
		if half.Err() == nil { // connecting took too long
			refusal.Err = errors.New(err.Error())
		}
		return nil, refusal
	}
	return conn, err
}

// Over returns a pool as a Tx. Each statement uses a connection of its own.
func Over(pool *pgxpool.Pool) Tx { return singly{pool} }

// singly makes a pool a sqlcgen.DBTX.
type singly struct{ pool *pgxpool.Pool }

// Exec implements sqlcgen.DBTX.
func (s singly) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	conn, err := acquire(ctx, s.pool)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	defer conn.Release()
	return conn.Exec(ctx, sql, args...)
}

// Query implements sqlcgen.DBTX.
func (s singly) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	conn, err := acquire(ctx, s.pool)
	if err != nil {
		return nil, err
	}
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		conn.Release()
		return nil, err
	}
	return &singleRows{Rows: rows, conn: conn}, nil
}

// QueryRow implements sqlcgen.DBTX.
func (s singly) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := s.Query(ctx, sql, args...)
	return row{rows, err}
}

// singleRows releases its connection at the first Close.
type singleRows struct {
	pgx.Rows
	conn *pgxpool.Conn
}

func (r *singleRows) Close() {
	r.Rows.Close()
	if r.conn != nil {
		r.conn.Release()
		r.conn = nil
	}
}

// row is the first row of a query, or the error of the query.
type row struct {
	rows pgx.Rows
	err  error
}

// Scan implements pgx.Row. It also closes the rows.
func (r row) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	_, err := pgx.CollectOneRow(r.rows, func(found pgx.CollectableRow) (struct{}, error) { return struct{}{}, found.Scan(dest...) })
	return err
}
