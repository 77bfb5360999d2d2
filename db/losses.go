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
	// was canceled; then it is silent, or stuck.
	endTimeout = time.Second
	// pgxEndTimeout is what pgx allows it, for which the place in the pool is taken.
	pgxEndTimeout = 15 * time.Second
)

// losses is what a pool does when it loses a connection: because that broke, or
// pgx gave it up with its statement, as it does when the context of that ends.
type losses struct {
	doubts *doubts
	// early has a token for each connection that was closed before pgx would have
	// let it go: as many as the pool may have. A server whose backends are stuck,
	// and see neither a cancellation nor the end of their connection, would get more
	// and more of them otherwise.
	early chan struct{}
}

// closing is called before a connection leaves the pool. One that is still open
// was not lost.
func (l *losses) closing(conn *pgx.Conn) {
	if conn.IsClosed() {
		go l.end(conn)
		go l.doubts.ask()
	}
}

// end closes a connection that the server does not.
func (l *losses) end(conn *pgx.Conn) {
	select {
	case <-conn.PgConn().CleanupDone():
		return
	case <-time.After(endTimeout):
	}
	select {
	case l.early <- struct{}{}:
		_ = conn.PgConn().Conn().Close() // pgx closes it again
		time.AfterFunc(pgxEndTimeout, func() { <-l.early })
	default:
	}
}

// doubts are about the pools to one database. Whoever has lost one connection may
// have lost all, by a restart of the database or of a firewall. So the idle ones
// are asked, at once, before each fails somebody's statement in its turn.
type doubts struct {
	pools  atomic.Pointer[[]*pgxpool.Pool]
	asking atomic.Bool
}

// ask asks all idle connections whether they live. Those that do not leave their
// pool, too.
func (d *doubts) ask() {
	pools := d.pools.Load()
	if pools == nil || !d.asking.CompareAndSwap(false, true) {
		return // somebody is at it
	}
	defer d.asking.Store(false)
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
