// Package dev is the command cmd/dev of a service: it runs the whole service on this machine. It starts
// PostgreSQL and Pub/Sub, builds the server from the working tree, migrates, and starts the server as in
// production, configured by environment variables.
//
// At its end it stops the server, then Pub/Sub, then PostgreSQL, and waits for each. If it is killed, they also end on
// Linux, and all changes in Pub/Sub since the start are lost: start again with --fresh, or repair the projection. Its
// data stays in one folder that nothing else uses. An error is one sentence with its remedy, and exit code 1.
//
// It does not watch the source: restart it after a change.
package dev

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"example.com/servicekit/localbroker"
	"example.com/servicekit/tool"
)

// Config says what a service consists of.
type Config struct {
	// Name is the name of the service.
	Name string
	// Server is the package of the server, such as ./cmd/server. Its command migrate migrates the database, and
	// exits with 2 if a setting is wrong. Without a command it serves until SIGTERM. It returns 200 at /health/ready
	// when it is ready.
	Server string
	// Topics returns the topics to create in Pub/Sub.
	Topics func() ([]localbroker.Topic, error)
	// Parts run beside the server.
	Parts []Part
	// Try are commands that use the API, for the screen. HOST stands for its host and port.
	Try []string
}

// Part is a program beside the server.
type Part struct {
	// Flag is the flag of the command line that turns the part on, and Help is the line about it. Without a flag
	// the part is always on.
	Flag, Help string
	// Check returns an error if the part cannot run. It is called before anything starts. Nil: no check.
	Check func() error
	// Before starts what the server needs, and calls Set. It is called before the server is built. Nil: nothing.
	Before func(ctx context.Context, s *Stack) error
	// Prepare does what needs the schema of the database, and calls Set. It is called before the server starts. Nil: nothing.
	Prepare func(ctx context.Context, s *Stack) error
	// Start starts the part when the server is ready. It calls methods of the stack. Nil: nothing.
	Start func(ctx context.Context, s *Stack) error
}

const usage = `go run ./cmd/dev runs the whole system on this machine: PostgreSQL, Pub/Sub, the schema, and the server.

  --fresh      delete the data that it keeps, and start again
%s  --allowed-hosts NAMES
               let other machines and containers use the server, by IP address or by these host names separated by
               commas (*: any), and Pub/Sub. Nobody is authenticated. Default: all listen on the loopback interface only.
  --state DIR  where it keeps the data, the logs and the server's binary; default: .local in the module. One folder
               serves one cmd/dev at a time.

Settings, from the environment. All others go to the server; go run %s help lists them.

  PORT                  of gRPC and REST; default 8080, 0: any free one
  DATABASE_URL          a PostgreSQL of your own, for both sides; default: one in DIR/postgres
  POSTGRES_BIN_DIR      the programs for the one in DIR/postgres; default: those that are installed, else npm's
  PUBSUB_EMULATOR_HOST  a Pub/Sub of your own; default: one in this process, kept in DIR/pubsub.data
  PUBSUB_PROJECT        the project of topic and subscription; default: local
  NO_COLOR              print without colors

Ctrl-C stops everything, a second one without waiting for requests in flight.
`

// Main runs the service until a signal, and ends the process if that fails.
func Main(cfg Config) {
	interrupts, release := listen()
	err := run(interrupts, cfg, os.Args[1:], os.Environ(), os.Stdout)
	release()
	if err != nil {
		fmt.Fprintln(os.Stderr, "dev:", err)
		os.Exit(1)
	}
}

// errInterrupted means that a signal stopped the start before it was complete.
var errInterrupted = errors.New("interrupted")

// run starts the stack, and stops it after a signal or when a program of it ends.
func run(interrupts interrupts, cfg Config, args, environ []string, stdout io.Writer) (err error) {
	opts, err := parseOptions(cfg, args, environ)
	if errors.Is(err, flag.ErrHelp) {
		_, err := fmt.Fprintf(stdout, usage, helpOf(cfg.Parts), cfg.Server)
		return err
	}
	if err != nil {
		return err
	}
	s := &Stack{Fresh: opts.fresh, options: opts, config: cfg, screen: newScreen(stdout, opts.getenv, interrupts.cancel), killed: interrupts.kill}
	defer func() { err = errors.Join(err, s.stop()) }()
	ctx, err := s.start(interrupts.stop)
	switch {
	case interrupts.stop.Err() != nil:
		return errInterrupted
	case err != nil:
		return err
	}
	s.present()
	<-ctx.Done()
	if interrupts.stop.Err() != nil {
		return nil
	}
	return context.Cause(ctx)
}

// helpOf returns the help for the flags of the parts.
func helpOf(parts []Part) string {
	var help strings.Builder
	for _, part := range parts {
		if part.Flag != "" {
			fmt.Fprintf(&help, "  --%-10s %s\n", part.Flag, part.Help)
		}
	}
	return help.String()
}

// options has the values of the command line and the environment.
type options struct {
	fresh   bool
	state   string
	allowed string // names of --allowed-hosts, separated by commas
	port    int
	parts   []Part // that are on
	environ []string
}

func parseOptions(cfg Config, args, environ []string) (options, error) {
	opts := options{environ: environ}
	flags := flag.NewFlagSet("dev", flag.ContinueOnError)
	flags.BoolVar(&opts.fresh, "fresh", false, "")
	flags.StringVar(&opts.state, "state", "", "")
	flags.StringVar(&opts.allowed, "allowed-hosts", "", "")
	on := make([]bool, len(cfg.Parts))
	for i, part := range cfg.Parts {
		if on[i] = part.Flag == ""; !on[i] {
			flags.BoolVar(&on[i], part.Flag, false, "")
		}
	}
	words, err := tool.Parse(flags, args)
	if err != nil {
		return opts, err
	}
	if len(words) > 0 {
		return opts, fmt.Errorf("unknown argument %q: try go run ./cmd/dev --help", words[0])
	}
	if opts.fresh && opts.getenv("DATABASE_URL") != "" {
		return opts, errors.New("--fresh deletes only a database that cmd/dev keeps itself: unset DATABASE_URL, or empty that database yourself")
	}
	for i, part := range cfg.Parts {
		if !on[i] {
			continue
		}
		if part.Check != nil {
			if err := part.Check(); err != nil {
				return opts, err
			}
		}
		opts.parts = append(opts.parts, part)
	}
	const highest = 65535
	port := cmp.Or(opts.getenv("PORT"), "8080")
	if opts.port, err = strconv.Atoi(port); err != nil || opts.port < 0 || opts.port > highest {
		return opts, fmt.Errorf("PORT is %q: it must be a number from 0 (any free port) to %d", port, highest)
	}
	return opts, nil
}

// getenv returns an environment variable. If a name occurs more than once, the last one counts.
func (o options) getenv(name string) (value string) {
	for _, variable := range o.environ {
		if v, ok := strings.CutPrefix(variable, name+"="); ok {
			value = v
		}
	}
	return value
}

// interrupts are the user's requests to stop, as contexts.
type interrupts struct {
	stop   context.Context // canceled by the first signal
	kill   context.Context // canceled by the second signal: do not wait
	cancel func()          // cancels stop
}

// listen handles signals until release is called. The third signal has its default effect.
func listen() (interrupts interrupts, release func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // nohup ignores it
		signal.Notify(signals, syscall.SIGHUP)
	}
	// A program that reads our output may end before us, such as tee at Ctrl-C.
	// The screen then fails to write and stops us.
	signal.Ignore(syscall.SIGPIPE)

	var kill context.CancelFunc
	interrupts.stop, interrupts.cancel = context.WithCancel(context.Background())
	interrupts.kill, kill = context.WithCancel(context.Background())
	parent := time.NewTicker(200 * time.Millisecond)
	if !startedByGo() {
		parent.Stop()
	}
	first, done, ended := os.Getppid(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-signals:
				if interrupts.stop.Err() != nil {
					kill()
					signal.Stop(signals)
				}
				interrupts.cancel()
			case <-parent.C:
				if os.Getppid() != first {
					interrupts.cancel()
				}
			case <-done:
				return
			}
		}
	}()
	return interrupts, func() {
		parent.Stop()
		close(done)
		<-ended
	}
}

// builtByGoRun matches the paths of programs that go run starts: in a temporary folder or in the build cache.
var builtByGoRun = regexp.MustCompile(`/go-build\d+/b001/exe/|/[0-9a-f]{64}-d/`)

// startedByGo reports whether our parent is go run. A SIGTERM to go run ends only go run, although it is meant for
// us, so listen watches our parent.
func startedByGo() bool {
	program, err := os.Executable()
	return err == nil && builtByGoRun.MatchString(program)
}
