package db

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Open makes a pool of at most maxConns connections. The URL decides the rest
// (https://pkg.go.dev/github.com/jackc/pgx/v5/pgxpool#ParseConfig): behind a
// pooler in transaction mode it must say default_query_exec_mode=cache_describe,
// because prepared statements do not survive there. tracer, if not nil, sees
// every statement. Nothing is connected yet.
//
// A database that is gone without a word, as behind a broken network, holds a
// connection for as long as the context of its statement allows. To connect takes
// 5 s at most unless the URL has a connect_timeout: pgx allows two minutes, for
// which the place in the pool is taken, whatever becomes of who waits for it. It
// allows 15 s more to cancel what was given up, by a connection of its own, and to
// wait for the end; here it is as long as to connect, and a second.
//
// Whoever has lost one connection may have lost all, by a restart of the database
// or of a firewall. So those that were not used since are asked before they are, for
// at most a second, and fail nobody's statement.
func Open(ctx context.Context, url string, maxConns int32, tracer pgx.QueryTracer) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("parse database URL: %w", err)
	}
	cfg.MaxConns = maxConns
	cfg.ConnConfig.Tracer = tracer
	if cfg.ConnConfig.ConnectTimeout == 0 {
		cfg.ConnConfig.ConnectTimeout = 5 * time.Second
	}
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		deadline := time.Now().Add(cfg.ConnConfig.ConnectTimeout)
		conn, err := (&net.Dialer{Deadline: deadline}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return conn, conn.SetDeadline(deadline) // until AfterConnect, or for all it takes to cancel a statement
	}
	if cfg.PingTimeout == 0 {
		cfg.PingTimeout = time.Second // then the next connection is tried
	}
	start := time.Now()
	var lost atomic.Int64 // when a connection was last, in nanoseconds since start
	cfg.BeforeClose = func(conn *pgx.Conn) {
		if !conn.IsClosed() {
			return // the pool wants to close it
		}
		lost.Store(int64(time.Since(start)))
		// What is canceled is ended by the server soon, or by nobody.
		time.AfterFunc(time.Second, func() { _ = conn.PgConn().Conn().Close() })
	}
	cfg.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool {
		// pgx's default of a second would ping before each look of an idle publisher,
		// and so double what an idle process asks of the database.
		return p.IdleDuration > 10*time.Second || int64(time.Since(start)-p.IdleDuration) <= lost.Load()
	}
	cfg.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		registerUUID(conn.TypeMap())
		return conn.PgConn().Conn().SetDeadline(time.Time{})
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	return pool, nil
}
