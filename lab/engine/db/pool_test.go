package db_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/lab/engine/rig"
)

// A server that accepts connections and says nothing keeps no place in the pool
// for long, though nobody waits for the connection any more.
func TestPoolGivesUpASilentServer(t *testing.T) {
	t.Parallel()
	silent, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	defer silent.Close()
	pool, err := db.Open(t.Context(), "postgres://nobody@"+silent.Addr().String()+"/nothing?sslmode=disable", 1, nil)
	must(t, err)
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
	pgtest.Eventually(t, 20*time.Second, "the place in the pool is free", func() bool { return pool.Stat().ConstructingConns() == 0 })
}

// A connection that went silent while it idled is found out in time, and the
// next one serves.
func TestPoolReplacesASilentConnection(t *testing.T) {
	t.Parallel()
	network := rig.NewNetwork(t, pgtest.URL(t))
	pool := openThrough(t, network, 2, "")
	execute(t, pool, "SELECT 1")
	network.Forget()
	time.Sleep(11 * time.Second) // the pool pings a connection that idled for 10 s before it is used
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := pool.Exec(ctx, "SELECT 1"); err != nil {
		t.Errorf("a statement after the silence: %v", err)
	}
}

// When one connection is lost, its pool finds the others that are lost at once. It
// finds connections that broke and connections that went silent, and no statement
// fails because of them.
func TestPoolDoubtsTheOthersAfterALoss(t *testing.T) {
	const conns = 12
	try := func(t *testing.T, pool *pgxpool.Pool, within time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		_, err := pool.Exec(ctx, "SELECT 1")
		return err
	}
	t.Run("broken", func(t *testing.T) {
		t.Parallel()
		network := rig.NewNetwork(t, pgtest.URL(t))
		pool := openThrough(t, network, conns, "")
		backends(t, pool, conns)
		network.Cut()
		if err := try(t, pool, time.Second); err == nil {
			t.Fatal("a statement on a broken connection succeeded")
		}
		pgtest.Eventually(t, 10*time.Second, "no broken connection is in the pool", func() bool { return pool.Stat().TotalConns() == 0 })
	})
	t.Run("silent", func(t *testing.T) {
		t.Parallel()
		network := rig.NewNetwork(t, pgtest.URL(t))
		pool := openThrough(t, network, conns, "")
		backends(t, pool, conns)
		network.Forget()
		if err := try(t, pool, 500*time.Millisecond); err == nil {
			t.Fatal("a statement on a silent connection succeeded")
		}
		pgtest.Eventually(t, 10*time.Second, "the others are pinged", func() bool { return pool.Stat().IdleConns() == 0 })
		var callers sync.WaitGroup
		for range 4 {
			callers.Go(func() {
				if err := try(t, pool, 10*time.Second); err != nil {
					t.Errorf("a statement after the loss: %v", err)
				}
			})
		}
		callers.Wait()
	})
}

// Each time a network forgets all connections, the pool serves again within
// seconds after its statements were given up.
func TestPoolOutlivesANetworkThatForgetsAgain(t *testing.T) {
	t.Parallel()
	const conns = 4
	network := rig.NewNetwork(t, pgtest.URL(t))
	pool := openThrough(t, network, conns, "")
	for range 4 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		all := make([]*pgxpool.Conn, conns)
		for i := range all {
			var err error
			if all[i], err = pool.Acquire(ctx); err != nil {
				t.Fatalf("a place for a connection: %v", err)
			}
		}
		cancel()
		network.Forget()
		var callers sync.WaitGroup
		for _, conn := range all {
			callers.Go(func() {
				defer conn.Release()
				ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
				defer cancel()
				if _, err := conn.Exec(ctx, "SELECT 1"); err == nil {
					t.Error("a statement on a silent connection succeeded")
				}
			})
		}
		callers.Wait()
	}
}

// A connection whose statement was given up keeps its place in the pool while the
// server is silent, because new connections cannot cancel the statement either.
// Once new connections work, the place is free within seconds.
func TestPoolGivesUpAConnectionToASilentServer(t *testing.T) {
	t.Parallel()
	network := rig.NewNetwork(t, pgtest.URL(t))
	pool := openThrough(t, network, 1, "")
	execute(t, pool, "SELECT 1")
	network.Mute()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := pool.Exec(ctx, "SELECT 1"); err == nil {
		t.Fatal("a statement on a silent connection succeeded")
	}
	start := time.Now()
	time.Sleep(2 * time.Second)
	network.Forget() // new connections work
	for ; pool.Stat().TotalConns() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > 10*time.Second {
			t.Fatal("after 10s the place in the pool is still taken")
		}
	}
}

// A statement that its caller gives up costs its own connection, and no other.
func TestPoolKeepsWhatIsNotLost(t *testing.T) {
	t.Parallel()
	pool := openThrough(t, rig.NewNetwork(t, pgtest.URL(t)), 3, "")
	before := backends(t, pool, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := pool.Exec(ctx, "SELECT pg_sleep(60)"); err == nil {
		t.Fatal("a statement was not given up")
	}
	for start := time.Now(); pool.Stat().TotalConns() > 2 || pool.Stat().IdleConns() < 2; time.Sleep(time.Millisecond) {
		if time.Since(start) > 10*time.Second {
			t.Fatalf("%d connections, of which %d idle, want 2", pool.Stat().TotalConns(), pool.Stat().IdleConns())
		}
	}
	for pid := range backends(t, pool, 2) {
		if !before[pid] {
			t.Errorf("backend %d is new", pid)
		}
	}
}

// A connection lives on when the time to connect is over.
func TestPoolKeepsConnections(t *testing.T) {
	t.Parallel()
	network := rig.NewNetwork(t, pgtest.URL(t))
	pool := openThrough(t, network, 1, "&connect_timeout=1")
	for start := time.Now(); ; { // on a busy machine it takes longer
		err := pool.Ping(t.Context())
		if err == nil {
			break
		}
		if time.Since(start) > 10*time.Second {
			t.Fatal(err)
		}
	}
	var first, second int
	for _, pid := range []*int{&first, &second} {
		must(t, pool.QueryRow(t.Context(), "SELECT pg_sleep(2), pg_backend_pid()").Scan(nil, pid))
	}
	if first != second {
		t.Errorf("the second statement was on another connection")
	}
}

// backends takes n connections of a pool at a time, and returns the ids of their
// server processes.
func backends(t *testing.T, pool *pgxpool.Pool, n int) map[uint32]bool {
	t.Helper()
	pids, all := map[uint32]bool{}, []*pgxpool.Conn{}
	for range n {
		conn, err := pool.Acquire(t.Context())
		must(t, err)
		pids[conn.Conn().PgConn().PID()] = true
		all = append(all, conn)
	}
	for _, conn := range all {
		conn.Release()
	}
	return pids
}

// openThrough makes a pool whose connections go through a network.
func openThrough(t *testing.T, network *rig.Network, conns int32, settings string) *pgxpool.Pool {
	t.Helper()
	pool, err := db.Open(t.Context(), network.URL+settings, conns, nil)
	must(t, err)
	t.Cleanup(func() {
		network.Cut() // or Close would wait for silent connections
		pool.Close()
	})
	return pool
}

// The connect_timeout of the URL is used.
func TestPoolConnectTimeoutOfTheURL(t *testing.T) {
	t.Parallel()
	pool, err := db.Open(t.Context(), "postgres://nobody@127.0.0.1:1/nothing?connect_timeout=7", 1, nil)
	must(t, err)
	defer pool.Close()
	if got := pool.Config().ConnConfig.ConnectTimeout; got != 7*time.Second {
		t.Errorf("ConnectTimeout = %s, want 7s", got)
	}
}
