package db_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/store/storetest"
	"example.com/videocatalog/lab/engine/rig"
)

// migrateVariable makes the test binary migrate a database and exit: a process
// of its own.
const migrateVariable = "DB_TEST_MIGRATE"

func TestMain(m *testing.M) {
	if target := os.Getenv(migrateVariable); target != "" {
		n, err := db.Migrate(context.Background(), target, slog.New(slog.DiscardHandler))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(n)
		return
	}
	storetest.Main(m)
}

var (
	discard   = slog.New(slog.DiscardHandler)
	databases atomic.Int64
	execute   = rig.Execute
)

// migrations are the files, in order.
func migrations(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("../../../db/migrations/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatal("there are no migrations")
	}
	return files
}

// fresh makes a database without any schema and returns its URL.
func fresh(t testing.TB) string {
	t.Helper()
	admin := open(t, storetest.Direct(t, storetest.URL(t)))
	name := fmt.Sprintf("fresh_%d", databases.Add(1))
	execute(t, admin, "CREATE DATABASE "+name)
	t.Cleanup(func() {
		if _, err := admin.Exec(context.WithoutCancel(t.Context()), "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	address, err := url.Parse(admin.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	address.Path = "/" + name
	return address.String()
}

func open(t testing.TB, target string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Several processes may migrate at the same time, as instances that start
// together do: each migration runs in one of them, and all of them succeed.
func TestMigrateFromSeveralProcesses(t *testing.T) {
	t.Parallel()
	const processes = 4
	target := fresh(t)
	ran := make([]int, processes)
	var wg sync.WaitGroup
	for i := range ran {
		wg.Go(func() {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), migrateVariable+"="+target)
			cmd.Stderr = t.Output()
			out, err := cmd.Output()
			if err != nil {
				t.Errorf("process %d: %v", i, err)
				return
			}
			if ran[i], err = strconv.Atoi(strings.TrimSpace(string(out))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	total := 0
	for _, n := range ran {
		total += n
	}
	if total != len(migrations(t)) {
		t.Errorf("migrations run by each process = %v, want %d together", ran, len(migrations(t)))
	}
	if err := db.Check(t.Context(), open(t, target)); err != nil {
		t.Errorf("Check() = %v", err)
	}
}

// The users of the service may ask for the version too.
func TestCheckNeedsNoMoreThanARole(t *testing.T) {
	t.Parallel()
	target := storetest.Direct(t, storetest.URL(t)) // SET ROLE below is of the session
	for _, role := range []string{"video_catalog_rw", "video_catalog_read_rw", "support_ro"} {
		cfg, err := pgxpool.ParseConfig(target)
		if err != nil {
			t.Fatal(err)
		}
		cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "SET ROLE "+role)
			return err
		}
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		if err := db.Check(t.Context(), pool); err != nil {
			t.Errorf("Check() as %s = %v", role, err)
		}
	}
}
