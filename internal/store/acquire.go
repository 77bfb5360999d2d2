package store

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// acquire takes a connection of a pool, and waits for it no longer than half of
// the time there is; domain.Unavailable after that. That is no
// context.DeadlineExceeded, because nothing has begun that takes too long, and
// waiting in vain is no cause that is worth a line in the log for each of many.
//
// With more callers than the database can serve, all of them would wait until
// little is left, and begin what they cannot finish: pgx closes a connection
// whose statement was given up, so the pool would be busy with connecting, and
// hardly anybody be answered. This way some are refused, and all others done.
func acquire(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Conn, error) {
	half := ctx
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		half, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	conn, err := pool.Acquire(half)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		refusal := domain.Errorf(domain.Unavailable, "there is no connection to the database: call again later")
		if half.Err() == nil { // it took too long to connect
			refusal.Err = errors.New(err.Error())
		}
		return nil, refusal
	}
	return conn, err
}

// queriesOver makes queries whose statements each have a connection of the pool
// for themselves.
func queriesOver(pool *pgxpool.Pool) *sqlcgen.Queries { return sqlcgen.New(singly{pool}) }

// singly is a pool as sqlc's code sees it.
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
	conn, err := acquire(ctx, s.pool)
	if err != nil {
		return &singleRow{err: err}
	}
	return &singleRow{row: conn.QueryRow(ctx, sql, args...), conn: conn}
}

// singleRows gives the connection back when it is closed, the first time.
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

type singleRow struct {
	row  pgx.Row
	conn *pgxpool.Conn
	err  error
}

func (r *singleRow) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.conn.Release()
	return r.row.Scan(dest...)
}
