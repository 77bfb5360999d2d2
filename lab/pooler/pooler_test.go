package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"example.com/servicekit/localpg"
	"example.com/videocatalog/internal/pg/pgtest"
)

var must = pgtest.Must

// If PgBouncer is not installed, nothing is tested.
func TestMain(m *testing.M) {
	if _, err := find(); err != nil {
		fmt.Fprintln(os.Stderr, "pooler: nothing is tested:", err)
		return
	}
	folder, err := os.MkdirTemp("", "pooler-test-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(folder)
	program := filepath.Join(folder, "pooler")
	out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput()
	if err := errors.Join(err, os.Chmod(folder, 0o755), os.Setenv("PGTEST_POOLER", program)); err != nil { // the server's user runs it
		panic(fmt.Sprintf("%v: %s", err, out))
	}
	m.Run()
}

// start starts a server with a pooler, and returns the server and a URL through the pooler.
func start(t *testing.T) (server *localpg.Server, pooled string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	server, err := localpg.Start(ctx, localpg.Config{})
	must(t, err)
	t.Cleanup(func() { must(t, server.Stop()) })
	pooler, err := pgtest.StartPooler(ctx, server)
	must(t, err)
	t.Cleanup(pooler.Stop)
	return server, pgtest.Pooled(server.DSN("postgres"))
}

func connect(t *testing.T, target string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), target)
	must(t, err)
	t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// text returns the single text of a query.
func text(t *testing.T, conn *pgx.Conn, sql string) (answer string) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), sql).Scan(&answer); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return answer
}

// The pooler keeps no session: if it did, the tests that go through it would show nothing.
func TestNoSessionSurvives(t *testing.T) {
	t.Parallel()
	_, pooled := start(t)
	a, b := connect(t, pooled), connect(t, pooled)

	// Both share one server connection, as long as no two transactions overlap.
	if pid, other := text(t, a, "SELECT pg_backend_pid()::text"), text(t, b, "SELECT pg_backend_pid()::text"); pid != other {
		t.Errorf("server connections = %s and %s, want one", pid, other)
	}
	pgtest.Execute(t, a, "SET statement_timeout = '12345'")
	if got := text(t, b, "SHOW statement_timeout"); got != "12345ms" {
		t.Errorf("statement_timeout that another client has set = %s, want it to leak", got)
	}
	_, err := a.Prepare(t.Context(), "mine", "SELECT 1")
	must(t, err)
	const duplicate = "42P05"
	var pgErr *pgconn.PgError
	if _, err := b.Prepare(t.Context(), "mine", "SELECT 2"); !errors.As(err, &pgErr) || pgErr.Code != duplicate {
		t.Errorf("Prepare() of a name that another client has used = %v, want %s", err, duplicate)
	}

	// With a second server connection, the next transaction of a client may be on the other one.
	tx, err := a.Begin(t.Context())
	must(t, err)
	pid := text(t, b, "SELECT pg_backend_pid()::text")
	must(t, tx.Rollback(t.Context()))
	moved := false
	for range 4 {
		moved = moved || text(t, b, "SELECT pg_backend_pid()::text") != pid
	}
	if !moved {
		t.Errorf("five transactions of one client ran on server connection %s, want them on both", pid)
	}

	u, err := url.Parse(pooled)
	must(t, err)
	query := u.Query()
	query.Set("statement_timeout", "1000")
	u.RawQuery = query.Encode()
	if _, err := pgx.Connect(t.Context(), u.String()); err == nil || !strings.Contains(err.Error(), "unsupported startup parameter") {
		t.Errorf("Connect() with a start-up parameter = %v, want it refused", err)
	}
}

// A user that is made later can connect, and has the settings of ALTER ROLE. In this way time limits reach a
// pooled connection.
func TestRoleSettingsReachThePooledConnection(t *testing.T) {
	t.Parallel()
	server, pooled := start(t)
	admin := connect(t, server.DSN("postgres"))
	for _, sql := range []string{"CREATE USER somebody", "ALTER ROLE somebody SET statement_timeout = '7s'"} {
		pgtest.Execute(t, admin, sql)
	}
	conn := connect(t, pooled+"&user=somebody")
	got := fmt.Sprint(text(t, conn, "SELECT current_user::text"), " ", text(t, conn, "SHOW statement_timeout"))
	if want := "somebody 7s"; got != want {
		t.Errorf("user and statement_timeout = %s, want %s", got, want)
	}
}

// The error has the output of a pooler that did not start.
func TestStartErrors(t *testing.T) {
	server, err := localpg.Start(t.Context(), localpg.Config{})
	must(t, err)
	t.Cleanup(func() { must(t, server.Stop()) })
	dir := t.TempDir()
	must(t, os.WriteFile(dir+"/pooler", []byte("#!/bin/sh\necho cannot work here\nexit 1\n"), 0o755))
	for folder := dir; folder != "/tmp" && folder != "/"; folder = folder[:strings.LastIndex(folder, "/")] {
		must(t, os.Chmod(folder, 0o755)) // the server's user has to get there
	}
	t.Setenv("PGTEST_POOLER", dir+"/pooler")
	if _, err := pgtest.StartPooler(t.Context(), server); err == nil || !strings.Contains(err.Error(), "cannot work here") {
		t.Errorf("Start() of a pooler that ends at once = %v, want the end of its log", err)
	}
}
