package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/videocatalog/internal/pg/pgtest"
)

// BenchmarkIdle measures a server that has nothing to do: the time from its start
// until it is ready, its resident memory, and its queries per second.
func BenchmarkIdle(b *testing.B) {
	s := newStack(b)
	pgtest.Execute(b, s.pool, fmt.Sprintf("ALTER DATABASE %s SET log_statement = 'all'", s.pool.Config().ConnConfig.Database))
	for b.Loop() {
		start := time.Now()
		p := s.start(b)
		ready := time.Since(start)
		time.Sleep(5 * time.Second) // until the poll interval has grown to its longest
		before := queries(b, s)
		const idle = 20 * time.Second
		time.Sleep(idle)
		after := queries(b, s)
		b.ReportMetric(ready.Seconds()*1000, "ms-to-ready")
		b.ReportMetric(residentMB(b, p.cmd.Process.Pid), "MB-resident")
		b.ReportMetric((after-before)/idle.Seconds(), "idle-queries/s")
		if _, err := p.stop(b); err != nil {
			b.Error(err)
		}
	}
	b.ReportMetric(0, "ns/op")
}

// queries counts the queries in the log of the database server. It connects to
// another database, whose queries are not logged.
func queries(b *testing.B, s *stack) (n float64) {
	b.Helper()
	cfg := s.pool.Config().ConnConfig.Copy()
	cfg.Database = "postgres"
	conn, err := pgx.ConnectConfig(b.Context(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := conn.QueryRow(b.Context(), `
		SELECT count(*) FROM regexp_matches(pg_read_file(current_setting('data_directory') || '/../postgres.log'), 'LOG:  execute', 'g')`).Scan(&n); err != nil {
		b.Fatal(err)
	}
	return n
}

func residentMB(b *testing.B, pid int) float64 {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, line, _ := bytes.Cut(status, []byte("VmRSS:"))
	var kB float64
	if _, err := fmt.Sscanf(string(bytes.TrimSpace(line)), "%f kB", &kB); err != nil {
		b.Fatal(err)
	}
	return kB / 1024
}

// stop sends SIGTERM and returns how long the server took to end, and its error.
func (p *process) stop(t testing.TB) (time.Duration, error) {
	t.Helper()
	start := time.Now()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	err := p.wait()
	return time.Since(start), err
}
