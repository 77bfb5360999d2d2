package db_test

import (
	"bytes"
	"context"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/store/storetest"
)

// A server that accepts connections and says nothing keeps no place in the pool
// for long, though nobody waits for the connection any more.
func TestPoolGivesUpASilentServer(t *testing.T) {
	t.Parallel()
	silent, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	pool, err := db.Open(t.Context(), "postgres://nobody@"+silent.Addr().String()+"/nothing?sslmode=disable", 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if conn, err := pool.Acquire(ctx); err == nil {
		conn.Release()
		t.Fatal("Acquire() = nil, want an error: nobody answers")
	}
	if got := pool.Stat().ConstructingConns(); got != 1 {
		t.Fatalf("connections that are being made = %d, want the one that was given up", got)
	}
	for deadline := time.Now().Add(20 * time.Second); pool.Stat().ConstructingConns() > 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("after 20s the place in the pool is still taken")
		}
	}
}

// A connection that went silent while it idled is found out in time, and the
// next one serves.
func TestPoolReplacesASilentConnection(t *testing.T) {
	t.Parallel()
	network := connectThrough(t)
	pool := network.open(t, 2)
	execute(t, pool, "SELECT 1")
	network.forget()
	time.Sleep(11 * time.Second) // such a connection is asked first whether it lives
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := pool.Exec(ctx, "SELECT 1"); err != nil {
		t.Errorf("a statement after the silence: %v", err)
	}
}

// When one connection is lost, the others that are lost too are found out at once,
// whether they broke or went silent, and fail nobody's statement.
func TestPoolDoubtsTheOthersAfterALoss(t *testing.T) {
	const conns = 12
	fill := func(t *testing.T, pool *pgxpool.Pool) {
		var all []*pgxpool.Conn
		for range conns {
			conn, err := pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, conn)
		}
		for _, conn := range all {
			conn.Release()
		}
	}
	try := func(t *testing.T, pool *pgxpool.Pool, within time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		_, err := pool.Exec(ctx, "SELECT 1")
		return err
	}
	t.Run("broken", func(t *testing.T) {
		t.Parallel()
		network := connectThrough(t)
		pool := network.open(t, conns)
		fill(t, pool)
		network.cut()
		if err := try(t, pool, time.Second); err == nil {
			t.Fatal("a statement on a broken connection succeeded")
		}
		for deadline := time.Now().Add(10 * time.Second); pool.Stat().TotalConns() > 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d broken connections are in the pool", pool.Stat().TotalConns())
			}
		}
	})
	t.Run("silent", func(t *testing.T) {
		t.Parallel()
		network := connectThrough(t)
		pool := network.open(t, conns)
		fill(t, pool)
		network.forget()
		if err := try(t, pool, 500*time.Millisecond); err == nil {
			t.Fatal("a statement on a silent connection succeeded")
		}
		time.Sleep(100 * time.Millisecond) // until the others are being asked
		var callers sync.WaitGroup
		for range 4 {
			callers.Go(func() {
				if err := try(t, pool, 5*time.Second); err != nil {
					t.Errorf("a statement after the loss: %v", err)
				}
			})
		}
		callers.Wait()
	})
}

// A server whose backends are stuck, and see neither that a statement is canceled
// nor that its connection is closed, has not many more of them than the pool may
// have.
func TestPoolSparesAStuckServer(t *testing.T) {
	t.Parallel()
	network := connectThrough(t)
	network.stuck = true
	const conns = 2
	pool := network.open(t, conns)
	var callers sync.WaitGroup
	for start := time.Now(); time.Since(start) < 7*time.Second; time.Sleep(50 * time.Millisecond) {
		callers.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			_, _ = pool.Exec(ctx, "SELECT 1") // nobody answers
		})
	}
	callers.Wait()
	if n := network.ready.Load(); n <= conns || n > 2*conns {
		t.Errorf("connections in 7s = %d, want more than the pool of %d has, and at most twice as many", n, conns)
	}
}

// A connection whose statement was given up keeps its place in the pool for
// seconds, also when its statement cannot be canceled, because the server says
// nothing to new connections either.
func TestPoolGivesUpAConnectionToASilentServer(t *testing.T) {
	t.Parallel()
	network := connectThrough(t)
	pool := network.open(t, 1)
	execute(t, pool, "SELECT 1")
	network.forget()
	network.silent.Store(true) // what is connected from now on is silent, too
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := pool.Exec(ctx, "SELECT 1"); err == nil {
		t.Fatal("a statement on a silent connection succeeded")
	}
	for start := time.Now(); pool.Stat().TotalConns() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > 10*time.Second {
			t.Fatal("after 10s the place in the pool is still taken")
		}
	}
}

// A connection lives on when the time to connect is over.
func TestPoolKeepsConnections(t *testing.T) {
	t.Parallel()
	network := connectThrough(t)
	network.settings = "&connect_timeout=1"
	pool := network.open(t, 1)
	var first, second int
	for _, pid := range []*int{&first, &second} {
		if err := pool.QueryRow(t.Context(), "SELECT pg_sleep(2), pg_backend_pid()").Scan(nil, pid); err != nil {
			t.Fatal(err)
		}
	}
	if first != second {
		t.Errorf("the second statement was on another connection")
	}
}

// network is a way to PostgreSQL that a test can break.
type network struct {
	net.Listener
	dial     func() (net.Conn, error)
	settings string // in the URL
	stuck    bool   // the server says nothing any more once it is ready
	ready    atomic.Int32

	mu     sync.Mutex
	links  []net.Conn   // guarded by mu
	silent *atomic.Bool // guarded by mu: of the connections since forget was called
}

func connectThrough(t *testing.T) *network {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &network{Listener: listener, silent: new(atomic.Bool)}
	t.Cleanup(func() { n.Close() })
	return n
}

// open makes a pool whose connections go through the network.
func (n *network) open(t *testing.T, conns int32) *pgxpool.Pool {
	t.Helper()
	target, err := pgx.ParseConfig(storetest.Direct(t, storetest.URL(t)))
	if err != nil {
		t.Fatal(err)
	}
	kind, address := pgconn.NetworkAddress(target.Host, target.Port)
	n.dial = func() (net.Conn, error) { return new(net.Dialer).DialContext(t.Context(), kind, address) }
	go n.accept()
	through := url.URL{Scheme: "postgres", User: url.UserPassword(target.User, target.Password), Host: n.Addr().String(), Path: target.Database, RawQuery: "sslmode=disable" + n.settings}
	pool, err := db.Open(t.Context(), through.String(), conns, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.cut() // or Close would wait for silent connections
		pool.Close()
	})
	return pool
}

func (n *network) accept() {
	for {
		from, err := n.Accept()
		if err != nil {
			return
		}
		to, err := n.dial()
		if err != nil {
			return // the end of the test; else its statement fails
		}
		n.mu.Lock()
		n.links = append(n.links, from, to)
		silent := n.silent
		if n.stuck {
			silent = new(atomic.Bool)
		}
		go n.relay(to, from, silent)
		go n.relay(from, to, silent)
		n.mu.Unlock()
	}
}

// forget lets all connections there are go silent.
func (n *network) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.silent.Store(true)
	n.silent = new(atomic.Bool)
}

// cut breaks all connections there are.
func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, conn := range n.links {
		_ = conn.Close() // that is the break
	}
}

// readyForQuery is the message by which PostgreSQL says that it waits for a
// statement.
var readyForQuery = []byte("Z\x00\x00\x00\x05I")

// relay copies until one side is gone, and nothing any more once it is silent.
func (n *network) relay(to, from net.Conn, silent *atomic.Bool) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 4096)
	for {
		size, err := from.Read(buffer)
		if err != nil {
			return
		}
		if silent.Load() {
			continue
		}
		if n.stuck && bytes.Contains(buffer[:size], readyForQuery) {
			n.ready.Add(1)
			silent.Store(true)
		}
		if _, err := to.Write(buffer[:size]); err != nil {
			return
		}
	}
}

// What the URL says of connecting counts.
func TestPoolConnectTimeoutOfTheURL(t *testing.T) {
	t.Parallel()
	pool, err := db.Open(t.Context(), "postgres://nobody@127.0.0.1:1/nothing?connect_timeout=7", 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if got := pool.Config().ConnConfig.ConnectTimeout; got != 7*time.Second {
		t.Errorf("ConnectTimeout = %s, want 7s", got)
	}
}
