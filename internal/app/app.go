// Package app runs a service: the loops and ports of a process, and the commands of its
// operators. The settings come from the environment. The function serve shows a process as a
// whole.
//
// cmd/server has what differs between services: the aggregate types, and the list of the
// options, each of which is an [Option].
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"google.golang.org/grpc/grpclog"

	"example.com/videocatalog/internal/operate"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/telemetry"
	"example.com/videocatalog/internal/transport"
)

// Program is a service: its version, and what it adds to this package.
type Program struct {
	Version       string
	Registrations []Registration // one for each aggregate type
	// Options are the options of the service. Run fills their Settings, so call it once for a
	// Program with options.
	Options []Option
	Limits  Limits // replaces defaults of the packages
}

// Main runs the subcommand given by os.Args, and ends the process with its exit code. SIGTERM and
// SIGINT end the subcommand.
func (p Program) Main() {
	// gRPC writes plain text to stderr, for example when a client of a watch disconnects. The
	// log of the service has a line for each failed call.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	transport.SetBufferPool()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := p.Run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
	}
	os.Exit(ExitCode(err))
}

// Run runs a subcommand until it or ctx ends. The default is serve. environ has the settings. The log goes to stderr. Several programs may run in one process at a time.
func (p Program) Run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		args = []string{"serve"}
	}
	run := p.subcommands()[args[0]]
	switch {
	case args[0] == "version":
		_, err := fmt.Fprintln(stdout, p.Version)
		return err
	case args[0] == "help", slices.Contains(args, "-h"), slices.Contains(args, "--help"):
		_, err := fmt.Fprint(stdout, p.help())
		return err
	case run == nil:
		return UsageError(fmt.Errorf("unknown command %q: try `server help`", args[0]))
	case len(args) > 1 && slices.Contains([]string{"serve", "migrate", "drain"}, args[0]):
		return UsageError(fmt.Errorf("%s: unknown argument %q: try `server help`", args[0], args[1]))
	}
	cfg, err := p.readConfig(args[0], environ)
	if err != nil {
		return UsageError(err)
	}
	process := newProcess(args[0], cfg, telemetry.NewLogger(stderr, cfg.LogLevel, cfg.PubSubProject))
	defer process.close()
	return run(ctx, process, args[1:], stdout)
}

// Validate returns all mistakes in the settings of a subcommand.
func (p Program) Validate(subcommand string, environ []string) error {
	_, err := p.readConfig(subcommand, environ)
	return err
}

// subcommands returns the subcommands of every service and of its options.
func (p Program) subcommands() map[string]Subcommand {
	all := map[string]Subcommand{
		"serve": serve, "migrate": migrate, "drain": drain,
		"status": operator, "stuck": operator, "retry": operator, "skip": operator,
	}
	for _, option := range p.Options {
		maps.Copy(all, option.Subcommands)
	}
	return all
}

// The exit codes, as `server help` promises them.
const (
	ExitFailed  = 1 // any other failure; the output says what is changed
	ExitUsage   = 2 // wrong arguments, or mistakes in the configuration; nothing is changed
	ExitNothing = 3 // what was named does not exist; nothing is changed
	ExitPartly  = 4 // some items could not be changed, the others are
	ExitDiffers = 5 // a comparison has found differences
)

// ErrDiffers means that a comparison has found differences.
var ErrDiffers = errors.New("a projection differs from its owner")

// UsageError returns err as a mistake in the arguments of a subcommand or in the configuration.
func UsageError(err error) error { return problem.Errorf(problem.Invalid, "%v", err) }

// ExitCode returns the exit code for an error of [Program.Run]; 0 for none.
func ExitCode(err error) int {
	known, ok := errors.AsType[*problem.Error](err)
	switch {
	case err == nil:
		return 0
	case ok && known.Kind == problem.Invalid:
		return ExitUsage
	case ok && known.Kind == problem.NotFound:
		return ExitNothing
	case errors.Is(err, operate.ErrPartly):
		return ExitPartly
	case errors.Is(err, ErrDiffers):
		return ExitDiffers
	}
	return ExitFailed
}
