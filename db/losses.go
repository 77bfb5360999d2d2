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
	// pingTimeout is how long a connection may take to say that it lives.
	pingTimeout = 2 * time.Second
	// endTimeout is how long a server may take to end a connection whose statement
	// was canceled; then it is silent, or stuck. pgx allows it 15 s, for which the
	// place in the pool is taken.
	endTimeout = time.Second
)

// losses is what the pools to one database do when one of them loses a connection:
// because that broke, or pgx gave it up with its statement, as it does when the
// context of that ends.
//
// Whoever has lost one connection may have lost all, by a restart of the database
// or of a firewall. So the idle ones are asked, at once, before each fails
// somebody's statement in its turn.
type losses struct {
	pools     atomic.Pointer[[]*pgxpool.Pool]
	pinging   atomic.Bool
	replacing atomic.Bool
	asking    sync.Mutex
	refusals  refusals
}

// closing is called before a connection leaves its pool. One that is still open
// was not lost.
func (l *losses) closing(conn *pgx.Conn) {
	if conn.IsClosed() {
		go l.end(conn)
		go l.ping()
	}
}

// end closes a connection that the server does not, as soon as that has nothing to
// do for it any more. A server whose backends are stuck, and see neither a
// cancellation nor the end of their connection, would get more and more of them
// otherwise; it has the time that pgx allows.
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

// waits asks the server whether the backend of a connection is gone, or waits for
// its client
// (https://www.postgresql.org/docs/current/monitoring-stats.html#WAIT-EVENT-TABLE).
// One that cannot say so may be stuck. The connection that asks is in no pool, for
// all of theirs may be lost, and there is one at a time.
func (l *losses) waits(conn *pgx.Conn) bool {
	l.asking.Lock()
	defer l.asking.Unlock()
	select {
	case <-conn.PgConn().CleanupDone(): // meanwhile
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
	defer func() { _ = asks.Close(ctx) }() // it has served
	var waits bool
	err = asks.QueryRow(ctx,
		"SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event_type IS DISTINCT FROM 'Client')",
		pgx.QueryExecModeSimpleProtocol, conn.PgConn().PID()).Scan(&waits)
	return err == nil && waits
}

// ping asks all idle connections whether they live. Those that do not leave their
// pool, too.
func (l *losses) ping() {
	pools := l.pools.Load()
	if pools == nil || !l.pinging.CompareAndSwap(false, true) {
		return // somebody is at it
	}
	defer l.pinging.Store(false)
	var asked sync.WaitGroup
	for _, pool := range *pools {
		for _, conn := range pool.AcquireAllIdle(context.Background()) {
			asked.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), pingTimeout)
				defer cancel()
				_ = conn.Ping(ctx) // one that does not live is closed by it
				conn.Release()
			})
		}
	}
	asked.Wait()
}
