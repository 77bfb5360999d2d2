package db_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
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

func open(t testing.TB, target string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
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
