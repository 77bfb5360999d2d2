package store

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

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

// Over returns a pool as a Tx, for the queries of an option. Each statement uses a connection of
// its own.
func Over(pool *pgxpool.Pool) Tx { return singly{pool} }

// queriesOver returns queries over a pool. Each statement uses a connection of its own.
func queriesOver(pool *pgxpool.Pool) *sqlcgen.Queries { return sqlcgen.New(singly{pool}) }

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
