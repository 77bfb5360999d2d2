package db_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

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
	network := storetest.NewNetwork(t, storetest.URL(t))
	pool := openThrough(t, network, 2, "")
	execute(t, pool, "SELECT 1")
	network.Forget()
	time.Sleep(11 * time.Second) // such a connection is asked first whether it lives
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := pool.Exec(ctx, "SELECT 1"); err != nil {
		t.Errorf("a statement after the silence: %v", err)
	}
}

// When one connection is lost, the pool finds the others that are lost at once, also
// in another pool to the same database. It finds connections that broke and
// connections that went silent, and no statement fails because of them.
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
		network := storetest.NewNetwork(t, storetest.URL(t))
		pools := openAllThrough(t, network, "", conns, conns)
		for _, pool := range pools {
			backends(t, pool, conns)
		}
		network.Cut()
		if err := try(t, pools[0], time.Second); err == nil {
			t.Fatal("a statement on a broken connection succeeded")
		}
		for i, pool := range pools {
			for deadline := time.Now().Add(10 * time.Second); pool.Stat().TotalConns() > 0; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%d broken connections are in pool %d", pool.Stat().TotalConns(), i)
				}
			}
		}
	})
	t.Run("silent", func(t *testing.T) {
		t.Parallel()
		network := storetest.NewNetwork(t, storetest.URL(t))
		pools := openAllThrough(t, network, "", conns, conns)
		for _, pool := range pools {
			backends(t, pool, conns)
		}
		network.Forget()
		if err := try(t, pools[0], 500*time.Millisecond); err == nil {
			t.Fatal("a statement on a silent connection succeeded")
		}
		var callers sync.WaitGroup
		for i, pool := range pools {
			for deadline := time.Now().Add(10 * time.Second); pool.Stat().IdleConns() > 0; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("the others of pool %d are not asked", i)
				}
			}
			for range 4 {
				callers.Go(func() {
					if err := try(t, pool, 10*time.Second); err != nil {
						t.Errorf("a statement of pool %d after the loss: %v", i, err)
					}
				})
			}
		}
		callers.Wait()
	})
}

// A network that forgets all connections again and again lets the pool serve again
// each time, seconds after its statements were given up.
func TestPoolOutlivesANetworkThatForgetsAgain(t *testing.T) {
	t.Parallel()
	const conns = 4
	network := storetest.NewNetwork(t, storetest.URL(t))
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

// A server whose backends are stuck, and see neither that a statement is canceled
// nor that its connection is closed, has hardly more of them than the pool may
// have, whether it says so or nothing at all.
func TestPoolSparesAStuckServer(t *testing.T) {
	const conns = 4
	// demand gives up a statement every 50 ms, for 7 s.
	demand := func(t *testing.T, pool *pgxpool.Pool, statement string) {
		t.Helper()
		var callers sync.WaitGroup
		for start := time.Now(); time.Since(start) < 7*time.Second; time.Sleep(50 * time.Millisecond) {
			callers.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
				defer cancel()
				_, _ = pool.Exec(ctx, statement) // nobody answers
			})
		}
		callers.Wait()
	}
	t.Run("backends", func(t *testing.T) {
		t.Parallel()
		target := storetest.URL(t)
		direct, err := pgxpool.New(t.Context(), storetest.Direct(t, target))
		if err != nil {
			t.Fatal(err)
		}
		defer direct.Close()
		if _, err := direct.Exec(t.Context(), `CREATE FUNCTION stick() RETURNS void LANGUAGE plpgsql AS $$
			BEGIN
				FOR i IN 1..400 LOOP
					BEGIN PERFORM pg_sleep(0.05); EXCEPTION WHEN query_canceled THEN NULL; END;
				END LOOP;
			END $$`); err != nil {
			t.Fatal(err)
		}
		pool := openThrough(t, storetest.NewNetwork(t, target), conns, "")
		demand(t, pool, "SELECT stick()")
		var n int
		if err := direct.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query = 'SELECT stick()'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n != conns {
			t.Errorf("stuck backends after 7s = %d, want the %d that the pool may have", n, conns)
		}
	})
	t.Run("silent", func(t *testing.T) {
		t.Parallel()
		network := storetest.NewNetwork(t, storetest.URL(t))
		network.Stick()
		demand(t, openThrough(t, network, conns, ""), "SELECT 1")
		if n := network.Stuck(); n <= conns || n > conns+2 {
			t.Errorf("connections in 7s = %d, want the pool's %d, and one or two that ask the server", n, conns)
		}
	})
}

// A connection whose statement was given up has its place in the pool until the
// server speaks again, also when its statement could not be canceled, because the
// server said nothing to new connections either; and then not for long.
func TestPoolGivesUpAConnectionToASilentServer(t *testing.T) {
	t.Parallel()
	network := storetest.NewNetwork(t, storetest.URL(t))
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
	pool := openThrough(t, storetest.NewNetwork(t, storetest.URL(t)), 3, "")
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
	network := storetest.NewNetwork(t, storetest.URL(t))
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
		if err := pool.QueryRow(t.Context(), "SELECT pg_sleep(2), pg_backend_pid()").Scan(nil, pid); err != nil {
			t.Fatal(err)
		}
	}
	if first != second {
		t.Errorf("the second statement was on another connection")
	}
}

// backends takes so many connections of a pool at a time, and returns the processes
// behind them.
func backends(t *testing.T, pool *pgxpool.Pool, n int) map[uint32]bool {
	t.Helper()
	pids, all := map[uint32]bool{}, []*pgxpool.Conn{}
	for range n {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		pids[conn.Conn().PgConn().PID()] = true
		all = append(all, conn)
	}
	for _, conn := range all {
		conn.Release()
	}
	return pids
}

// openThrough makes a pool whose connections go through a network.
func openThrough(t *testing.T, network *storetest.Network, conns int32, settings string) *pgxpool.Pool {
	t.Helper()
	return openAllThrough(t, network, settings, conns)[0]
}

func openAllThrough(t *testing.T, network *storetest.Network, settings string, conns ...int32) []*pgxpool.Pool {
	t.Helper()
	pools, err := db.OpenAll(t.Context(), network.URL+settings, nil, conns...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		network.Cut() // or Close would wait for silent connections
		for _, pool := range pools {
			pool.Close()
		}
	})
	return pools
}

// The connect_timeout of the URL is used.
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
