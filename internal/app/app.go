// Package app runs a service: the loops and ports of a process, and the commands of its
// operators. The settings come from the environment. The function serve shows a process as a
// whole.
//
// cmd/server has what differs between services: the aggregate types, and the list of the
// options, each of which is a [Part].
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
)

// Program is a service: its version, and what it adds to this package.
type Program struct {
	Version       string
	Registrations []Registration // one for each aggregate type
	// Parts are the options of the service. Run fills their Settings, so call it once for a
	// Program with parts.
	Parts  []Part
	Config Config // replaces defaults of the packages
}

// Main runs the command given by os.Args, and ends the process with the command's exit code.
// SIGTERM and SIGINT end the command.
func (p Program) Main() {
	// gRPC writes plain text to stderr, for example when a client of a watch disconnects. The
	// log of the service has a line for each failed call.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := p.Run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
	}
	os.Exit(ExitCode(err))
}

// Run runs a command until it or ctx ends. The default command is serve. environ has the
// settings. The log goes to stderr. Several programs may run in one process at a time.
func (p Program) Run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		args = []string{"serve"}
	}
	run := p.commands()[args[0]]
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
	s := newService(args[0], cfg, telemetry.NewLogger(stderr, cfg.LogLevel, cfg.PubSubProject))
	defer s.close()
	return run(ctx, s, args[1:], stdout)
}

// Validate returns all mistakes in the settings of a command.
func (p Program) Validate(command string, environ []string) error {
	_, err := p.readConfig(command, environ)
	return err
}

// commands returns the commands of every service and of the parts.
func (p Program) commands() map[string]Command {
	all := map[string]Command{
		"serve": serve, "migrate": migrate, "drain": drain,
		"status": operator, "stuck": operator, "retry": operator, "skip": operator,
	}
	for _, part := range p.Parts {
		maps.Copy(all, part.Commands)
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

// UsageError returns err as a mistake in the arguments of a command or in the configuration.
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
