package localpg

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// The server, connections that were there and new ones, and this process: all on
// their own CPUs, and then on all of them again.
func TestApart(t *testing.T) { // alone, because it moves this process
	deep(t)
	s := start(t, Config{})
	backend := func() int {
		conn, err := pgx.Connect(t.Context(), s.DSN("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close(t.Context()) })
		return int(conn.PgConn().PID())
	}
	old := backend()
	all := cpus(t, os.Getpid())
	undo, err := s.Apart()
	if runtime.NumCPU() == 1 {
		if err == nil {
			t.Error("Apart() of one CPU = nil, want an error")
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	ours := cpus(t, os.Getpid())
	server := cpus(t, s.cmd.Process.Pid)
	if ours == server || ours == all || server == all {
		t.Errorf("of CPUs %s the server has %s and this process %s, want a part each", all, server, ours)
	}
	for name, pid := range map[string]int{"an old connection": old, "a new connection": backend()} {
		if got := cpus(t, pid); got != server {
			t.Errorf("%s has CPUs %s, want those of the server, %s", name, got, server)
		}
	}
	if err := undo(); err != nil {
		t.Fatal(err)
	}
	for name, pid := range map[string]int{"this process": os.Getpid(), "the server": s.cmd.Process.Pid, "a connection": old} {
		if got := cpus(t, pid); got != all {
			t.Errorf("afterwards %s has CPUs %s, want %s", name, got, all)
		}
	}
}

// cpus is where a process may run, as the kernel writes it.
func cpus(t *testing.T, pid int) string {
	t.Helper()
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "Cpus_allowed_list:\t")
	list, _, _ := strings.Cut(after, "\n")
	return list
}
