// Package pgtest gives a test a real PostgreSQL. Main starts a private
// server per test binary. Each test gets its own database, cloned from one that
// has the whole schema, with the tables of all options. Nothing has to be prepared, so no test is ever skipped.
//
// If the environment variable PGTEST_POOLER names a pooler, Main starts the pooler in front of the server,
// and URL and Pool use it. So the same tests show that the code depends on no session state. A test
// that needs a session calls Direct.
package pgtest

import (
	"context"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/servicekit/localpg"
	"example.com/videocatalog/db"
)

const template = "template_service"

var (
	server    *localpg.Server  // set by Main, before any test
	pooler    *localpg.Process // in front of the server; nil: none
	folder    string           // directory of the server's data during benchmarks
	databases atomic.Int64     // number of databases that this process has created
)

// Main starts the server, runs the tests of a package, and stops the server:
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
func Main(m *testing.M) {
	flag.Parse()
	if err := start(); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		os.Exit(1)
	}
	defer stop()
	m.Run()
}

func start() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	// PostgreSQL allows no prepared transactions by default, and the service needs none. A benchmark
	// compares them with the outbox. Sixteen cost some kilobytes of memory.
	cfg := localpg.Config{Settings: map[string]string{"max_prepared_transactions": "16", "log_line_prefix": "%m [%p] %d "}}
	if bench := flag.Lookup("test.bench"); bench != nil && bench.Value.String() != "" {
		// Benchmarks use a disk with fsync, as production does.
		if cfg.Dir, err = os.MkdirTemp("", "pgtest"); err != nil {
			return err
		}
		folder = cfg.Dir
		// If we are root, the server runs as another user, who needs access.
		if err = os.Chmod(folder, 0o755); err != nil {
			return err
		}
		maps.Copy(cfg.Settings, map[string]string{"shared_buffers": "512MB", "max_wal_size": "4GB", "max_connections": "100"})
	}
	if server, err = localpg.Start(ctx, cfg); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	if err := execute(ctx, "CREATE DATABASE "+template); err != nil {
		return err
	}
	if _, err := db.Migrate(ctx, server.DSN(template), slog.New(slog.DiscardHandler), Options()...); err != nil {
		return err
	}
	pooler, err = StartPooler(ctx, server)
	return err
}

// Options returns the migrations of all options in the repository that the test is in.
func Options() (all []fs.FS) {
	dir, _ := os.Getwd() // the folder of the test
	for !isRepository(dir) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
	}
	folders, _ := filepath.Glob(filepath.Join(dir, "options/*/migrations")) // the pattern is right
	for _, folder := range folders {
		all = append(all, os.DirFS(filepath.Dir(folder)))
	}
	return all
}

func isRepository(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "db", "migrations"))
	return err == nil
}

// stop stops the server and removes its data. It ignores errors: a test, or an
// error before, has already reported the cause.
func stop() {
	if pooler != nil {
		pooler.Stop()
	}
	_ = server.Stop()
	if folder != "" {
		_ = os.RemoveAll(folder)
	}
}

// execute runs one statement in the server's own database.
func execute(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, server.DSN("postgres"))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}

// URL creates an empty database with the whole schema, and returns its URL. The
// database is dropped when the test ends.
func URL(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("test_%d", databases.Add(1))
	if err := execute(t.Context(), "CREATE DATABASE "+name+" TEMPLATE "+template); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := execute(ctx, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	if pooler == nil {
		return server.DSN(name)
	}
	return Pooled(server.DSN(name))
}

// Direct returns the URL of the same database and user without the pooler. It
// is for code that needs a session, such as migrations, SET, and
// pg_backend_pid.
func Direct(t testing.TB, target string) string {
	t.Helper()
	if pooler == nil {
		return target
	}
	address, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	direct, err := url.Parse(server.DSN(strings.TrimPrefix(address.Path, "/")))
	if err != nil {
		t.Fatal(err)
	}
	direct.User = address.User
	return direct.String()
}

// Errors returns the errors that the server has logged for the database of a pool.
func Errors(t testing.TB, pool *pgxpool.Pool) (lines []string) {
	t.Helper()
	log, err := os.ReadFile(server.Log())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, " "+pool.Config().ConnConfig.Database+" ERROR:") {
			lines = append(lines, line)
		}
	}
	return lines
}

// Pool creates a database like URL does, and opens a pool of at most maxConns
// connections. The pool is closed when the test ends.
func Pool(t testing.TB, maxConns int32) *pgxpool.Pool {
	t.Helper()
	pool, err := db.Open(t.Context(), URL(t), maxConns, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}
