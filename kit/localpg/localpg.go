// Package localpg starts a private PostgreSQL server: one that keeps its data, for cmd/dev, or a temporary one, for
// tests.
//
//   - It also works for root, which PostgreSQL refuses to run as: the server then runs as user postgres or nobody.
//   - The server listens only on a Unix socket, in a folder that only its user and root can enter. It has no password
//     and no TCP port, so any number of servers can run at the same time. Start removes libpq's variables, such as
//     PGSERVICE and PGOPTIONS, from the environment of our process: they are for other servers.
//   - Stop leaves no process behind. On Linux the kernel also ends the server when our process is killed. Elsewhere it
//     keeps running, and the next Start on its folder fails with an error that names its pid.
//   - The programs come from POSTGRES_BIN_DIR, else from PATH or the usual folders of installers, else from npm.
//   - A folder has at most one server. Data that is damaged or of another major version is never repaired, and is
//     deleted only on request: the error says what to do.
//   - A temporary server is in memory if there is room, runs without fsync, and is removed by Stop. The next Start
//     removes the files of killed processes.
//
// The package does not tune, back up or upgrade anything, and is not for production: cmd/server must not import it.
// It needs a Unix system. On Windows use WSL, or set DATABASE_URL to your own server.
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
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Config has the settings of a Server. The zero value makes a temporary server.
type Config struct {
	// Dir keeps the data, the log of the last run and a lock. If root starts the server and the server's user cannot
	// enter Dir (a clone below /root), a folder in /var/lib/localpg replaces it. Default: a temporary folder,
	// with fsync off, which Stop removes.
	Dir string

	// Fresh deletes the data in Dir before the start.
	Fresh bool

	// StandbyOf is a running server that this one copies with pg_basebackup. It then follows that server
	// asynchronously as a hot standby until SELECT pg_promote(). It needs all of PostgreSQL's programs. Nil: a
	// primary.
	StandbyOf *Server

	// Settings are parameters of PostgreSQL; they override our own. With listen_addresses, anybody who reaches that
	// address can connect without a password.
	Settings map[string]string

	// Progress is called with slow or unexpected steps, such as a download. Nil: no call.
	Progress func(message string)
}

// Server is a running server. It is safe for concurrent use.
type Server struct {
	user     *syscall.Credential // runs the server
	programs string              // folder of initdb and postgres
	run      string              // temporary folder of the socket
	home     string              // of data and log; equal to run for a temporary server
	locks    []*os.File          // of run and home
	settings map[string]string
	cmd      *exec.Cmd
	done     <-chan struct{} // closed when the server has ended; nil before it runs
	stop     func() error
}

// Start finds PostgreSQL 15 or newer, creates the data folder if needed, and returns once the server accepts
// connections. ctx limits only the start. After an error nothing is left running. The error wraps ErrNotFound if
// PostgreSQL is not installed.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	for _, variable := range os.Environ() {
		if name := ofLibpq.FindString(variable); name != "" {
			_ = os.Unsetenv(name) // it fails only for a name that is empty or wrong
		}
	}
	s := &Server{user: serverUser(), settings: settings(cfg)}
	s.stop = sync.OnceValue(s.shutdown)
	if err := s.start(ctx, cfg); err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", errors.Join(err, s.Stop()))
	}
	return s, nil
}

// ofLibpq matches the names of libpq's variables (https://www.postgresql.org/docs/current/libpq-envars.html).
var ofLibpq = regexp.MustCompile(`^PG[A-Z]+\b`)

// DSN returns the URL of a database for pgx and psql, as superuser postgres.
func (s *Server) DSN(database string) string {
	query := url.Values{"host": {s.run}, "port": {s.settings["port"]}} // part of the socket's name; ignores PGPORT
	dsn := url.URL{Scheme: "postgres", User: url.User("postgres"), Path: "/" + database, RawQuery: query.Encode()}
	return dsn.String()
}

// Log returns the path of the server's log. Stop removes the log of a temporary server.
func (s *Server) Log() string { return filepath.Join(s.home, "postgres.log") }

// Done returns a channel that is closed when the server has ended.
func (s *Server) Done() <-chan struct{} { return s.done }

// State returns how the server has ended.
func (s *Server) State() *os.ProcessState { return s.cmd.ProcessState }

// Folder returns the folder of the server's socket. Only the server's user and root can enter it. Stop removes it.
func (s *Server) Folder() string { return s.run }

// Process is a program that runs beside a server.
type Process struct {
	cmd  *exec.Cmd
	done <-chan struct{} // closed when it has ended
}

// Beside starts another program, such as a pooler, as the server's user. It can use Folder. Its output goes to log.
// Stop the returned Process before the server. On Linux the program also ends when our process is killed.
func (s *Server) Beside(log *os.File, program string, args ...string) (*Process, error) {
	cmd := s.command(context.Background(), log, program, args...)
	done, err := keep(cmd)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(program), err)
	}
	return &Process{cmd: cmd, done: done}, nil
}

// Done returns a channel that is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Stop sends SIGTERM, and SIGKILL after ten seconds. It returns once the program has ended.
func (p *Process) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails only if it has ended
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// Stop ends the server and its connections, and removes temporary files. Later calls return the same error.
func (s *Server) Stop() error { return s.stop() }

// Kill ends the server like a crash (SIGKILL), and removes temporary files. A later Stop returns the same error.
func (s *Server) Kill() error {
	_ = s.cmd.Process.Kill() // fails only if it has ended
	return s.stop()
}

// Programs returns the folder of PostgreSQL's programs. The package from npm lacks psql, pg_dump and pg_basebackup.
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
	s.programs = filepath.Dir(postgres) // the folder with all programs, not one of links
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
	_, isNew := os.Stat(s.data())
	err = s.makeData(ctx, log, version, cfg)
	if err == nil {
		err = s.launch(ctx, log)
	}
	if err != nil && cfg.Dir != "" && isNew == nil && !cfg.Fresh && ctx.Err() == nil {
		return fmt.Errorf("%w\nto delete the data in %s and start again: go run ./cmd/dev --fresh", err, s.home)
	}
	return err
}

func (s *Server) shutdown() error {
	// A kept server gets a fast shutdown, with a checkpoint; a temporary one an immediate shutdown.
	// https://www.postgresql.org/docs/current/server-shutdown.html
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
	// The lock is free when the server's children have ended too. After a crash that takes a moment.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	lock, err := lockFolder(ctx, s.run)
	if err != nil {
		return fmt.Errorf("stop PostgreSQL: %w", err)
	}
	defer lock.Close()
	return os.RemoveAll(s.run)
}

// settings returns our settings, overridden by the settings of cfg.
func settings(cfg Config) map[string]string {
	all := map[string]string{
		"listen_addresses": "",
		"port":             "5432",
		"max_connections":  "200",
		"shared_buffers":   "32MB",
	}
	if cfg.Dir == "" { // the data need not survive a crash of the machine
		all["fsync"] = "off"
		all["full_page_writes"] = "off"
		all["max_wal_size"] = "128MB" // it uses memory
	}
	maps.Copy(all, cfg.Settings)
	return all
}

// makeHome creates the folder of a kept server, and locks it.
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
		err := errors.Join(os.MkdirAll(s.home, 0o755), os.Chmod(varDir, 0o755), os.Chmod(s.home, 0o755)) // with any umask
		if err != nil {
			return err
		}
		progress(fmt.Sprintf("user %d, who runs PostgreSQL, cannot enter %s: the data is in %s", s.user.Uid, closed, s.home))
	}
	// If a process was just killed, its server needs a moment to end.
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

// makeData creates the data folder, or checks that an existing one has this major version.
func (s *Server) makeData(ctx context.Context, log *os.File, version int, cfg Config) error {
	// Data is created and deleted under another name, so that a crash never leaves half of it in the data folder.
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
		// initdb leaves nothing behind when it rejects a locale.
		if err = s.command(ctx, log, program, append(slices.Clone(args), choice...)...).Run(); err == nil {
			return os.Rename(half, data)
		}
	}
	return fmt.Errorf("%s: %w%s", program, cmp.Or(context.Cause(ctx), err), s.logTail())
}

// locales returns the options of initdb to try in order. They select byte order, with upper and lower case for all
// languages. PostgreSQL 17 has such a locale; older versions use the system's. If the system has none, as on some
// Macs, upper and lower know only ASCII, which does not affect the service.
func locales(version int) [][]string {
	if version >= 17 {
		return [][]string{{"--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"}}
	}
	return [][]string{{"--locale=C.UTF-8"}, {"--locale=C"}}
}

// launch starts the server, and waits until it accepts connections.
func (s *Server) launch(ctx context.Context, log *os.File) error {
	args := []string{"-D", s.data()}
	for name, value := range s.settings {
		args = append(args, "-c", name+"="+value)
	}
	args = append(args, "-c", "unix_socket_directories="+s.run) // last, so that it overrides Settings
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

// ready reports whether the server accepts connections. Like pg_ctl it reads line 8 of postmaster.pid. It also
// compares line 5, the socket's folder, to detect the file of an older server: in a container the pid can be the
// same.
func (s *Server) ready() bool {
	lines := s.postmaster()
	return len(lines) > 7 && lines[4] == s.run && strings.TrimSpace(lines[7]) == "ready"
}

// postmaster returns the lines of postmaster.pid. The first is the server's pid, or "" without the file.
func (s *Server) postmaster() []string {
	b, _ := os.ReadFile(filepath.Join(s.data(), "postmaster.pid"))
	return strings.Split(string(b), "\n")
}

func (s *Server) data() string { return filepath.Join(s.home, "data") }

// logTail returns the end of the log, to be appended to an error.
func (s *Server) logTail() string {
	b, _ := os.ReadFile(s.Log())
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return "; its log ends:\n\t" + strings.Join(lines[max(0, len(lines)-10):], "\n\t")
}
