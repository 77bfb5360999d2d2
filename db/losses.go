package db

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// pingTimeout is how long a connection may take to answer a ping.
	pingTimeout = 2 * time.Second
	// endTimeout is how long a server may take to end a connection whose statement was
	// canceled. After that the server is unreachable or stuck. pgx waits 15 s, and the slot
	// in the pool is taken for that time.
	endTimeout = time.Second
)

// losses reacts when one of the pools to a database loses a connection. Either the
// connection broke, or pgx closed it because the context of its statement ended.
//
// When one connection is lost, all may be lost, for example after a restart of the database
// or a firewall. So all idle connections are pinged immediately. Otherwise each of them
// would fail a statement.
type losses struct {
	pools     atomic.Pointer[[]*pgxpool.Pool]
	pinging   atomic.Bool
	replacing atomic.Bool
	asking    sync.Mutex
	refusals  refusals
}

// closing is called before a connection leaves its pool. If the connection is still open,
// it was not lost.
func (l *losses) closing(conn *pgx.Conn) {
	if conn.IsClosed() {
		go l.end(conn)
		go l.ping()
	}
}

// end closes a lost connection that the server has not ended, as soon as the server has no
// work left for it. Without that check, a server with stuck backends would get more and
// more of them: such backends notice neither a cancellation nor a closed connection. There,
// pgx closes the connection after its own timeout.
func (l *losses) end(conn *pgx.Conn) {
	for ended := conn.PgConn().CleanupDone(); ; {
		select {
		case <-ended:
			return
		case <-time.After(endTimeout):
		}
		if l.waits(conn) {
			_ = conn.PgConn().Conn().Close() // pgx closes it again
			return
		}
	}
}

// waits asks the server whether the backend of a connection has ended or waits for its
// client (https://www.postgresql.org/docs/current/monitoring-stats.html#WAIT-EVENT-TABLE).
// Behind a pooler it returns true: there a process number is invented, and only the pooler
// ends backends. If the server does not answer, the backend may be stuck. The query uses a
// connection outside the pools, because all of theirs may be lost. Only one query runs at a
// time.
func (l *losses) waits(conn *pgx.Conn) bool {
	l.asking.Lock()
	defer l.asking.Unlock()
	select {
	case <-conn.PgConn().CleanupDone(): // it has ended meanwhile
		return true
	default:
	}
	if l.refusals.check() != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	asks, err := pgx.ConnectConfig(ctx, conn.Config())
	if err != nil {
		return false
	}
	defer func() { _ = asks.Close(ctx) }() // the answer was read
	var waits bool
	err = asks.QueryRow(ctx, `SELECT pg_backend_pid() <> $1::bigint OR NOT EXISTS (
		SELECT FROM pg_stat_activity WHERE pid = $2::bigint AND wait_event_type IS DISTINCT FROM 'Client')`,
		pgx.QueryExecModeSimpleProtocol, asks.PgConn().PID(), conn.PgConn().PID()).Scan(&waits)
	return err == nil && waits
}

// ping pings all idle connections. Those that do not answer leave their pool, too.
func (l *losses) ping() {
	pools := l.pools.Load()
	if pools == nil || !l.pinging.CompareAndSwap(false, true) {
		return // another ping is running
	}
	defer l.pinging.Store(false)
	var asked sync.WaitGroup
	for _, pool := range *pools {
		for _, conn := range pool.AcquireAllIdle(context.Background()) {
			asked.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), pingTimeout)
				defer cancel()
				_ = conn.Ping(ctx) // closes a connection that is lost
				conn.Release()
			})
		}
	}
	asked.Wait()
}
