package db_test

import (
	"context"
	"net"
	"testing"
	"time"

	"example.com/videocatalog/db"
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
