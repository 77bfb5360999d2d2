package pg

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"example.com/videocatalog/internal/pg/internal/sqlcgen"
	"example.com/videocatalog/internal/problem"
)

// InTx runs fn in one transaction. It commits unless fn fails.
//
// A statement without a result (:exec) is not sent immediately: see [Tx.Queue]. It waits for
// the next statement with a result, or for the COMMIT. BEGIN waits for the first statement.
// So "lock, update, append" takes two round trips instead of five, and holds the row lock
// for one. Inside a transaction the number of affected rows is not available: lock the row
// first, then its update cannot miss.
//
// In a recorded trace the transaction is a span, and its statements are under it.
func InTx(ctx context.Context, pool *pgxpool.Pool, name string, fn func(ctx context.Context, tx *Tx) error) (err error) {
	if parent := trace.SpanFromContext(ctx); parent.IsRecording() {
		var span trace.Span
		ctx, span = parent.TracerProvider().Tracer("example.com/videocatalog/internal/pg").Start(ctx, name)
		defer func() {
			if err != nil {
				span.SetStatus(codes.Error, err.Error())
			}
			span.End()
		}()
	}
	conn, err := Acquire(ctx, pool)
	if err != nil {
		return err
	}
	// If a connection is released inside a transaction, the pool closes it, and the server
	// rolls back. So no transaction stays open, whatever fails below.
	defer conn.Release()
	t := &Tx{conn: conn.Conn(), waiting: &pgx.Batch{}}
	t.waiting.Queue("BEGIN")
	SetTenant(ctx, t.waiting) // only tenancy
	if err = fn(ctx, t); err == nil {
		err = t.misused
	}
	if err == nil && t.conn.PgConn().TxStatus() == 'E' { // fn has lost the error of a statement
		err = pgx.ErrTxCommitRollback
	}
	if err == nil {
		t.waiting.Queue("COMMIT")
		err = t.send(ctx).Close()
	}
	if err != nil {
		t.rollback(ctx)
	}
	return err
}

// Tx is a transaction, on which the queries of sqlc run. Only [InTx] makes one. It is not safe for
// concurrent use.
type Tx struct {
	conn    *pgx.Conn
	waiting *pgx.Batch
	queued  bool  // a statement waits that Queue has not seen
	misused error // of Queue
}

// Queue marks a statement without a result (:exec) of this transaction. Such a statement waits,
// so it has no error yet, and Queue returns none. Its error comes from the statement, or the
// COMMIT, that sends it.
//
//	tx.Queue(q.DeleteTimer(ctx, id))
//
// If the statement is not of this transaction, for example because q is over a pool, InTx fails.
func (t *Tx) Queue(err error) {
	if err != nil || !t.queued {
		t.misused = cmp.Or(t.misused, err, errors.New("a queued statement is not of the transaction"))
	}
	t.queued = false
}

// DB is a transaction or a pool, on which the queries of sqlc run.
type DB = sqlcgen.DBTX

// inTx is [InTx] with the queries of this package.
func inTx(ctx context.Context, pool *pgxpool.Pool, name string, fn func(ctx context.Context, tx *Tx, q *sqlcgen.Queries) error) error {
	return InTx(ctx, pool, name, func(ctx context.Context, tx *Tx) error { return fn(ctx, tx, sqlcgen.New(tx)) })
}

// send sends the waiting statements. The results come in order. Close returns the first
// error among the results that were not read.
func (t *Tx) send(ctx context.Context) pgx.BatchResults {
	batch := t.waiting
	t.waiting = &pgx.Batch{}
	return t.conn.SendBatch(ctx, batch)
}

// rollback ends the transaction, so that the pool can reuse the connection. If it fails or
// takes long, the pool closes the connection, which also rolls back.
func (t *Tx) rollback(ctx context.Context) {
	if t.conn.IsClosed() || t.conn.PgConn().TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = t.conn.Exec(ctx, "ROLLBACK") // on an error the pool closes the connection
}

// Exec implements DB. It never returns an error: see [Tx.Queue].
func (t *Tx) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	t.waiting.Queue(sql, args...)
	t.queued = true
	return pgconn.CommandTag{}, nil
}

// SendBatch implements DB. It sends the waiting statements, then the statements of the batch, and reads the results of
// the waiting ones.
func (t *Tx) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	before := t.waiting.Len()
	t.waiting.QueuedQueries = append(t.waiting.QueuedQueries, batch.QueuedQueries...)
	results := t.send(ctx)
	for range before {
		_, _ = results.Exec() // the next result has the same error
	}
	return results
}

// Query implements DB. It sends the waiting statements and then this one.
func (t *Tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	batch := &pgx.Batch{}
	batch.Queue(sql, args...)
	results := t.SendBatch(ctx, batch)
	rows, err := results.Query()
	if err != nil {
		_ = results.Close() // the same error
		return nil, err
	}
	return &endingRows{Rows: rows, end: results.Close}, nil
}

// QueryRow implements DB.
func (t *Tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := t.Query(ctx, sql, args...)
	return row{rows, err}
}

// endingRows ends what their query holds, a batch or a connection, at the first Close. Err also returns the error of that,
// such as a failed commit.
type endingRows struct {
	pgx.Rows
	end func() error
	err error
}

func (r *endingRows) Close() {
	r.Rows.Close()
	if r.end != nil {
		r.err, r.end = r.end(), nil
	}
}

// Err implements pgx.Rows. Call it after the last row: it closes the rows, as only then a commit fails.
func (r *endingRows) Err() error {
	r.Close()
	return cmp.Or(r.Rows.Err(), r.err)
}

// Acquire takes a connection from a pool. It waits at most half of the time until the
// deadline of ctx, and then returns problem.Unavailable. That is not a
// context.DeadlineExceeded: no statement has started, and with many callers each would log
// a line.
//
// Without this limit, too many callers would all wait until little time is left, and start
// work that they cannot finish. pgx closes the connection of an abandoned statement, so the
// pool would mostly open connections, and few calls would succeed. With the limit some calls
// are refused, and the others succeed.
func Acquire(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Conn, error) {
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

// Autocommit returns a pool as a DB: each statement is a transaction, on a connection of its own.
func Autocommit(pool *pgxpool.Pool) DB { return autocommit{pool} }

// autocommit makes a pool a DB.
type autocommit struct{ *pgxpool.Pool }

// Exec implements DB.
func (a autocommit) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	rows, err := a.Query(ctx, sql, args...)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	rows.Close()
	return rows.CommandTag(), rows.Err()
}

// Query implements DB.
func (a autocommit) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	// only tenancy: begin
	if hasTenant(ctx) {
		return a.ofTenant(ctx, sql, args)
	}
	// only tenancy: end
	conn, err := Acquire(ctx, a.Pool)
	if err != nil {
		return nil, err
	}
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		conn.Release()
		return nil, err
	}
	return &endingRows{Rows: rows, end: func() error { conn.Release(); return nil }}, nil
}

// QueryRow implements DB.
func (a autocommit) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := a.Query(ctx, sql, args...)
	return row{rows, err}
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
