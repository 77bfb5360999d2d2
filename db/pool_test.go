package db_test

import (
	"context"
	"net"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

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
	target, err := pgx.ParseConfig(storetest.Direct(t, storetest.URL(t)))
	if err != nil {
		t.Fatal(err)
	}
	network, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer network.Close()
	kind, address := pgconn.NetworkAddress(target.Host, target.Port)
	alive, cut := context.WithCancel(t.Context())
	var silent atomic.Bool // what was connected before
	go func() {
		for {
			from, err := network.Accept()
			if err != nil {
				return
			}
			to, err := new(net.Dialer).DialContext(t.Context(), kind, address)
			if err != nil {
				return // the end of the test; else its statement fails
			}
			context.AfterFunc(alive, func() { _ = from.Close() })
			breaks := &silent
			if silent.Load() {
				breaks = new(atomic.Bool)
			}
			go relay(to, from, breaks)
			go relay(from, to, breaks)
		}
	}()
	through := url.URL{Scheme: "postgres", User: url.UserPassword(target.User, target.Password), Host: network.Addr().String(), Path: target.Database, RawQuery: "sslmode=disable"}
	pool, err := db.Open(t.Context(), through.String(), 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	defer cut() // or Close would wait for the silent connection
	execute(t, pool, "SELECT 1")
	silent.Store(true)
	time.Sleep(11 * time.Second) // such a connection is asked first whether it lives
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := pool.Exec(ctx, "SELECT 1"); err != nil {
		t.Errorf("a statement after the silence: %v", err)
	}
}

// relay copies until one side is gone, and nothing any more once it is silent.
func relay(to, from net.Conn, silent *atomic.Bool) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 4096)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		if silent.Load() {
			continue
		}
		if _, err := to.Write(buffer[:n]); err != nil {
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
