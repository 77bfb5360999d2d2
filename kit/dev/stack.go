package dev

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"example.com/servicekit/localbroker"
	"example.com/servicekit/localpg"
	"example.com/servicekit/pubsublocal"
)

// Time limits, for a machine that is also busy with other work.
const (
	connectTimeout = 10 * time.Second // until a server responds
	readyTimeout   = time.Minute      // from the start of a program
	stopTimeout    = 15 * time.Second // the server promises 10 s
)

// exitUsage is the exit code of the server if a setting is wrong, and nothing was done.
const exitUsage = 2

// databaseName is the name of the database in our own PostgreSQL.
const databaseName = "service"

// Stack is the running system. A part only reads its fields.
type Stack struct {
	Root     string // folder of the module
	State    string // folder that keeps the data and the logs
	Server   string // path of the server's program
	Private  string // address of the server's private port
	Database string // URL
	Fresh    bool   // start with empty data

	options
	config Config
	screen *screen
	killed context.Context         //nolint:containedctx // when it ends, stop kills the programs
	end    context.CancelCauseFunc // ends the context that start returns

	held     net.Listener // reserves the port until the server takes it
	addr     string       // the server's address, on the loopback interface
	pubsub   string       // address, for PUBSUB_EMULATOR_HOST
	project  string
	settings []string       // see Set
	rows     [][2]string    // of the parts, for the screen
	closers  []func() error // of started parts, in order
}

// start starts everything. The returned context ends with ctx, and when a program ends, with the reason as its
// cause. The caller must call stop, even after an error.
func (s *Stack) start(ctx context.Context) (context.Context, error) {
	ctx, s.end = context.WithCancelCause(ctx)
	s.screen.print(s.screen.paint(bold, s.config.Name) + " starts on this machine.")
	steps := []func(context.Context) error{
		s.findModule, s.openState, s.holdPort, s.openDatabase, s.openPubSub, s.each(func(p Part) step { return p.Before }), s.build, s.writeEnv,
		s.migrate, s.each(func(p Part) step { return p.Prepare }), s.serve, s.explore, s.each(func(p Part) step { return p.Start }),
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return ctx, cmp.Or(context.Cause(ctx), err)
		}
	}
	return ctx, nil
}

// stop calls the closers in reverse order.
func (s *Stack) stop() (err error) {
	s.screen.begin("stopping")
	for _, closer := range slices.Backward(s.closers) {
		err = errors.Join(err, closer())
	}
	s.screen.update("")
	if s.Server != "" {
		s.screen.print("Stopped.")
	}
	return err
}

type step = func(context.Context, *Stack) error

// each returns a function that does a step of every part that has it.
func (s *Stack) each(of func(Part) step) func(context.Context) error {
	return func(ctx context.Context) (err error) {
		for _, part := range s.parts {
			if do := of(part); do != nil && err == nil {
				err = do(ctx, s)
			}
		}
		return err
	}
}

// Set adds settings of the server, as NAME=VALUE. Call it in Before or Prepare of a part.
func (s *Stack) Set(settings ...string) { s.settings = append(s.settings, settings...) }

// AtStop calls a function when the stack stops. The last call comes first.
func (s *Stack) AtStop(closer func() error) { s.closers = append(s.closers, closer) }

// Show adds a line to the screen.
func (s *Stack) Show(name, value string) { s.rows = append(s.rows, [2]string{name, value}) }

// findModule finds the folder of the module, from any folder inside it.
func (s *Stack) findModule(ctx context.Context) error {
	out, err := output(command(ctx, syscall.SIGKILL, time.Second, "go", "env", "GOMOD"))
	if err != nil {
		return fmt.Errorf("go env: %w%s: put a working go on PATH", err, out)
	}
	s.Root = filepath.Dir(out)
	if _, err := os.Stat(filepath.Join(s.Root, s.config.Server)); err != nil {
		return fmt.Errorf("there is no %s in the module of this folder: change into a clone of %s", s.config.Server, s.config.Name)
	}
	s.State, err = filepath.Abs(cmp.Or(s.state, filepath.Join(s.Root, ".local")))
	return err
}

// openState creates the state folder and locks it. The kernel frees the lock when we die.
func (s *Stack) openState(context.Context) error {
	const readableByAll = 0o755 // for root, PostgreSQL runs as another user
	err := os.MkdirAll(filepath.Join(s.State, "bin"), readableByAll)
	var lock *os.File
	if err == nil {
		lock, err = os.OpenFile(filepath.Join(s.State, "lock"), os.O_RDWR|os.O_CREATE, 0o644) //nolint:gosec // in the folder the user has chosen
	}
	if err != nil {
		return fmt.Errorf("%w: choose a folder of your own with --state DIR", err)
	}
	s.AtStop(lock.Close)
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return fmt.Errorf("lock %s: %w: choose another folder with --state DIR", s.State, err)
		}
		pid, _ := io.ReadAll(lock) // for the message below
		return fmt.Errorf("cmd/dev runs already with the folder %s (pid %s): stop that one, or choose another folder with --state DIR and another PORT", s.State, pid)
	}
	_ = lock.Truncate(0) // for that message
	_, _ = lock.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0)
	return nil
}

// listenAddr returns where the server and Pub/Sub listen.
func (s *Stack) listenAddr(port int) string {
	if s.allowed != "" {
		return ":" + strconv.Itoa(port)
	}
	return "127.0.0.1:" + strconv.Itoa(port)
}

// loopback returns a listener's address on the loopback interface.
func loopback(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return net.JoinHostPort("127.0.0.1", port)
}

// holdPort reserves the port until the server takes it, and chooses the private one.
func (s *Stack) holdPort(ctx context.Context) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.listenAddr(s.port))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("port %d is in use: stop what listens there, or choose another one: PORT=%d go run ./cmd/dev", s.port, s.port+1)
	case err != nil:
		return fmt.Errorf("port %d: %w: choose another one: PORT=8080 go run ./cmd/dev", s.port, err)
	}
	s.AtStop(func() error {
		_ = listener.Close() // it may already be closed for the server
		return nil
	})
	s.held = listener
	s.addr = loopback(listener.Addr().String())
	s.Private, err = FreeAddr(ctx)
	return err
}

// FreeAddr returns a free TCP address of this machine.
func FreeAddr(ctx context.Context) (string, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}

// openDatabase finds PostgreSQL at DATABASE_URL. If that is not set, it starts PostgreSQL.
func (s *Stack) openDatabase(ctx context.Context) error {
	s.screen.begin("starting PostgreSQL")
	where := "at DATABASE_URL"
	if s.Database = s.getenv("DATABASE_URL"); s.Database == "" {
		server, err := localpg.Start(ctx, localpg.Config{Dir: filepath.Join(s.State, "postgres"), Fresh: s.fresh, Progress: func(message string) {
			s.screen.warn(yellow, message)
		}})
		if err != nil {
			return s.explainPostgres(err)
		}
		s.environ = os.Environ() // without the variables that Start has removed
		s.watch("PostgreSQL", server.Log(), server.Done(), server.State, server.Stop)
		where = "in " + s.short(filepath.Dir(server.Log())) // for root possibly not in State
		s.Database = server.DSN(databaseName)
		if err := createDatabase(ctx, server.DSN("postgres")); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.Database)
	if err != nil {
		if refused, ok := errors.AsType[*net.OpError](err); ok {
			err = refused // omits the attempts with and without TLS
		}
		return fmt.Errorf("DATABASE_URL: %s: start that server, or unset DATABASE_URL to have one started here", oneLine(err))
	}
	defer conn.Close(ctx)
	version, _, _ := strings.Cut(conn.PgConn().ParameterStatus("server_version"), " ")
	s.screen.done("PostgreSQL", version+" "+where)
	return nil
}

// createDatabase creates our database if it does not exist.
func createDatabase(ctx context.Context, dsn string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer conn.Close(ctx)
	const duplicate = "42P04"
	_, err = conn.Exec(ctx, "CREATE DATABASE "+databaseName)
	if refused, ok := errors.AsType[*pgconn.PgError](err); err != nil && !(ok && refused.Code == duplicate) {
		return fmt.Errorf("create database %s: %w", databaseName, err)
	}
	return nil
}

// explainPostgres turns an error of localpg into one sentence with its remedy, followed by PostgreSQL's own messages.
func (s *Stack) explainPostgres(err error) error {
	sentence, details, _ := strings.Cut(err.Error(), "\n")
	if errors.Is(err, localpg.ErrNotFound) {
		return errors.New(sentence) // it already has a remedy
	}
	sentence = strings.TrimSuffix(sentence, "; its log ends:")
	details, _, unusable := strings.Cut(details, "to delete the data in ")
	remedy := "choose another folder with --state DIR, or set DATABASE_URL to a server of your own"
	switch {
	case unusable:
		remedy = "start again with --fresh, which deletes the data, or choose another folder with --state DIR"
	case s.getenv("POSTGRES_BIN_DIR") != "":
		remedy = "set POSTGRES_BIN_DIR to the folder of PostgreSQL's programs, or unset it, or set DATABASE_URL to a server of your own"
	}
	return errors.New(strings.TrimRight(sentence+": "+remedy+"\n"+details, "\n"))
}

// openPubSub connects to Pub/Sub and creates topics and subscriptions. If PUBSUB_EMULATOR_HOST is not set, it starts
// Pub/Sub first.
func (s *Stack) openPubSub(ctx context.Context) error {
	s.screen.begin("starting Pub/Sub")
	s.project = cmp.Or(s.getenv("PUBSUB_PROJECT"), "local")
	topics, err := s.config.Topics()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	var client *pubsub.Client
	where, remedy := "in this process", "start again with --fresh, or make the schema compatible"
	if s.pubsub = s.getenv("PUBSUB_EMULATOR_HOST"); s.pubsub != "" {
		where, remedy = "at PUBSUB_EMULATOR_HOST", "start the Pub/Sub at "+s.pubsub+", or unset PUBSUB_EMULATOR_HOST to have one started here"
		client, err = pubsub.NewClient(ctx, s.project) // it reads PUBSUB_EMULATOR_HOST
	} else {
		cfg := pubsublocal.Config{Addr: s.listenAddr(0), File: filepath.Join(s.State, "pubsub.data")}
		if s.fresh {
			remedy = "make the schema compatible"
			if err := os.RemoveAll(cfg.File); err != nil {
				return fmt.Errorf("delete the data of Pub/Sub: %w", err)
			}
		}
		server, startErr := pubsublocal.Start(cfg)
		if startErr != nil {
			return fmt.Errorf("start Pub/Sub: %w, or start again with --fresh", startErr)
		}
		s.AtStop(server.Close)
		s.pubsub = loopback(server.Addr())
		client, err = server.Client(ctx, s.project)
	}
	if err != nil {
		return fmt.Errorf("open Pub/Sub: %w", err)
	}
	defer client.Close()
	if err := (localbroker.Resources{}).Create(ctx, client, topics...); err != nil {
		return fmt.Errorf("%s: %s", oneLine(err), remedy)
	}
	s.screen.done("Pub/Sub", where)
	return nil
}

// build builds the server. It leaves out the version control state, because git refuses to read a clone of another
// user.
func (s *Stack) build(ctx context.Context) error {
	s.screen.begin("building " + s.config.Server)
	s.Server = filepath.Join(s.State, "bin", "server")
	cmd := command(ctx, syscall.SIGINT, connectTimeout, "go", "build", "-buildvcs=false", "-o", s.Server, s.config.Server)
	cmd.Dir = s.Root
	if out, err := output(cmd); err != nil {
		return fmt.Errorf("build %s: %w\n%s", s.config.Server, err, out)
	}
	s.screen.done("build", s.short(s.Server))
	return nil
}

// writeEnv writes the settings of the server's commands into a file that a shell can read. As in Environment, a setting
// of one side does not override DATABASE_URL.
func (s *Stack) writeEnv(context.Context) error {
	text := fmt.Sprintf("export READ_DATABASE_URL= DATABASE_URL='%s' PUBSUB_ENDPOINT= PUBSUB_EMULATOR_HOST='%s' PUBSUB_PROJECT='%s' %s\n",
		strings.ReplaceAll(s.Database, "'", `'\''`), s.pubsub, s.project, strings.Join(s.settings, " "))
	return os.WriteFile(filepath.Join(s.State, "env"), []byte(text), 0o600)
}

// migrate applies the migrations that are missing. The last line of the command is for the screen.
func (s *Stack) migrate(ctx context.Context) error {
	s.screen.begin("migrating the schema")
	cmd := command(ctx, syscall.SIGTERM, connectTimeout, s.Server, "migrate")
	cmd.Dir, cmd.Env = s.Root, s.Environment()
	out, err := output(cmd)
	last := out[strings.LastIndex(out, "\n")+1:]
	if cmd.ProcessState.ExitCode() == exitUsage {
		return fmt.Errorf("migrate: %s", out)
	}
	if err != nil {
		remedy := "start again with --fresh, or choose another folder with --state DIR"
		if s.getenv("DATABASE_URL") != "" {
			remedy = "let DATABASE_URL name a database that is empty or ours"
		}
		return fmt.Errorf("migrate: %s (%w): %s", last, err, remedy)
	}
	s.screen.done("migrate", last)
	return nil
}

// Environment returns the environment of this process, with the settings of the stack, for the server. AUTH is off, so the server
// listens on the loopback interface only, unless ALLOWED_HOSTS is set.
func (s *Stack) Environment() []string {
	_, port, _ := net.SplitHostPort(s.addr)
	environ := slices.DeleteFunc(slices.Clone(s.environ), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return strings.HasSuffix(name, "_DATABASE_URL") // of one side only: it overrides DATABASE_URL
	})
	environ = append(environ,
		"TELEMETRY_ADDR="+s.Private,
		"PORT="+port,
		"AUTH=off", "AUTH_POLICY_FILE=", "ALLOWED_HOSTS="+s.allowed,
		"DATABASE_URL="+s.Database,
		"PUBSUB_EMULATOR_HOST="+s.pubsub, "PUBSUB_ENDPOINT=", "PUBSUB_PROJECT="+s.project)
	return append(environ, s.settings...) // the last ones count
}

// serve starts the server.
func (s *Stack) serve(ctx context.Context) error {
	if err := s.held.Close(); err != nil {
		return fmt.Errorf("free port for the server: %w", err)
	}
	return s.Run(ctx, Program{Name: "server", Path: s.Server, Env: s.Environment(), Ready: "http://" + s.addr + "/health/ready"})
}

// short returns a path relative to the working directory, if that is shorter to read.
func (s *Stack) short(path string) string {
	here, err := os.Getwd()
	if err != nil {
		return path
	}
	if rel, err := filepath.Rel(here, path); err == nil && !strings.HasPrefix(rel, "../..") {
		return rel
	}
	return path
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
