package main

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"example.com/servicekit/localpg"
)

// The server, with its old and new connections, gets CPUs of its own, and so does
// this process. After undo, each has all CPUs again.
func TestDivideCPUs(t *testing.T) { // alone, because it moves this process
	s, err := localpg.Start(t.Context(), localpg.Config{})
	must(t, err)
	t.Cleanup(func() { _ = s.Stop() })
	backend := func() int {
		conn, err := pgx.Connect(t.Context(), s.DSN("postgres"))
		must(t, err)
		t.Cleanup(func() { conn.Close(t.Context()) })
		return int(conn.PgConn().PID())
	}
	old := backend()
	all := cpus(t, os.Getpid())
	connection, err := readStat(old)
	must(t, err)
	undo, err := divideCPUs(connection.parent)
	if runtime.NumCPU() == 1 {
		t.Skipf("one CPU: %v", err)
	}
	must(t, err)
	ours, server := cpus(t, os.Getpid()), cpus(t, connection.parent)
	if ours == server || ours == all || server == all || cpus(t, old) != server || cpus(t, backend()) != server {
		t.Errorf("of CPUs %s the server has %s and this process %s, want a part each, and connections with the server", all, server, ours)
	}
	must(t, undo())
	for name, pid := range map[string]int{"this process": os.Getpid(), "the server": connection.parent, "a connection": old} {
		if got := cpus(t, pid); got != all {
			t.Errorf("afterwards %s has CPUs %s, want %s", name, got, all)
		}
	}
}

// cpus returns the CPUs on which a process may run, as the kernel writes them.
func cpus(t *testing.T, pid int) string {
	t.Helper()
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	must(t, err)
	_, after, _ := strings.Cut(string(status), "Cpus_allowed_list:\t")
	list, _, _ := strings.Cut(after, "\n")
	return list
}
