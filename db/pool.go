package db

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// connectTimeout is how long it may take to connect to an address, unless the
// URL has a connect_timeout. pgx has two minutes.
const connectTimeout = 5 * time.Second

// Open makes a pool of at most maxConns connections. The URL decides the rest
// (https://pkg.go.dev/github.com/jackc/pgx/v5/pgxpool#ParseConfig): behind a
// pooler in transaction mode that does not keep prepared statements it must say
// default_query_exec_mode=cache_describe: see Check. tracer, if not nil, sees
// every statement. Nothing is connected yet.
//
// A database that is gone without a word, as behind a network that has forgotten
// the connections, holds one for as long as the context of its statement allows.
// Its place in the pool is free seconds later, and the others are asked whether
// they live, all at once: see losses.
func Open(ctx context.Context, url string, maxConns int32, tracer pgx.QueryTracer) (*pgxpool.Pool, error) {
	pools, err := OpenAll(ctx, url, tracer, maxConns)
	if err != nil {
		return nil, err
	}
	return pools[0], nil
}

// OpenAll makes pools like Open, one of each size, for users of one database who
// must not wait for each other. What one of them loses makes all of them doubt.
func OpenAll(ctx context.Context, url string, tracer pgx.QueryTracer, maxConns ...int32) ([]*pgxpool.Pool, error) {
	lost := &losses{}
	pools := make([]*pgxpool.Pool, len(maxConns))
	for i, most := range maxConns {
		var err error
		if pools[i], err = open(ctx, url, most, tracer, lost); err != nil {
			for _, opened := range pools[:i] {
				opened.Close()
			}
			return nil, err
		}
	}
	lost.pools.Store(&pools)
	return pools, nil
}

func open(ctx context.Context, url string, maxConns int32, tracer pgx.QueryTracer, lost *losses) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("parse database URL: %w", err)
	}
	cfg.MaxConns = maxConns
	cfg.ConnConfig.Tracer = tracer
	if cfg.ConnConfig.ConnectTimeout == 0 {
		cfg.ConnConfig.ConnectTimeout = connectTimeout
	}
	cfg.ConnConfig.DialFunc = dialFor(cfg.ConnConfig.ConnectTimeout)
	if cfg.PingTimeout == 0 {
		cfg.PingTimeout = pingTimeout // of a connection that idled; then the next is tried
	}
	// pgx's default of a second would ping before each look of an idle publisher,
	// and so double what an idle process asks of the database.
	cfg.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool { return p.IdleDuration > 10*time.Second }
	cfg.BeforeConnect = func(context.Context, *pgx.ConnConfig) error { return lost.refusals.check() }
	cfg.ConnConfig.OnPgError = lost.keeps
	cfg.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		lost.refusals.over()
		registerUUID(conn.TypeMap())
		return conn.PgConn().Conn().SetDeadline(time.Time{})
	}
	cfg.BeforeClose = lost.closing
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	return pool, nil
}

// dialFor makes connections that end by themselves after a time, until
// AfterConnect. So do those by which pgx cancels a statement, for which it never
// comes: pgx waits 15 s for them, with the place of the statement's connection.
func dialFor(timeout time.Duration) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		deadline := time.Now().Add(timeout)
		conn, err := (&net.Dialer{Deadline: deadline}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if err := conn.SetDeadline(deadline); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		return conn, nil
	}
}
