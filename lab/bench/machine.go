package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"example.com/servicekit/localpg"
	"example.com/videocatalog/db"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// machine is the PostgreSQL that all peers use: on disk, with fsync.
type machine struct {
	server     *localpg.Server
	folder     string
	admin      *pgx.Conn
	postmaster int // its process id
	databases  int
}

// settings are the settings of the server. Checkpoints happen only when a benchmark starts one. A checkpoint during a
// turn would add full-page images to the cost of the turn.
var settings = map[string]string{
	"shared_buffers": "512MB", "max_wal_size": "16GB", "checkpoint_timeout": "1h", "max_connections": "200",
}

const template = "template_bench"

func startMachine(ctx context.Context) (_ *machine, err error) {
	m := &machine{}
	defer func() {
		if err != nil {
			m.stop()
		}
	}()
	if m.folder, err = os.MkdirTemp("", "bench-peers"); err != nil {
		return nil, fmt.Errorf("make data folder: %w", err)
	}
	// If we are root, the server runs as another user, who needs access.
	if err = os.Chmod(m.folder, 0o755); err != nil { //nolint:gosec // see above
		return nil, fmt.Errorf("open data folder: %w", err)
	}
	if m.server, err = localpg.Start(ctx, localpg.Config{Dir: m.folder, Settings: settings}); err != nil {
		return nil, err
	}
	if m.admin, err = pgx.Connect(ctx, m.server.DSN("postgres")); err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	backend := int(m.admin.PgConn().PID())
	stat, err := readStat(backend)
	if err != nil {
		return nil, err
	}
	m.postmaster = stat.parent
	if _, err = m.admin.Exec(ctx, "CREATE DATABASE "+template); err != nil {
		return nil, fmt.Errorf("create template: %w", err)
	}
	if _, err = db.Migrate(ctx, m.server.DSN(template), slog.New(slog.DiscardHandler)); err != nil {
		return nil, err
	}
	return m, nil
}

// stop stops the server and removes its data. It ignores errors.
func (m *machine) stop() {
	if m.admin != nil {
		_ = m.admin.Close(context.Background())
	}
	if m.server != nil {
		_ = m.server.Stop()
	}
	if m.folder != "" {
		_ = os.RemoveAll(m.folder)
	}
}

// database creates a database with the schema of the service, and returns its URL.
func (m *machine) database(ctx context.Context) (string, error) {
	m.databases++
	name := fmt.Sprintf("bench_%d", m.databases)
	if _, err := m.admin.Exec(ctx, "CREATE DATABASE "+name+" TEMPLATE "+template); err != nil {
		return "", fmt.Errorf("create database: %w", err)
	}
	return m.server.DSN(name), nil
}

// open creates such a database, and opens a pool on it.
func (m *machine) open(ctx context.Context, connections int32) (*pgxpool.Pool, error) {
	url, err := m.database(ctx)
	if err != nil {
		return nil, err
	}
	return db.Open(ctx, url, connections, nil)
}

// drop closes a pool, and drops its database.
func (m *machine) drop(ctx context.Context, pool *pgxpool.Pool) error {
	name := pool.Config().ConnConfig.Database
	pool.Close()
	if _, err := m.admin.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
		return fmt.Errorf("drop database: %w", err)
	}
	return nil
}

func (m *machine) checkpoint(ctx context.Context) error {
	if _, err := m.admin.Exec(ctx, "CHECKPOINT"); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

// meter is the time and the resources that were used.
type meter struct {
	took     time.Duration
	ours     time.Duration // CPU time of this process
	postgres time.Duration // CPU time of the server and all its children, including ended ones
	wal      int64         // WAL bytes written
}

func (u meter) cpu() time.Duration { return u.ours + u.postgres }

// measure returns what a step uses.
func (m *machine) measure(ctx context.Context, step func() error) (meter, error) {
	before, err := m.read(ctx)
	begun := time.Now()
	if err == nil {
		err = step()
	}
	took := time.Since(begun)
	after, readErr := m.read(ctx)
	return meter{took, after.ours - before.ours, after.postgres - before.postgres, after.wal - before.wal}, errors.Join(err, readErr)
}

// read returns what was used until now, without the time.
func (m *machine) read(ctx context.Context) (meter, error) {
	var wal int64
	if err := m.admin.QueryRow(ctx, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint").Scan(&wal); err != nil {
		return meter{}, fmt.Errorf("read WAL position: %w", err)
	}
	postgres, err := treeCPU(m.postmaster)
	if err != nil {
		return meter{}, err
	}
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err != nil {
		return meter{}, fmt.Errorf("read own CPU time: %w", err)
	}
	return meter{ours: time.Duration(self.Utime.Nano() + self.Stime.Nano()), postgres: postgres, wal: wal}, nil
}

// stat has the needed fields of /proc/pid/stat.
type stat struct {
	parent        int
	own, children time.Duration // CPU time; children are those that have ended and were waited for
}

const ticksPerSecond = 100 // USER_HZ, a constant of Linux

func readStat(pid int) (stat, error) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return stat{}, fmt.Errorf("read CPU time: %w", err)
	}
	// The second field is a name in parentheses, with any content. So fields are counted from behind it, where field
	// 3 starts (proc(5)).
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	number := func(field int) int {
		n, _ := strconv.Atoi(fields[field-3]) // the kernel writes numbers
		return n
	}
	cpu := func(user, system int) time.Duration {
		return time.Duration(number(user)+number(system)) * time.Second / ticksPerSecond
	}
	return stat{parent: number(4), own: cpu(14, 15), children: cpu(16, 17)}, nil
}

// childrenOf returns the children of a process that have not ended.
func childrenOf(pid int) (map[int]stat, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	children := make(map[int]stat)
	for _, entry := range entries {
		child, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue // not a process
		}
		if s, err := readStat(child); err == nil && s.parent == pid { // on an error it has just ended
			children[child] = s
		}
	}
	return children, nil
}

// treeCPU returns the CPU time of a process and its children, including ended ones.
func treeCPU(pid int) (time.Duration, error) {
	for {
		before, err := readStat(pid)
		if err != nil {
			return 0, err
		}
		children, err := childrenOf(pid)
		if err != nil {
			return 0, err
		}
		var alive time.Duration
		for _, s := range children {
			alive += s.own + s.children
		}
		root, err := readStat(pid)
		if err != nil {
			return 0, err
		}
		if root.children == before.children { // otherwise a child has ended during the sum, and may be missing or counted twice
			return root.own + root.children + alive, nil
		}
	}
}
