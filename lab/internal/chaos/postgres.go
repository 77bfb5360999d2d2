package chaos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/servicekit/localpg"
)

const databaseName = "chaos"

// postgres is a PostgreSQL that keeps its data over restarts. Its methods are safe
// for concurrent use, but only the injector of faults may call those that stop it.
type postgres struct {
	dir  string
	keep bool // keep the files of the server at the end

	mu     sync.Mutex
	server *localpg.Server // guarded by mu
}

// startPostgres starts a server with an empty database. fsync is off, because only
// processes crash in the lab. Data that PostgreSQL has written survives such a crash.
func startPostgres(ctx context.Context, progress func(string)) (*postgres, error) {
	dir, err := os.MkdirTemp("", "chaos-postgres-")
	if err != nil {
		return nil, err
	}
	p := &postgres{dir: dir}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // PostgreSQL runs as another user when we are root
		return nil, errors.Join(err, p.remove())
	}
	if err := p.start(ctx, progress); err != nil {
		return nil, errors.Join(err, p.remove())
	}
	conn, err := pgx.Connect(ctx, p.dsn("postgres"))
	if err == nil {
		defer conn.Close(context.WithoutCancel(ctx))
		_, err = conn.Exec(ctx, "CREATE DATABASE "+databaseName)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create database: %w", err), p.remove())
	}
	return p, nil
}

func (p *postgres) start(ctx context.Context, progress func(string)) error {
	server, err := localpg.Start(ctx, localpg.Config{Dir: p.dir, Progress: progress, Settings: map[string]string{
		"fsync": "off", "full_page_writes": "off", "max_wal_size": "256MB", "shared_buffers": "64MB", "wal_level": "logical",
	}})
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server = server
	return nil
}

func (p *postgres) current() *localpg.Server {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.server
}

// dsn returns the DSN for connections of the lab, which use no proxy.
func (p *postgres) dsn(database string) string { return p.current().DSN(database) }

// dial connects to the present server.
func (p *postgres) dial(ctx context.Context) (net.Conn, error) {
	dsn, err := url.Parse(p.dsn(databaseName))
	if err != nil {
		return nil, fmt.Errorf("parse DSN: %w", err)
	}
	socket := filepath.Join(dsn.Query().Get("host"), ".s.PGSQL."+dsn.Query().Get("port"))
	return new(net.Dialer).DialContext(ctx, "unix", socket)
}

// connect opens a connection of the lab, without a proxy. It waits some time for a
// server that recovers.
func (p *postgres) connect(ctx context.Context) (*pgx.Conn, error) {
	for deadline := time.Now().Add(15 * time.Second); ; {
		conn, err := pgx.Connect(ctx, p.dsn(databaseName))
		if err == nil {
			return conn, nil
		}
		if time.Now().After(deadline) || !sleep(ctx, 20*time.Millisecond) {
			return nil, fmt.Errorf("connect: %w", err)
		}
	}
}

// exec runs statements of the lab, one after the other. They wait at most a second
// for a lock.
func (p *postgres) exec(ctx context.Context, statements ...string) error {
	conn, err := p.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, sql := range append([]string{"SET lock_timeout = '1s'"}, statements...) {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// insist runs statements again and again until all succeed, or ctx ends.
func (p *postgres) insist(ctx context.Context, statements ...string) error {
	for {
		err := p.exec(ctx, statements...)
		if err == nil || !sleep(ctx, 20*time.Millisecond) {
			return err
		}
	}
}

// stop shuts the server down in fast mode.
func (p *postgres) stop() error { return p.current().Stop() }

// kill ends the server like a crash.
func (p *postgres) kill() error { return p.current().Kill() }

// killBackend kills a process that serves a client. PostgreSQL then ends all
// others, because shared memory may be damaged, and recovers.
func (p *postgres) killBackend(ctx context.Context) error {
	conn, err := p.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var pid int
	err = conn.QueryRow(ctx, `
		SELECT pid FROM pg_stat_activity
		WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
		ORDER BY state = 'active' DESC LIMIT 1`).Scan(&pid)
	if err != nil {
		return fmt.Errorf("find a backend: %w", err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill a backend: %w", err)
	}
	// The server works until it notices. Our own connection then ends.
	for deadline := time.Now().Add(5 * time.Second); conn.Ping(ctx) == nil; sleep(ctx, 5*time.Millisecond) {
		if time.Now().After(deadline) {
			return errors.New("kill a backend: the server has not noticed")
		}
	}
	return nil
}

// remove stops the server and deletes its data.
func (p *postgres) remove() error {
	var err error
	if server := p.current(); server != nil {
		err = server.Stop()
	}
	if p.keep {
		return err
	}
	return errors.Join(err, os.RemoveAll(p.dir))
}

// dump writes each table of the service and of the lab to a file. If that fails, the
// files of the server are kept.
func (p *postgres) dump(ctx context.Context, dir string) error {
	if err := p.dumpInto(ctx, dir); err != nil {
		p.keep = true
		return fmt.Errorf("dump: %w; the files of PostgreSQL are in %s", err, p.dir)
	}
	return nil
}

func (p *postgres) dumpInto(ctx context.Context, dir string) error {
	conn, err := p.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, _ := conn.Query(ctx, `
		SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname IN ('video_catalog', 'video_catalog_read', 'chaos') AND c.relkind IN ('r', 'p') AND NOT c.relispartition`)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string]) // CollectRows returns the error of the query, too
	if err != nil {
		return fmt.Errorf("list tables: %w", err)
	}
	for _, table := range tables {
		file, err := os.Create(filepath.Join(dir, table+".csv")) //nolint:gosec // in the given directory
		if err != nil {
			return err
		}
		_, err = conn.PgConn().CopyTo(ctx, file, "COPY (SELECT * FROM "+table+") TO STDOUT (FORMAT csv, HEADER)")
		if err := errors.Join(err, file.Close()); err != nil {
			return fmt.Errorf("%s: %w", table, err)
		}
	}
	return nil
}
