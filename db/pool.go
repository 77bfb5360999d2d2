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

// connectTimeout is how long connecting to an address may take, unless the URL has a
// connect_timeout. The default of pgx is two minutes.
const connectTimeout = 5 * time.Second

// Open makes a pool of at most maxConns connections. The URL has all other settings
// (https://pkg.go.dev/github.com/jackc/pgx/v5/pgxpool#ParseConfig). Behind a pooler in
// transaction mode that does not keep prepared statements, it must have
// default_query_exec_mode=cache_describe: see Check. If tracer is not nil, it sees every
// statement. Open does not connect.
//
// If the database becomes unreachable, for example because a firewall forgot its
// connections, a statement fails at the deadline of its context. Its slot in the pool is
// free within seconds, and all idle connections are pinged: see losses.
func Open(ctx context.Context, url string, maxConns int32, tracer pgx.QueryTracer) (*pgxpool.Pool, error) {
	pools, err := OpenAll(ctx, url, tracer, maxConns)
	if err != nil {
		return nil, err
	}
	return pools[0], nil
}

// OpenAll makes one pool per size, each like Open, for users of one database who must not
// wait for each other. If one pool loses a connection, the connections of all pools are
// checked.
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
		cfg.PingTimeout = pingTimeout // for an idle connection; after that the pool tries the next
	}
	// With pgx's default of one second, an idle publisher would ping before every poll.
	// That would double the load of an idle process on the database.
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

// dialFor returns a dialer whose connections have a deadline, until AfterConnect removes
// it. So the connections that pgx opens to cancel a statement end in time too: AfterConnect
// is not called for those. Otherwise pgx would wait 15 s for them, and keep the slot of the
// canceled statement's connection.
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
