// Command dev runs the whole system on this machine: PostgreSQL, Pub/Sub, the
// schema and the server. It builds the server from this working tree, and starts
// it as in production, configured by environment variables.
//
// Usage, from any folder of the module:
//
//	go run ./cmd/dev            start, and run until Ctrl-C
//	go run ./cmd/dev --fresh    start with empty data
//
// go run ./cmd/dev --help lists all flags and settings.
//
// When it ends it stops the server, then Pub/Sub, then PostgreSQL, and waits for
// each; on Linux they also end if it is killed. Its data stays in one folder that
// nothing else uses. An error is one sentence with its remedy, and exit code 1.
//
// It does not watch the source: restart it after a change. The built-in Pub/Sub
// keeps its state in the same folder.
package main

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
)

const usage = `go run ./cmd/dev runs the whole system on this machine: PostgreSQL, Pub/Sub, the schema, and the server.

  --fresh      delete the data that it keeps, and start again
` +
	usageLoad + // only full
	usageObserve + // only observe
	`  --exit       end when everything runs, instead of waiting for Ctrl-C
  --allowed-hosts NAMES
               let other machines and containers use the server and Pub/Sub, by IP address or by these host names,
               separated by commas (*: any). Nobody is authenticated. Default: all listen on the loopback interface only.
  --state DIR  where it keeps the data, the server's log and binary; default: .local in the module. One folder
               serves one cmd/dev at a time.

Settings, from the environment. All others go to the server; go run ./cmd/server help lists them.

  PORT                  of gRPC and REST; default 8080, 0: any free one
  DATABASE_URL          a PostgreSQL of your own, for both sides; default: one in DIR/postgres
  POSTGRES_BIN_DIR      the programs for the one in DIR/postgres; default: those that are installed, else npm's
  PUBSUB_EMULATOR_HOST  a Pub/Sub of your own; default: one in this process, kept in the state folder
  PUBSUB_PROJECT        the project of topic and subscription; default: local
  NO_COLOR              print without colors

Ctrl-C stops everything, a second one without waiting for requests in flight.
`

func main() {
	interrupts, release := listen()
	err := run(interrupts, os.Args[1:], os.Environ(), os.Stdout)
	release()
	if err != nil {
		fmt.Fprintln(os.Stderr, "dev:", err)
		os.Exit(1)
	}
}

// errInterrupted means that a signal stopped the work before it was complete.
var errInterrupted = errors.New("interrupted")

// run starts the stack, and stops it after a signal or when the server ends.
func run(interrupts interrupts, args, environ []string, stdout io.Writer) (err error) {
	opts, err := parseOptions(args, environ)
	if errors.Is(err, flag.ErrHelp) {
		_, err := io.WriteString(stdout, usage)
		return err
	}
	if err != nil {
		return err
	}
	// only full: begin
	videos, err := readVideos(opts.file)
	if err != nil {
		return err
	}
	// only full: end
	screen := newScreen(stdout, opts.getenv, interrupts.cancel)
	s := &stack{options: opts, screen: screen, killed: interrupts.kill}
	defer func() { err = errors.Join(err, s.stop()) }()
	ctx, err := s.start(interrupts.stop)
	if err == nil {
		s.present()
	}
	done := opts.exit
	// only full: begin
	joined, err := s.loadOrJoin(ctx, err, videos)
	done = done || joined
	// only full: end
	switch {
	case interrupts.stop.Err() != nil:
		return errInterrupted
	case err != nil || done:
		return cmp.Or(err, context.Cause(ctx))
	}
	<-ctx.Done()
	if interrupts.stop.Err() != nil {
		return nil
	}
	return context.Cause(ctx)
}

// options has the values of the command line and the environment.
type options struct {
	fresh, exit bool
	state       string
	allowed     string // names of --allowed-hosts, separated by commas
	file        string // of --load // only full
	prometheus  string // path of Prometheus if --observe is set // only observe
	port        int
	environ     []string
}

func parseOptions(args, environ []string) (options, error) {
	opts := options{environ: environ}
	flags := flag.NewFlagSet("dev", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.BoolVar(&opts.fresh, "fresh", false, "")
	flags.BoolVar(&opts.exit, "exit", false, "")
	observe := flags.Bool("observe", false, "") // only observe
	flags.StringVar(&opts.file, "load", "", "") // only full
	flags.StringVar(&opts.state, "state", "", "")
	flags.StringVar(&opts.allowed, "allowed-hosts", "", "")
	err := flags.Parse(args)
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	if err != nil {
		return opts, fmt.Errorf("%w: try go run ./cmd/dev --help", err)
	}
	if opts.fresh && opts.getenv("DATABASE_URL") != "" {
		return opts, errors.New("--fresh deletes only a database that cmd/dev keeps itself: unset DATABASE_URL, or empty that database yourself")
	}
	// only observe: begin
	if *observe {
		if opts.prometheus, err = findPrometheus(); err != nil {
			return opts, err
		}
	}
	// only observe: end
	const highest = 65535
	opts.port = 8080
	if port := opts.getenv("PORT"); port != "" {
		opts.port, err = strconv.Atoi(port)
		if err != nil || opts.port < 0 || opts.port > highest {
			return opts, fmt.Errorf("PORT is %q: it must be a number from 0 (any free port) to %d", port, highest)
		}
	}
	return opts, nil
}

// getenv returns an environment variable. If a name occurs more than once, the
// last one counts.
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

// listen handles signals until release is called. The third signal has its
// default effect.
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

// builtByGoRun matches the paths of programs that go run starts: in a temporary
// folder or in the build cache.
var builtByGoRun = regexp.MustCompile(`/go-build\d+/b001/exe/|/[0-9a-f]{64}-d/`)

// startedByGo reports whether our parent is go run. A SIGTERM to go run ends
// only go run, although it is meant for us, so listen watches for that.
func startedByGo() bool {
	program, err := os.Executable()
	return err == nil && builtByGoRun.MatchString(program)
}
