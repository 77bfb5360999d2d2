package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/servicekit/localpg"
	"example.com/servicekit/pubsublocal"
)

const project = "local"

// stack is PostgreSQL, Pub/Sub and the three services.
type stack struct {
	dir           string
	history       *history
	broker        *pubsublocal.Server
	subscriptions []string // full names, of the services
	relay         net.Listener
	processes     map[string]*process
	consoles      []*process
	lastPort      int        // see freeAddr
	failed        chan error // of a process that ended by itself

	mu       sync.Mutex
	postgres *localpg.Server       // guarded by mu
	links    map[net.Conn]struct{} // guarded by mu: of services with PostgreSQL
}

// start starts everything, with empty data. After an error nothing is left.
func start(ctx context.Context, o options) (_ *stack, err error) {
	s := &stack{
		dir: o.dir, processes: make(map[string]*process), links: make(map[net.Conn]struct{}), failed: make(chan error, len(services)),
		lastPort: 15_000 + rand.IntN(15_000), // another saga on this machine begins elsewhere
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	if s.history, err = newHistory(ctx, o.dir); err != nil {
		return nil, err
	}
	if s.broker, err = pubsublocal.Start(pubsublocal.Config{Observer: s.history.observe}); err != nil {
		return nil, err
	}
	if err := s.createTopics(ctx); err != nil {
		return nil, err
	}
	if err := s.startPostgres(ctx, true); err != nil {
		return nil, err
	}
	if s.relay, err = new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	go s.relayAll()
	for _, name := range services {
		p, err := s.prepare(ctx, name)
		if err == nil {
			s.processes[name], err = p, p.start()
		}
		if err == nil && o.console {
			err = s.startConsole(ctx, p)
		}
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// watch returns an error when a service ends by itself.
func (s *stack) watch(ctx context.Context) error {
	select {
	case err := <-s.failed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stop ends everything.
func (s *stack) stop() error {
	var err error
	for _, p := range s.consoles {
		p.end(syscall.SIGTERM)
	}
	for _, p := range s.processes {
		p.end(syscall.SIGTERM)
	}
	if s.relay != nil {
		err = errors.Join(err, s.relay.Close())
	}
	s.cutLinks()
	if server := s.server(); server != nil {
		err = errors.Join(err, server.Stop())
	}
	if s.broker != nil {
		err = errors.Join(err, s.broker.Close())
	}
	return err
}

// startPostgres starts PostgreSQL, with the existing data, or without data if isNew.
func (s *stack) startPostgres(ctx context.Context, isNew bool) error {
	server, err := localpg.Start(ctx, localpg.Config{Dir: filepath.Join(s.dir, "postgres"), Fresh: isNew})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.postgres = server
	return nil
}

func (s *stack) server() *localpg.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.postgres
}

// relayAll gives the services an address of PostgreSQL that stays the same when PostgreSQL is restarted.
func (s *stack) relayAll() {
	for {
		conn, err := s.relay.Accept()
		if err != nil {
			return // closed
		}
		go s.relayOne(conn)
	}
}

func (s *stack) relayOne(conn net.Conn) {
	defer conn.Close()
	dsn, err := url.Parse(s.server().DSN("postgres"))
	if err != nil {
		return // cannot happen: it is a URL
	}
	socket := filepath.Join(dsn.Query().Get("host"), ".s.PGSQL."+dsn.Query().Get("port"))
	postgres, err := net.Dial("unix", socket) //nolint:noctx // ends at once
	if err != nil {
		return // it is down, and the service tries again
	}
	defer postgres.Close()
	s.mu.Lock()
	s.links[conn] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.links, conn)
	}()
	go func() {
		_, _ = io.Copy(conn, postgres) // ends with either connection
		_ = conn.Close()
	}()
	_, _ = io.Copy(postgres, conn) // the same
}

// cutLinks ends all connections of services with PostgreSQL.
func (s *stack) cutLinks() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.links {
		_ = conn.Close() // its end is what is wanted
	}
}

// createTopics creates the topics and subscriptions that the services name.
func (s *stack) createTopics(ctx context.Context) error {
	client, err := s.broker.Client(ctx, project)
	if err != nil {
		return err
	}
	defer client.Close()
	var subscriptions []string
	for _, name := range services {
		script, err := os.ReadFile(filepath.Join(s.dir, name, "deploy", "names.sh")) //nolint:gosec // of a service
		if err != nil {
			return err
		}
		for _, topic := range list(script, "TOPICS") {
			if _, err := client.TopicAdminClient.CreateTopic(ctx, &pubsubpb.Topic{Name: of("topics", topic)}); err != nil {
				return fmt.Errorf("create topic %s: %w", topic, err)
			}
		}
		subscriptions = append(subscriptions, list(script, "SUBSCRIPTIONS")...)
	}
	for _, name := range subscriptions { // another service may own the topic
		if err := s.subscribe(ctx, client, name); err != nil {
			return err
		}
	}
	return nil
}

// list returns the values of an array in a service's deploy/names.sh.
func list(script []byte, variable string) []string {
	found := regexp.MustCompile(`(?m)^` + variable + `=\((.*?)\)`).FindSubmatch(script)
	if found == nil {
		return nil
	}
	return strings.Fields(string(found[1]))
}

func of(kind, name string) string { return "projects/" + project + "/" + kind + "/" + name }

// subscribe creates a subscription, whose name is TOPIC.CONSUMER, and its dead-letter topic.
func (s *stack) subscribe(ctx context.Context, client *pubsub.Client, name string) error {
	if _, err := client.TopicAdminClient.CreateTopic(ctx, &pubsubpb.Topic{Name: of("topics", name+".dead")}); err != nil {
		return fmt.Errorf("create topic %s.dead: %w", name, err)
	}
	if _, err := client.SubscriptionAdminClient.CreateSubscription(ctx, &pubsubpb.Subscription{
		Name: of("subscriptions", name), Topic: of("topics", name[:strings.LastIndexByte(name, '.')]), EnableMessageOrdering: true, AckDeadlineSeconds: 10,
		RetryPolicy:      &pubsubpb.RetryPolicy{MinimumBackoff: durationpb.New(100 * time.Millisecond), MaximumBackoff: durationpb.New(time.Second)},
		DeadLetterPolicy: &pubsubpb.DeadLetterPolicy{DeadLetterTopic: of("topics", name+".dead"), MaxDeliveryAttempts: 100},
	}); err != nil {
		return fmt.Errorf("create subscription %s: %w", name, err)
	}
	s.subscriptions = append(s.subscriptions, of("subscriptions", name))
	return nil
}

// process is a service that may be killed and started again, or a console.
type process struct {
	program string
	args    []string
	environ []string
	url     string // of its API, or its page
	private string // the address of its metrics
	log     string
	failed  chan<- error

	mu     sync.Mutex
	cmd    *exec.Cmd     // guarded by mu
	done   chan struct{} // guarded by mu: closed when it has ended
	ending *atomic.Bool  // guarded by mu: whether it was told to end
}

// prepare migrates the schemas of a service, and creates a user for each of its sides.
func (s *stack) prepare(ctx context.Context, name string) (*process, error) {
	api, err := s.freeAddr(ctx)
	if err != nil {
		return nil, err
	}
	private, err := s.freeAddr(ctx)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(s.dir, name)
	migrate := exec.CommandContext(ctx, filepath.Join(dir, "server"), "migrate") //nolint:gosec // the service
	migrate.Env = append(os.Environ(), "DATABASE_URL="+s.server().DSN("postgres"))
	if out, err := migrate.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("migrate %s: %w\n%s", name, err, out)
	}
	conn, err := pgx.Connect(ctx, s.server().DSN("postgres"))
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, side := range []string{"", "_read"} {
		user := fmt.Sprintf("CREATE ROLE %[1]s%[2]s_app LOGIN IN ROLE %[1]s_db%[2]s_rw", name, side)
		if _, err := conn.Exec(ctx, user); err != nil {
			return nil, fmt.Errorf("%s: %w", user, err)
		}
	}
	dsn := func(side string) string {
		return fmt.Sprintf("postgres://%s%s_app@%s/postgres?sslmode=disable", name, side, s.relay.Addr())
	}
	_, port, _ := net.SplitHostPort(api)
	return &process{
		failed: s.failed, program: filepath.Join(dir, "server"), log: filepath.Join(s.dir, name+".log"), url: "http://" + api, private: private,
		environ: append(os.Environ(),
			"PORT="+port, "TELEMETRY_ADDR="+private, "AUTH=off",
			"DATABASE_URL="+dsn(""), "READ_DATABASE_URL="+dsn("_read"), "PUBSUB_PROJECT="+project, "PUBSUB_EMULATOR_HOST="+s.broker.Addr()),
	}, nil
}

// startConsole starts the console of a service. The console has the rights of the service.
func (s *stack) startConsole(ctx context.Context, of *process) error {
	addr, err := s.freeAddr(ctx)
	if err != nil {
		return err
	}
	p := &process{
		failed: s.failed, program: of.program, args: []string{"console", "--addr", addr},
		environ: of.environ, url: "http://" + addr, log: of.log,
	}
	s.consoles = append(s.consoles, p)
	return p.start()
}

// freeAddr returns an address of this machine that nobody uses, and that it has not returned before. The ports
// are below those that an operating system gives to connections. So no connection takes a port before its
// process listens, or while its process is down.
func (s *stack) freeAddr(ctx context.Context) (string, error) {
	for {
		s.lastPort++
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(s.lastPort))
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return "", err
		}
		return addr, listener.Close()
	}
}

func (p *process) start() error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(p.program, p.args...) //nolint:gosec,noctx // the service, which end ends
	cmd.Env, cmd.Stdout, cmd.Stderr = p.environ, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C does not reach it: end stops it
	if err := cmd.Start(); err != nil {
		return err
	}
	done, ending := make(chan struct{}), new(atomic.Bool)
	go func() {
		defer close(done)
		_ = cmd.Wait() // how it ended is in its state
		if !ending.Load() {
			select {
			case p.failed <- fmt.Errorf("%s ended by itself (%s): see %s", p.program, cmd.ProcessState, p.log):
			default: // another one was first
			}
		}
	}()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cmd, p.done, p.ending = cmd, done, ending
	return nil
}

// end sends a signal, and waits until the process has ended. After 15 s it kills the process.
func (p *process) end(signal syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return
	}
	p.ending.Store(true)
	_ = p.cmd.Process.Signal(signal) // fails only if it has ended
	select {
	case <-p.done:
	case <-time.After(15 * time.Second):
		_ = p.cmd.Process.Kill() // the same
		<-p.done
	}
}
