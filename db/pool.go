package db

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	pgxuuid "github.com/vgarvardt/pgx-google-uuid/v5"
)

const (
	// connectTimeout is how long connecting to an address may take, unless the URL has a
	// connect_timeout. The default of pgx is two minutes.
	connectTimeout = 5 * time.Second
	// pingTimeout is how long the server may take to respond to a ping.
	pingTimeout = 2 * time.Second
	// endTimeout is how long a server may take to end a connection whose statement was
	// canceled. pgx waits 15 s, and the slot in the pool is taken for that time.
	endTimeout = time.Second
)

// Open makes a pool of at most maxConns connections. The URL has all other settings
// (https://pkg.go.dev/github.com/jackc/pgx/v5/pgxpool#ParseConfig). Behind a pooler in
// transaction mode that does not keep prepared statements, it must have
// default_query_exec_mode=cache_describe. If tracer is not nil, it sees every statement. Open
// does not connect.
//
// If the database becomes unreachable, for example because a firewall forgot its
// connections, a statement fails at the deadline of its context, and its slot in the pool is
// free within seconds. When one connection is lost, all may be, so the idle ones are pinged at
// once. Otherwise each of them would fail a statement.
func Open(ctx context.Context, url string, maxConns int32, tracer pgx.QueryTracer) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("parse database URL: %w", err)
	}
	cfg.MaxConns = maxConns
	cfg.ConnConfig.Tracer = tracer
	cfg.ConnConfig.ConnectTimeout = cmp.Or(cfg.ConnConfig.ConnectTimeout, connectTimeout)
	cfg.ConnConfig.DialFunc = dialFor(cfg.ConnConfig.ConnectTimeout)
	cfg.ConnConfig.OnPgError = keeps
	cfg.PingTimeout = cmp.Or(cfg.PingTimeout, pingTimeout) // for an idle connection; after that the pool tries the next
	// With pgx's default of one second, an idle publisher would ping before every poll.
	// That would double the load of an idle process on the database.
	cfg.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool { return p.IdleDuration > 10*time.Second }
	cfg.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		pgxuuid.Register(conn.TypeMap()) // otherwise through text, which takes a tenth of the CPU time of a write
		return conn.PgConn().Conn().SetDeadline(time.Time{})
	}
	var opened atomic.Pointer[pgxpool.Pool]
	var pinging atomic.Bool
	cfg.BeforeClose = func(conn *pgx.Conn) {
		if pool := opened.Load(); pool != nil && conn.IsClosed() { // otherwise the pool closes a connection that works
			go end(conn)
			if pinging.CompareAndSwap(false, true) {
				go func() {
					defer pinging.Store(false)
					pingIdle(pool)
				}()
			}
		}
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	opened.Store(pool)
	return pool, nil
}

// dialFor returns a dialer whose connections have a deadline, until AfterConnect removes
// it. AfterConnect is not called for the connections that pgx opens to cancel a statement.
func dialFor(timeout time.Duration) pgconn.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return conn, conn.SetDeadline(time.Now().Add(timeout))
	}
}

// keeps reports whether a connection may be used again after an error of the server. A session
// that is read-only may be one of a former primary.
func keeps(_ *pgconn.PgConn, err *pgconn.PgError) bool {
	const readOnly = "25006"
	severity := cmp.Or(err.SeverityUnlocalized, err.Severity) // pgx itself reads only the translated severity
	return err.Code != readOnly && severity != "FATAL" && severity != "PANIC"
}

// end closes a lost connection that the server has not ended.
func end(conn *pgx.Conn) {
	select {
	case <-conn.PgConn().CleanupDone():
	case <-time.After(endTimeout):
		_ = conn.PgConn().Conn().Close() // pgx closes it again
	}
}

// pingIdle pings all idle connections. Those that are lost leave the pool.
func pingIdle(pool *pgxpool.Pool) {
	ctx, cancel := context.WithTimeout(context.Background(), pingTimeout)
	defer cancel()
	var pings sync.WaitGroup
	for _, conn := range pool.AcquireAllIdle(ctx) {
		pings.Go(func() {
			defer conn.Release()
			_ = conn.Ping(ctx) // closes a connection that is lost
		})
	}
	pings.Wait()
}
