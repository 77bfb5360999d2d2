package db_test

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/pg/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var (
	discard   = slog.New(slog.DiscardHandler)
	databases atomic.Int64
	execute   = pgtest.Execute
	must      = pgtest.Must
)

func open(t testing.TB, target string) *pgxpool.Pool { t.Helper(); return pgtest.Open(t, target, 4) }

// Each role of the service has the rights that Check needs.
func TestCheckNeedsNoMoreThanARole(t *testing.T) {
	t.Parallel()
	target := pgtest.Direct(t, pgtest.URL(t)) // SET ROLE below needs a session of its own
	for _, role := range []string{"video_catalog_rw", "video_catalog_read_rw", "support_ro"} {
		cfg, err := pgxpool.ParseConfig(target)
		must(t, err)
		cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "SET ROLE "+role)
			return err
		}
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		must(t, err)
		t.Cleanup(pool.Close)
		if err := db.Check(t.Context(), pgtest.Options(), pool); err != nil {
			t.Errorf("Check() as %s = %v", role, err)
		}
	}
}
