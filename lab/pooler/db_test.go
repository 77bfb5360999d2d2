package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/lab/engine/rig"
)

func open(t testing.TB, target string) *pgxpool.Pool { t.Helper(); return pgtest.Open(t, target, 4) }

// Migrations that run at once through a pooler in transaction mode are applied
// once. Check works through the pooler, too.
func TestPoolerInTransactionMode(t *testing.T) {
	t.Parallel()
	_, pooled := start(t)
	ran := make(chan int, 3)
	for range cap(ran) {
		go func() {
			n, err := db.Migrate(t.Context(), pooled, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Error(err)
			}
			ran <- n
		}()
	}
	counts := map[int]int{}
	for range cap(ran) {
		counts[<-ran]++
	}
	files, err := filepath.Glob("../../db/migrations/*.sql")
	if err != nil || len(files) == 0 || counts[0] != 2 || counts[len(files)] != 1 {
		t.Errorf("migrations that run at once = %v, %v, want %d by one, and 0 by two", counts, err, len(files))
	}

	must(t, db.Check(t.Context(), nil, open(t, pooled)))
}

// Connections lost on the way to a pooler leave their pool earlier than with pgx alone. No
// statement fails on the server, to which the process numbers of the pooler are unknown.
func TestPoolGivesUpConnectionsLostBehindAPooler(t *testing.T) {
	t.Parallel()
	const conns = 8 // so that one number is above every number of the server
	server, pooled := start(t)
	network := rig.NewNetworkTo(t, pooled)
	pool := pgtest.Open(t, network.URL+"&default_query_exec_mode=cache_describe", conns)
	taken := make([]*pgxpool.Conn, conns)
	for i := range taken {
		var err error
		taken[i], err = pool.Acquire(t.Context())
		must(t, err)
	}
	for _, conn := range taken {
		conn.Release()
	}
	network.Forget()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := pool.Exec(ctx, "SELECT 1"); err == nil {
		t.Fatal("a statement on a silent connection succeeded")
	}
	for start := time.Now(); pool.Stat().TotalConns() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > 12*time.Second { // pgx: 15
			t.Fatalf("after 12s %d places in the pool are still taken", pool.Stat().TotalConns())
		}
	}
	log, err := os.ReadFile(server.Log())
	must(t, err)
	if strings.Contains(string(log), "ERROR:") {
		t.Errorf("log of the server:\n%s", log)
	}
}
