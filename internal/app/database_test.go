package app

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var must = pgtest.Must

// Consumers of both sides share the permits if both sides are one database.
func TestPermitsAreOfTheDatabase(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "postgres://y"} {
		cfg, err := fifty.readConfig("serve", []string{"DATABASE_URL=postgres://x", "READ_DATABASE_URL=" + url, "AUTH=off", "PUBSUB_PROJECT=p"})
		must(t, err)
		p := newProcess("serve", cfg, nil)
		must(t, p.openPools(t.Context()))
		defer p.close()
		if same := p.Permits == p.querySide.permits; same != (url == "") || !p.Permits.TryAcquire(4) || p.Permits.TryAcquire(1) {
			t.Errorf("READ_DATABASE_URL=%s: the sides share permits: %t; want 4 of each database", url, same)
		}
	}
}

// A process does not start without the partitions of the outbox.
func TestStartNeedsPartitions(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 1)
	pgtest.Execute(t, pool, `CREATE OR REPLACE FUNCTION video_catalog.outbox_maintain(days_ahead int, keep interval)
		RETURNS void LANGUAGE sql AS $$ SELECT 1 / 0 $$`)
	if err := new(Process).maintainPartitions(t.Context(), pg.NewOutbox(pool)); err == nil || !strings.Contains(err.Error(), "maintain outbox") {
		t.Errorf("maintainPartitions() = %v, want an error of the maintenance", err)
	}
}

// each is called with each line of the log.
type each func()

func (e each) Write(line []byte) (int, error) {
	e()
	return len(line), nil
}

// A process that starts while its database is unavailable waits for it. A command fails at once.
func TestStartWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	cfg, err := pgx.ParseConfig(pgtest.Direct(t, url))
	must(t, err)
	database := cfg.Database
	cfg.Database = "postgres"
	admin, err := pgx.ConnectConfig(t.Context(), cfg)
	must(t, err)
	defer admin.Close(context.WithoutCancel(t.Context()))
	pgtest.Execute(t, admin, "ALTER DATABASE "+database+" ALLOW_CONNECTIONS false")

	lines := 0
	log := slog.New(slog.NewTextHandler(each(func() {
		lines++ // of the first wait, and of a silent database
		pgtest.Execute(t, admin, "ALTER DATABASE "+database+" ALLOW_CONNECTIONS true")
	}), nil))
	for _, subcommand := range []string{"status", "serve"} {
		p, opens := newProcess(subcommand, config{program: empty, DatabaseURL: url, ReadDatabaseURL: url, DatabaseMaxConns: 1}, log), subcommand == "serve"
		err := p.OpenCommandSide(t.Context())
		p.close()
		if (err == nil) != opens || lines > 1 {
			t.Errorf("start of %s = %v after %d lines of the log, want that it opens: %t", subcommand, err, lines, opens)
		}
		silent := fmt.Errorf("connect: %w", context.DeadlineExceeded) // a database that does not answer
		first := p.WhenAvailable(t.Context(), func(context.Context) (err error) { err, silent = silent, nil; return err })
		if (first == nil) != opens {
			t.Errorf("start of %s with a silent database = %v, want that it waits: %t", subcommand, first, opens)
		}
	}
}
