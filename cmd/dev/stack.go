package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/jackc/pgx/v5"

	"example.com/servicekit/localbroker"
	"example.com/servicekit/localpg"
	"example.com/servicekit/pubsublocal"
	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/localtopics"
	"example.com/videocatalog/internal/names"
)

// Time limits, for a machine that is also busy with other work.
const (
	connectTimeout = 10 * time.Second // until a server responds
	readyTimeout   = time.Minute      // from the start of the server
	stopTimeout    = 15 * time.Second // the server promises 10 s
)

// databaseName is the name of the database in our own PostgreSQL.
const databaseName = "service"

// errInUse means that another cmd/dev runs with the state folder.
var errInUse = errors.New("cmd/dev runs already")

// stack is the running system.
type stack struct {
	options
	screen *screen
	killed context.Context //nolint:containedctx // ends the patience of stop

	root     string       // folder of the module
	held     net.Listener // reserves the port until the server takes it
	addr     string       // the server's address, on the loopback interface
	database string       // URL
	conn     *pgx.Conn    // to database
	pubsub   string       // address, for PUBSUB_EMULATOR_HOST
	project  string
	private  string // address of the server's private port
	console  string // address of the console // only console
	server   *child
	watchers [][2]string // programs beside it: name, URL

	closers []func() error // of started parts, in order
}

// start starts everything. The returned context ends with ctx, and when the
// server ends, with the reason as its cause. The caller must call stop, even
// after an error.
func (s *stack) start(ctx context.Context) (context.Context, error) {
	s.screen.print(s.screen.paint(bold, names.Service()) + " starts on this machine.")
	running := ctx
	for _, step := range []func(context.Context) error{
		s.findModule, s.openState, s.holdPort, s.openDatabase, s.openPubSub, s.migrate, s.build, s.openPrivatePort,
		s.openConsolePort, // only console
		func(ctx context.Context) (err error) {
			running, err = s.serve(ctx)
			return err
		},
		s.awaitServer,
		s.startConsole,    // only console
		s.startPrometheus, // only observe
		s.announce,        // only full
	} {
		if err := step(running); err != nil {
			return running, err
		}
	}
	return running, nil
}

// stop stops the started parts in reverse order.
func (s *stack) stop() (err error) {
	s.screen.begin("stopping")
	for _, closer := range slices.Backward(s.closers) {
		err = errors.Join(err, closer())
	}
	s.screen.update("")
	if s.server != nil {
		s.screen.print("Stopped.")
	}
	return err
}

func (s *stack) atStop(closer func() error) { s.closers = append(s.closers, closer) }

// findModule sets root to the folder of the module, from any folder inside it.
func (s *stack) findModule(ctx context.Context) error {
	out, err := output(command(ctx, syscall.SIGKILL, time.Second, "go", "env", "GOMOD"))
	if err != nil {
		return fmt.Errorf("go env: %w%s: put a working go on PATH", err, out)
	}
	s.root = filepath.Dir(out)
	if _, err := os.Stat(filepath.Join(s.root, "cmd", "server")); err != nil {
		return errors.New("there is no cmd/server in the module of this folder: change into a clone of " + names.Service())
	}
	if s.state == "" {
		s.state = filepath.Join(s.root, ".local")
	}
	s.state, err = filepath.Abs(s.state)
	return err
}

// openState creates the state folder and locks it. The kernel frees the lock
// when we die.
func (s *stack) openState(context.Context) error {
	const readableByAll = 0o755 // for root, PostgreSQL runs as another user
	err := os.MkdirAll(filepath.Join(s.state, "bin"), readableByAll)
	var lock *os.File
	if err == nil {
		lock, err = os.OpenFile(filepath.Join(s.state, "lock"), os.O_RDWR|os.O_CREATE, 0o644) //nolint:gosec // in the folder the user has chosen
	}
	if err != nil {
		return fmt.Errorf("%w: choose a folder of your own with --state DIR", err)
	}
	s.atStop(lock.Close)
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return fmt.Errorf("lock %s: %w: choose another folder with --state DIR", s.state, err)
		}
		pid, _ := io.ReadAll(lock) // only for the message
		return fmt.Errorf("%w with the folder %s (pid %s): stop that one, or choose another folder with --state DIR and another PORT", errInUse, s.state, pid)
	}
	// only full: begin
	if err := os.Remove(s.placeFile()); err != nil && !errors.Is(err, os.ErrNotExist) { // left by a stack that was killed
		return err
	}
	// only full: end
	_ = lock.Truncate(0) // only for the message
	_, _ = lock.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0)
	return nil
}

// listenAddr returns where the server and Pub/Sub listen.
func (s *stack) listenAddr(port int) string {
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

// holdPort reserves the port until the server takes it.
func (s *stack) holdPort(ctx context.Context) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.listenAddr(s.port))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("port %d is in use: stop what listens there, or choose another one: PORT=%d go run ./cmd/dev", s.port, s.port+1)
	case err != nil:
		return fmt.Errorf("port %d: %w: choose another one: PORT=8080 go run ./cmd/dev", s.port, err)
	}
	s.atStop(func() error {
		_ = listener.Close() // it may already be closed for the server
		return nil
	})
	s.held = listener
	s.addr = loopback(listener.Addr().String())
	return nil
}

// openDatabase connects to PostgreSQL. If DATABASE_URL is not set, it starts
// PostgreSQL first.
func (s *stack) openDatabase(ctx context.Context) error {
	s.screen.begin("starting PostgreSQL")
	where := "at DATABASE_URL"
	s.database = s.getenv("DATABASE_URL")
	if s.database == "" {
		dir := filepath.Join(s.state, "postgres")
		server, err := localpg.Start(ctx, localpg.Config{Dir: dir, Fresh: s.fresh, Progress: func(message string) {
			s.screen.warn(yellow, message)
		}})
		if err != nil {
			return s.explainPostgres(err)
		}
		s.atStop(server.Stop)
		where = "in " + s.short(filepath.Dir(server.Log())) // for root possibly not in dir
		s.database = server.DSN(databaseName)
		if err := createDatabase(ctx, server.DSN("postgres")); err != nil {
			return err
		}
	}
	if err := s.connect(ctx); err != nil {
		return err
	}
	version, _, _ := strings.Cut(s.conn.PgConn().ParameterStatus("server_version"), " ")
	s.screen.done("PostgreSQL", version+" "+where)
	return nil
}

// connect connects to the database.
func (s *stack) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	var err error
	if s.conn, err = pgx.Connect(ctx, s.database); err != nil {
		if refused, ok := errors.AsType[*net.OpError](err); ok {
			err = refused // omits the attempts with and without TLS
		}
		return fmt.Errorf("DATABASE_URL: %s: start that server, or unset DATABASE_URL to have one started here", oneLine(err))
	}
	s.atStop(func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = s.conn.Close(ctx) // no query is in flight
		return nil
	})
	return nil
}

// createDatabase creates our database if it does not exist.
func createDatabase(ctx context.Context, dsn string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer conn.Close(ctx)
	var exists bool
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM pg_database WHERE datname = $1)", databaseName).Scan(&exists); err != nil {
		return fmt.Errorf("look for database %s: %w", databaseName, err)
	}
	if exists {
		return nil
	}
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+databaseName); err != nil {
		return fmt.Errorf("create database %s: %w", databaseName, err)
	}
	return nil
}

// explainPostgres turns an error of localpg into one sentence with its remedy,
// followed by PostgreSQL's own messages.
func (s *stack) explainPostgres(err error) error {
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

// openPubSub connects to Pub/Sub and creates topics and subscriptions. If
// PUBSUB_EMULATOR_HOST is not set, it starts Pub/Sub first.
func (s *stack) openPubSub(ctx context.Context) error {
	s.screen.begin("starting Pub/Sub")
	if s.project = s.getenv("PUBSUB_PROJECT"); s.project == "" {
		s.project = "local"
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	var client *pubsub.Client
	var err error
	where := "at PUBSUB_EMULATOR_HOST"
	if s.pubsub = s.getenv("PUBSUB_EMULATOR_HOST"); s.pubsub != "" {
		client, err = pubsub.NewClient(ctx, s.project) // it reads PUBSUB_EMULATOR_HOST
	} else {
		where = "in this process"
		var server *pubsublocal.Server
		cfg := pubsublocal.Config{Addr: s.listenAddr(0), DataDir: filepath.Join(s.state, "pubsub")}
		if s.allowed != "" {
			cfg.AllowedHosts = strings.Split(s.allowed, ",")
		}
		if server, err = pubsublocal.Start(cfg); err != nil {
			return fmt.Errorf("start Pub/Sub: %w", err)
		}
		s.atStop(server.Close)
		s.pubsub = loopback(server.Addr())
		client, err = server.Client(ctx, s.project)
	}
	if err != nil {
		return fmt.Errorf("open Pub/Sub: %w", err)
	}
	defer client.Close()
	if err := localtopics.Create(ctx, client, localbroker.Resources{}); err != nil {
		return fmt.Errorf("%s: start the Pub/Sub at %s, or unset PUBSUB_EMULATOR_HOST to have one started here", oneLine(err), s.pubsub)
	}
	s.screen.done("Pub/Sub", where)
	return nil
}

// migrate applies the migrations that are missing.
func (s *stack) migrate(ctx context.Context) error {
	s.screen.begin("migrating the schema")
	n, err := db.Migrate(ctx, s.database, slog.New(slog.DiscardHandler))
	if err != nil {
		remedy := "start again with --fresh, or choose another folder with --state DIR"
		if s.getenv("DATABASE_URL") != "" {
			remedy = "let DATABASE_URL name a database that is empty or ours"
		}
		return fmt.Errorf("%s: %s", oneLine(err), remedy)
	}
	s.screen.done("schema", fmt.Sprintf("version %d, %d migrations run", db.Version(), n))
	return nil
}

// build builds the server. It leaves out the version control state, because git
// refuses to read a clone of another user.
func (s *stack) build(ctx context.Context) error {
	s.screen.begin("building cmd/server")
	cmd := command(ctx, syscall.SIGINT, connectTimeout, "go", "build", "-buildvcs=false", "-o", s.binary(), "./cmd/server")
	cmd.Dir = s.root
	if out, err := output(cmd); err != nil {
		return fmt.Errorf("build cmd/server: %w\n%s", err, out)
	}
	s.screen.done("build", s.short(s.binary()))
	return nil
}

func (s *stack) binary() string { return filepath.Join(s.state, "bin", "server") }
func (s *stack) log() string    { return filepath.Join(s.state, "server.log") }

// environment returns the server's environment: ours, with our own settings
// added. AUTH is off, so the server listens on the loopback interface only, unless
// ALLOWED_HOSTS is set.
func (s *stack) environment() []string {
	_, port, _ := net.SplitHostPort(s.addr)
	environ := slices.DeleteFunc(slices.Clone(s.environ), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return strings.HasSuffix(name, "_DATABASE_URL") // of one side only: it would win over DATABASE_URL
	})
	return append(environ,
		"TELEMETRY_ADDR="+s.private,
		"PORT="+port,
		"ENVIRONMENT=development", "AUTH=off", "AUTH_POLICY_FILE=", "ALLOWED_HOSTS="+s.allowed,
		"DATABASE_URL="+s.database,
		"PUBSUB_EMULATOR_HOST="+s.pubsub, "PUBSUB_ENDPOINT=", "PUBSUB_PROJECT="+s.project)
}

// serve starts the server, and returns a context that ends when the server
// ends.
func (s *stack) serve(ctx context.Context) (context.Context, error) {
	s.screen.begin("starting the server")
	log, err := newServerLog(s.log(), s.screen)
	if err != nil {
		return ctx, fmt.Errorf("%w: choose another folder with --state DIR", err)
	}
	s.atStop(log.file.Close)
	// The server ends in stop, not with ctx at Ctrl-C.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	cmd := command(life, syscall.SIGTERM, stopTimeout, s.binary())
	cmd.Dir, cmd.Env = s.root, s.environment()
	cmd.Stdout, cmd.Stderr = log, log
	if err := s.held.Close(); err != nil {
		end()
		return ctx, fmt.Errorf("free port for the server: %w", err)
	}
	if s.server, err = startChild(cmd, end); err != nil {
		return ctx, fmt.Errorf("start server: %w", err)
	}
	running, ended := context.WithCancelCause(ctx)
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		<-s.server.done
		ended(fmt.Errorf("the server ended by itself (%s); its log, %s, ends:%s", s.server.cmd.ProcessState, s.short(s.log()), tail(s.log())))
	}()
	s.atStop(func() error {
		err := s.server.stop(s.killed)
		<-watching
		switch {
		case err == nil:
			return nil
		case s.killed.Err() != nil:
			return errors.New("the server was killed before it had finished")
		}
		return fmt.Errorf("the server did not end well (%w): find the reason in %s", err, s.short(s.log()))
	})
	return running, nil
}

// awaitServer waits until the server is ready.
func (s *stack) awaitServer(ctx context.Context) error {
	if err := awaitReady(ctx, "http://"+s.addr+"/health/ready", readyTimeout); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("the server %w: find the reason in %s", err, s.short(s.log()))
	}
	s.screen.done("server", "ready, pid "+strconv.Itoa(s.server.cmd.Process.Pid))
	return nil
}

func awaitReady(ctx context.Context, address string, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	last := "no answer"
	for {
		problem := probe(ctx, address)
		if problem == "" {
			return nil
		}
		if ctx.Err() == nil { // otherwise the timeout is the problem
			last = problem
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("is not ready after %s (%s)", patience, last)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// probe returns why a health check fails, or "" if it succeeds.
func probe(ctx context.Context, address string) string {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return err.Error()
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		if failed, ok := errors.AsType[*url.Error](err); ok {
			err = failed.Err // omits the address, which is known
		}
		return err.Error()
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return response.Status
	}
	return ""
}

// short returns a path relative to the working directory, if that is shorter to
// read.
func (s *stack) short(path string) string {
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
