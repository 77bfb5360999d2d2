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

// losses is what the pools to a database do when one loses a connection: because
// that broke, or pgx gave it up with its statement, as it does when the context of
// that ends.
//
// Whoever has lost one may have lost all, by a restart of the database or of a
// firewall. So the idle ones are asked, at once, before each fails somebody's
// statement in its turn.
type losses struct {
	pools  atomic.Pointer[[]*pgxpool.Pool]
	asking atomic.Bool
	// early has a token for each connection that was closed before pgx would have
	// let it go: as many as the pools may have. A server whose backends are stuck,
	// and see neither a cancellation nor the end of their connection, would get more
	// and more of them otherwise.
	early chan struct{}
}

func newLosses(maxConns []int32) *losses {
	var most int32
	for _, n := range maxConns {
		most += n
	}
	return &losses{early: make(chan struct{}, max(0, most))}
}

// closing is called before a connection leaves its pool. One that is still open
// was not lost.
func (l *losses) closing(conn *pgx.Conn) {
	if conn.IsClosed() {
		go l.end(conn)
		go l.ask()
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

// ask asks all idle connections whether they live. Those that do not leave their
// pool, too.
func (l *losses) ask() {
	pools := l.pools.Load()
	if pools == nil || !l.asking.CompareAndSwap(false, true) {
		return // somebody is at it
	}
	defer l.asking.Store(false)
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
