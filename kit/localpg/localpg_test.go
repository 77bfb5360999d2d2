package localpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

// child makes the test binary start a server, print the folder of its socket, and wait to be killed.
const child = "LOCALPG_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(child) != "" {
		s, err := Start(context.Background(), Config{})
		if err != nil {
			panic(err)
		}
		fmt.Println(s.run)
		select {}
	}
	dir, err := os.MkdirTemp("", "localpg_test")
	if err != nil {
		panic(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		panic(err)
	}
	varDir = filepath.Join(dir, "var")
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		panic(err)
	}
	os.Exit(code)
}

// start starts a server that ends with the test.
func start(t *testing.T, cfg Config) *Server {
	t.Helper()
	s, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	t.Cleanup(func() { stop(t, s) })
	return s
}

func stop(t *testing.T, s *Server) {
	t.Helper()
	if err := s.Stop(); err != nil {
		t.Errorf("Stop() = %v, want nil", err)
	}
}

// query runs sql on a new connection and returns the column of text it returns.
func query(t *testing.T, s *Server, sql string) []string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.DSN("postgres"))
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), sql)
	if err != nil {
		t.Fatalf("query %q: %v", sql, err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("query %q: %v", sql, err)
	}
	return got
}

// openDir returns a temporary folder that every user may enter, unlike t.TempDir.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "localpg_test")
	must(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	must(t, os.Chmod(dir, 0o755))
	return dir
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// alive reports whether our child process runs.
func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

// A temporary server accepts connections only from its owner, runs without fsync, and leaves nothing.
func TestThrowAwayServer(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Settings: map[string]string{"max_connections": "17", "port": "5433"}})
	got := query(t, s, `SELECT name || '=' || setting FROM pg_settings WHERE name IN ('fsync', 'full_page_writes',
		'synchronous_commit', 'autovacuum', 'listen_addresses', 'max_connections', 'server_encoding') ORDER BY name`)
	want := []string{"autovacuum=on", "fsync=off", "full_page_writes=off", "listen_addresses=", "max_connections=17",
		"server_encoding=UTF8", "synchronous_commit=on"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
	if got := query(t, s, "SELECT lower('ÉŁЯ') || upper('ñ')"); runtime.GOOS == "linux" && got[0] != "éłяÑ" {
		t.Errorf("letters in another case: %q", got)
	}
	if info, err := os.Stat(s.run); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("folder of the socket: %v, %v, want mode 0700", info, err)
	}
	pid := s.cmd.Process.Pid
	if group, err := syscall.Getpgid(pid); err != nil || group != pid {
		t.Errorf("process group = %d, %v, want its own, %d", group, err, pid)
	}

	stop(t, s)
	stop(t, s)
	if alive(pid) {
		t.Errorf("process %d lives after Stop", pid)
	}
	if exists(s.run) {
		t.Errorf("%s is there after Stop", s.run)
	}
}

// Data in a kept folder is durable. It survives a crash of the server that leaves a stale postmaster.pid.
// Fresh deletes it.
func TestKeptServer(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(openDir(t), strings.Repeat("longer-than-a-socket-path/", 8))
	first := start(t, Config{Dir: dir})
	query(t, first, "CREATE TABLE kept AS SELECT 'one' AS value")
	if got := query(t, first, "SHOW fsync"); got[0] != "on" {
		t.Errorf("fsync = %s, want on", got[0])
	}
	stop(t, first)
	if exists(first.run) {
		t.Errorf("%s is there after Stop", first.run)
	}

	second := start(t, Config{Dir: dir})
	query(t, second, "INSERT INTO kept VALUES ('two')")
	if log, err := os.ReadFile(second.Log()); err != nil || strings.Contains(string(log), "not properly shut down") {
		t.Errorf("log = %q, %v, want no recovery after Stop", log, err)
	}
	must(t, second.cmd.Process.Kill())
	stop(t, second)
	if !exists(filepath.Join(dir, "data", "postmaster.pid")) {
		t.Error("no stale postmaster.pid: the test tests nothing")
	}

	third := start(t, Config{Dir: dir})
	if diff := cmp.Diff([]string{"one", "two"}, query(t, third, "SELECT value FROM kept ORDER BY value")); diff != "" {
		t.Errorf("kept data (-want +got):\n%s", diff)
	}
	stop(t, third)

	fourth := start(t, Config{Dir: dir, Fresh: true})
	if got := query(t, fourth, "SELECT relname::text FROM pg_class WHERE relname = 'kept'"); len(got) != 0 {
		t.Errorf("tables after Fresh = %q, want none", got)
	}
}

// A kept folder has one server. The error of a second Start names that server, even if the owner of the first has died.
func TestKeptFolderInUse(t *testing.T) {
	deep(t)
	t.Parallel()
	dir := openDir(t)
	first := start(t, Config{Dir: dir})
	for _, lock := range first.locks { // as if our process were dead
		lock.Close()
	}
	for _, cfg := range []Config{{Dir: dir}, {Dir: dir, Fresh: true}} {
		s, err := Start(t.Context(), cfg)
		if err == nil {
			stop(t, s)
		}
		want := fmt.Sprintf("in use by another server (pid %d)", first.cmd.Process.Pid)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Start(Fresh: %t) = %v, want: %s", cfg.Fresh, err, want)
		}
	}
	if got := query(t, first, "SELECT 'unharmed'"); got[0] != "unharmed" {
		t.Errorf("first server answers %q", got)
	}
}

// Data that this PostgreSQL cannot run is left alone, with an error that names the cause and the remedy.
func TestKeptFolderUnusable(t *testing.T) {
	deep(t)
	t.Parallel()
	dir := openDir(t)
	stop(t, start(t, Config{Dir: dir}))
	for _, test := range []struct {
		name  string
		spoil func(data string) error
		want  string
	}{
		{"other version", func(data string) error {
			return os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte("14\n"), 0o600)
		}, "was made by PostgreSQL 14, but "},
		{"no version", func(data string) error { return os.Remove(filepath.Join(data, "PG_VERSION")) }, "PG_VERSION"},
		{"damaged", func(data string) error { return os.Remove(filepath.Join(data, "global", "pg_control")) }, "pg_control"},
	} {
		data := filepath.Join(dir, "data")
		if err := test.spoil(data); err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		s, err := Start(t.Context(), Config{Dir: dir})
		if err == nil {
			stop(t, s)
		}
		for _, want := range []string{test.want, "--fresh"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: Start() = %v, want: %s", test.name, err, want)
			}
		}
		if !exists(filepath.Join(data, "base")) {
			t.Errorf("%s: Start deleted the data", test.name)
		}
		stop(t, start(t, Config{Dir: dir, Fresh: true}))
	}
}

// A data folder whose initdb did not finish is made again.
func TestInterruptedInitdb(t *testing.T) {
	deep(t)
	t.Parallel()
	dir := openDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for !exists(filepath.Join(dir, "data.half", "PG_VERSION")) && t.Context().Err() == nil {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	s, err := Start(ctx, Config{Dir: dir})
	if err == nil {
		stop(t, s)
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Start() = %v, want %v", err, context.Canceled)
	}
	if exists(filepath.Join(dir, "data")) {
		t.Error("half-made data has the name of whole data")
	}
	if got := query(t, start(t, Config{Dir: dir}), "SELECT 'whole'"); got[0] != "whole" {
		t.Errorf("server answers %q", got)
	}
}

// If the server's user cannot enter the data folder, every start uses the same other folder. Only root runs the server as another user.
func TestKeptFolderClosedToServer(t *testing.T) {
	deep(t)
	t.Parallel()
	dir := openDir(t)
	must(t, os.Chmod(dir, 0o700))
	wantParent, wantMessages := filepath.Dir(dir), 0
	if os.Geteuid() == 0 {
		wantParent, wantMessages = varDir, 1
	}
	var homes []string
	for range 2 {
		messages := 0
		s := start(t, Config{Dir: dir, Progress: func(string) { messages++ }})
		stop(t, s)
		if messages != wantMessages {
			t.Errorf("told %d messages, want %d", messages, wantMessages)
		}
		homes = append(homes, s.home)
	}
	if filepath.Dir(homes[0]) != wantParent || homes[1] != homes[0] {
		t.Errorf("data is in %q, want the same folder of %s", homes, wantParent)
	}
}

// A server that cannot run says why, from its log, and leaves nothing. Not parallel: it counts our folders.
func TestStartError(t *testing.T) {
	deep(t)
	s, err := Start(t.Context(), Config{Settings: map[string]string{"no_such_setting": "1"}})
	if err == nil {
		stop(t, s)
	}
	if want := `unrecognized configuration parameter "no_such_setting"`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Start() = %v, want: %s", err, want)
	}
	for _, root := range []string{memoryDir(), tempDir} {
		left, err := filepath.Glob(filepath.Join(root, fmt.Sprintf("localpg-%d-*", os.Getpid())))
		if err != nil || len(left) > 0 {
			t.Errorf("left behind: %q, %v", left, err)
		}
	}
}

// Only a folder whose owner is dead and whose lock is free is swept. Not parallel: a process that another test
// starts would have a copy of our lock for a moment.
func TestSweep(t *testing.T) {
	root := openDir(t)
	dead := exec.Command("true")
	must(t, dead.Run())
	folder := func(pid int, name string) string {
		dir := filepath.Join(root, fmt.Sprintf("localpg-%d-%s", pid, name))
		must(t, os.MkdirAll(filepath.Join(dir, "data"), 0o700))
		return dir
	}
	ours, left, used := folder(os.Getpid(), "ours"), folder(dead.Process.Pid, "left"), folder(dead.Process.Pid, "used")
	lock, err := lockFolder(t.Context(), used)
	must(t, err)
	s := &Server{user: serverUser()}
	s.sweep(t.Context(), root)
	got := []bool{exists(ours), exists(left), exists(used)}
	if diff := cmp.Diff([]bool{true, false, true}, got); diff != "" {
		t.Errorf("after sweep exist ours, left, used (-want +got):\n%s", diff)
	}
	lock.Close()
	s.sweep(t.Context(), root)
	if exists(used) {
		t.Error("what is no longer used is still there")
	}
}

// A standby has the data of its primary, and takes writes once it is promoted. It lacks the writes that the crash of the primary lost.
func TestStandby(t *testing.T) {
	deep(t)
	t.Parallel()
	primary := start(t, Config{})
	if !exists(filepath.Join(primary.Programs(), "pg_basebackup")) {
		t.Logf("no pg_basebackup in %s: nothing is run", primary.Programs())
		return
	}
	query(t, primary, "CREATE TABLE kept AS SELECT 'one' AS value")
	standby := start(t, Config{StandbyOf: primary})
	if got := query(t, standby, "SELECT pg_is_in_recovery()::text"); got[0] != "true" {
		t.Errorf("the standby is in recovery: %s, want true", got[0])
	}
	// If a condition never becomes true, the test ends by its timeout.
	until := func(s *Server, condition string) {
		t.Helper()
		for query(t, s, "SELECT ("+condition+")::text")[0] != "true" {
			time.Sleep(5 * time.Millisecond)
		}
	}
	until(primary, "EXISTS (SELECT FROM pg_stat_replication WHERE state = 'streaming')")
	query(t, standby, "ALTER SYSTEM SET primary_conninfo = ''")
	query(t, standby, "SELECT pg_reload_conf()::text")
	until(standby, "current_setting('primary_conninfo') = '' AND NOT EXISTS (SELECT FROM pg_stat_wal_receiver)")
	until(primary, "NOT EXISTS (SELECT FROM pg_stat_replication)")
	query(t, primary, "INSERT INTO kept VALUES ('lost')")
	if err := primary.Kill(); err != nil {
		t.Errorf("Kill() = %v, want nil", err)
	}
	query(t, standby, "SELECT pg_promote()::text")
	query(t, standby, "INSERT INTO kept VALUES ('two')")
	if diff := cmp.Diff([]string{"one", "two"}, query(t, standby, "SELECT value FROM kept ORDER BY value")); diff != "" {
		t.Errorf("data of the promoted standby (-want +got):\n%s", diff)
	}
}

// must ends the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
