package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/servicekit/localpg"
	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/tenant"
)

// tenantRows and tenantTime are the size of the table of tenants, and how long it is read.
var tenantRows, tenantTime = 20_000, 5 * time.Second

// The table has the policies that cmd/entity --tenant gives. The query does not name the tenant: only row security does.
const (
	tenants = `
		CREATE USER calls IN ROLE video_catalog_calls;
		CREATE TABLE video_catalog.letters_1 (tenant_id text NOT NULL CHECK (tenant_id <> ''), id uuid PRIMARY KEY DEFAULT gen_random_uuid());
		ALTER TABLE video_catalog.letters_1 ENABLE ROW LEVEL SECURITY; ALTER TABLE video_catalog.letters_1 FORCE ROW LEVEL SECURITY;
		CREATE POLICY calls ON video_catalog.letters_1 TO video_catalog_calls USING (tenant_id = current_setting('app.tenant', true));
		CREATE POLICY loops ON video_catalog.letters_1 TO video_catalog_rw USING (true);
		CREATE POLICY owner ON video_catalog.letters_1 TO CURRENT_USER USING (true);
		GRANT SELECT, INSERT ON video_catalog.letters_1 TO video_catalog_calls;
		INSERT INTO video_catalog.letters_1 (tenant_id) SELECT CASE g %% 2 WHEN 0 THEN 'acme' ELSE 'other' END FROM generate_series(1, %d) g;
		ANALYZE video_catalog.letters_1`
	tenantPage = "SELECT tenant_id FROM video_catalog.letters_1 WHERE id > $1 ORDER BY id LIMIT 20"
)

// reading reads a page as a tenant, and returns the tenants of its rows.
type reading func(ctx context.Context, pool *pgxpool.Pool, of string) ([]string, error)

func collect(ctx context.Context, on pg.DB) ([]string, error) {
	rows, err := on.Query(ctx, tenantPage, uuid.New())
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

func readSingle(ctx context.Context, pool *pgxpool.Pool, of string) ([]string, error) {
	return collect(tenant.With(ctx, of), pg.Autocommit(pool))
}

func readInTx(ctx context.Context, pool *pgxpool.Pool, of string) (found []string, err error) {
	err = pg.InTx(tenant.With(ctx, of), pool, "read", func(ctx context.Context, tx *pg.Tx) error {
		if rand.IntN(4) == 0 { // a write before it: the call changes a row, and reads
			tx.Queue(errOf(tx.Exec(ctx, "INSERT INTO video_catalog.letters_1 (tenant_id) VALUES ($1)", of)))
		}
		found, err = collect(ctx, tx)
		return err
	})
	return found, err
}

func errOf[T any](_ T, err error) error { return err }

// readSession is the widespread mistake: the tenant is a setting of the connection.
func readSession(ctx context.Context, pool *pgxpool.Pool, of string) ([]string, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "SELECT set_config('app.tenant', $1, false)", of); err != nil {
		return nil, err
	}
	return collect(ctx, conn)
}

// 32 callers of two tenants read through the pooler, while server connections are killed, calls are canceled and deadlines
// pass. No call sees a row of the other tenant. The same test finds such rows if the tenant is a setting of the connection.
func TestNoForeignRowsThroughAPooler(t *testing.T) {
	t.Parallel()
	server, pooled := start(t)
	direct := server.DSN("postgres")
	_, err := db.Migrate(t.Context(), direct, slog.New(slog.DiscardHandler), os.DirFS("../../options/tenancy"))
	must(t, err)
	admin := open(t, direct)
	_, err = admin.Exec(t.Context(), fmt.Sprintf(tenants, tenantRows))
	must(t, err)
	calls := pgtest.Open(t, pooled+"&user=calls", 16)
	if rows, err := collect(t.Context(), pg.Autocommit(calls)); err != nil || len(rows) > 0 {
		t.Errorf("without a tenant: %d rows, %v, want none", len(rows), err)
	}
	var rows, failed int64
	for n := 1; rows < 1000 || failed < 10; n++ { // a storm may read nothing: storm says why
		read, foreign, errs := storm(t, server, admin, calls, tenantTime, readSingle, readInTx)
		if rows, failed = rows+read, failed+errs; foreign != 0 || n > 20 {
			t.Fatalf("storm %d: %d of %d rows are of the other tenant, and %d calls failed; want 0 of many, and failures", n, foreign, read, errs)
		}
	}
	for range 20 {
		if _, foreign, _ := storm(t, server, admin, calls, 2*time.Second, readSession); foreign > 0 {
			return
		}
	}
	t.Error("with a setting of the connection, no row is of the other tenant: this test would not see one")
}

// storm has 32 callers read for some time, in some ways. It starts the pooler if the storm before has ended it: PgBouncer 1.18
// may crash when queries are canceled under load (https://github.com/pgbouncer/pgbouncer/issues/822).
func storm(t *testing.T, server *localpg.Server, admin, calls *pgxpool.Pool, lasts time.Duration, ways ...reading) (rows, foreign, failed int64) {
	t.Helper()
	pooler, err := pgtest.StartPooler(t.Context(), server)
	must(t, err)
	t.Cleanup(pooler.Stop)
	ctx, stop := context.WithTimeout(t.Context(), lasts)
	defer stop()
	var all, other, errs atomic.Int64
	var group sync.WaitGroup
	for i := range 32 {
		group.Go(func() {
			of := []string{"acme", "other"}[i%2]
			for n := 0; ctx.Err() == nil; n++ {
				call, cancel := context.WithTimeout(ctx, time.Duration(1+rand.IntN(2000))*time.Millisecond)
				if n%8 == 0 { // the caller goes away
					time.AfterFunc(time.Duration(rand.IntN(30))*time.Millisecond, cancel)
				}
				found, err := ways[n%len(ways)](call, calls, of)
				cancel()
				if err != nil {
					errs.Add(1)
				}
				for _, owner := range found {
					all.Add(1)
					if owner != of {
						other.Add(1)
					}
				}
			}
		})
	}
	group.Go(func() {
		for tick := time.Tick(100 * time.Millisecond); ctx.Err() == nil; <-tick {
			_, _ = admin.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'calls' ORDER BY random() LIMIT 1") // the end may come first
		}
	})
	group.Wait()
	return all.Load(), other.Load(), errs.Load()
}
