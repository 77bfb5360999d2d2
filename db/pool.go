package db

import (
	"context"
	"fmt"
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
// connection for as long as the context of its statement allows. To connect
// takes 5 s at most unless the URL has a connect_timeout: pgx allows two minutes,
// for which the place in the pool is taken, whatever becomes of who waits for it.
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
	if cfg.PingTimeout == 0 {
		cfg.PingTimeout = 2 * time.Second // of a connection that idled; then the next is tried
	}
	// pgx's default of a second would ping before each look of an idle publisher,
	// and so double what an idle process asks of the database.
	cfg.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool { return p.IdleDuration > 10*time.Second }
	cfg.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		registerUUID(conn.TypeMap())
		return nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	return pool, nil
}
