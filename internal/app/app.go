// Package app runs a service: the loops and ports of a process, and the commands of its
// operators. The settings come from the environment; [Program.Run] lists them with the
// command help. The function serve shows a process as a whole.
//
// cmd/server has what differs between services: the aggregate types, and the list of the
// options, each of which is a [Part].
package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"google.golang.org/grpc/grpclog"

	"example.com/videocatalog/internal/telemetry"
)

// Program is a service: its version, and what it adds to this package.
type Program struct {
	Version string
	// Registrations has one for each aggregate type.
	Registrations []Registration
	// Parts are the options of the service. Their Settings are filled by each command, so a
	// Program with parts runs one command at a time.
	Parts []Part
	// Config replaces defaults of the packages.
	Config Config
}

// commands are the commands of every service. The parts have more.
func commands() map[string]Command {
	return map[string]Command{
		"serve": serve, "migrate": migrate, "drain": drain,
		"status": operator, "stuck": operator, "retry": operator, "skip": operator,
	}
}

// Main runs the command that the arguments of the process name, and ends the process with
// its exit code. SIGTERM and SIGINT end the command.
func (p Program) Main() {
	// gRPC and its gateway write plain text to stderr, for example when a client of a watch
	// disconnects. The log of the service has a line for each failed call.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := p.Run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
	}
	os.Exit(ExitCode(err))
}

// Validate returns all mistakes in the settings of a command.
func (p Program) Validate(command string, environ []string) error {
	_, err := p.readConfig(command, environ)
	return err
}

// Run runs a command until it or ctx ends. The default command is serve. environ has the
// settings. The log goes to stderr. Several programs may run in one process at a time.
func (p Program) Run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	command := "serve"
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	switch command {
	case "version":
		_, err := fmt.Fprintln(stdout, p.Version)
		return err
	case "help", "-h", "--help":
		return p.printHelp(stdout)
	}
	run := commands()[command]
	for _, part := range p.Parts {
		if run == nil {
			run = part.Commands[command]
		}
	}
	if run == nil {
		return UsageError(fmt.Errorf("unknown command %q: try `server help`", command))
	}
	cfg, err := p.readConfig(command, environ)
	level := new(slog.LevelVar)
	level.Set(cfg.LogLevel)
	log := telemetry.NewLogger(stderr, level, cfg.PubSubProject)
	if unknown := p.unknownSettings(environ); len(unknown) > 0 {
		log.WarnContext(ctx, "settings: ignored", "err", strings.Join(unknown, ", ")+": try `server help`")
	}
	if err != nil {
		return UsageError(err)
	}
	s := newService(command, cfg, level, log)
	defer s.close()
	return run(ctx, s, args, stdout)
}
