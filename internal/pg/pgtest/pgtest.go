// Package pgtest gives a test a real PostgreSQL. Main starts a private
// server per test binary. Each test gets its own database, cloned from one that
// has the whole schema, with the tables of all options. Nothing has to be prepared, so no test is ever skipped.
package pgtest

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/servicekit/localpg"
	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg/internal/sqlcgen"
)

const template = "template_service"

var (
	server    *localpg.Server // set by Main, before any test
	databases atomic.Int64    // number of databases that this process has created
)

// Main starts the server, runs the tests of a package, and stops the server:
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
func Main(m *testing.M) {
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
	var cfg localpg.Config
	// only full: begin
	if cfg, err = labConfig(); err != nil {
		return err
	}
	// only full: end
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
	// only full: begin
	if pooler, err = StartPooler(ctx, server); err != nil {
		return err
	}
	// only full: end
	return nil
}

// Options returns the migrations of all options in the repository that the test is in.
func Options() (all []fs.FS) {
	for dir, _ := os.Getwd(); ; dir = filepath.Dir(dir) { // from the folder of the test upwards
		if _, err := os.Stat(filepath.Join(dir, "db", "migrations")); err != nil && dir != filepath.Dir(dir) {
			continue
		}
		folders, _ := filepath.Glob(filepath.Join(dir, "options/*/migrations")) // the pattern is right
		for _, folder := range folders {
			all = append(all, os.DirFS(filepath.Dir(folder)))
		}
		return all
	}
}

// stop stops the server and removes its data. It ignores errors: a test, or an
// error before, has already reported the cause.
func stop() {
	// only full: begin
	if pooler != nil {
		pooler.Stop()
	}
	defer os.RemoveAll(folder)
	// only full: end
	_ = server.Stop()
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
	Must(t, execute(t.Context(), "CREATE DATABASE "+name+" TEMPLATE "+template))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		Must(t, execute(ctx, "DROP DATABASE "+name+" WITH (FORCE)"))
	})
	// only full: begin
	if pooler != nil {
		return Pooled(server.DSN(name))
	}
	// only full: end
	return server.DSN(name)
}

// Direct returns the URL of the same database and user without the pooler. It
// is for code that needs a session, such as migrations, SET, and
// pg_backend_pid.
func Direct(t testing.TB, target string) string {
	t.Helper()
	// only full: begin
	if pooler != nil {
		return unpooled(t, target)
	}
	// only full: end
	return target
}

// Pool creates a database like URL does, and opens it.
func Pool(t testing.TB, maxConns int32) *pgxpool.Pool {
	t.Helper()
	return Open(t, URL(t), maxConns)
}

// Open opens a pool of at most maxConns connections. It is closed when the test ends.
func Open(t testing.TB, url string, maxConns int32) *pgxpool.Pool {
	t.Helper()
	pool, err := db.Open(t.Context(), url, maxConns, nil)
	Must(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// DB is a pool, a connection or a transaction.
type DB = sqlcgen.DBTX

// Append appends an event to the outbox like the service.
func Append(t testing.TB, to DB, m envelope.Message) {
	t.Helper()
	Must(t, TryAppend(t.Context(), to, m))
}

// TryAppend is Append for a caller that expects an error, or does not run in the
// goroutine of the test.
func TryAppend(ctx context.Context, to DB, m envelope.Message) error {
	payload := m.Payload
	if payload == nil {
		payload = []byte{} // the column is NOT NULL
	}
	return sqlcgen.New(to).AppendOutbox(ctx, sqlcgen.AppendOutboxParams{
		Lane: outbox.Lane(m.Aggregate()), ID: m.ID, AggregateType: m.AggregateType, AggregateID: m.AggregateID, EventType: m.Type, Version: m.Version, SchemaVersion: m.SchemaVersion,
		Payload: payload, OccurredAt: m.OccurredAt, Traceparent: &m.Traceparent,
	})
}

// Execute executes a statement.
func Execute(t testing.TB, in DB, sql string, args ...any) {
	t.Helper()
	if _, err := in.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// Count returns the number that a query returns.
func Count(t testing.TB, in DB, sql string, args ...any) int {
	t.Helper()
	return Column[int](t, in, sql, args...)[0]
}

// Column returns the values of the only column of a query.
func Column[V any](t testing.TB, in DB, sql string, args ...any) []V {
	t.Helper()
	rows, _ := in.Query(t.Context(), sql, args...) // CollectRows returns its error
	values, err := pgx.CollectRows(rows, pgx.RowTo[V])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return values
}

// Must ends the test at an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Eventually polls until something holds.
func Eventually(t testing.TB, within time.Duration, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", within, what)
		}
	}
}
