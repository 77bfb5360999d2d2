// Package app runs a service: the loops and ports of a process, and the commands of its
// operators. The settings come from the environment; [Program.Run] lists them with the
// command help.
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

	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc/grpclog"

	"example.com/videocatalog/internal/telemetry"
)

// Program is a service: its version, and what it adds to this package.
type Program struct {
	Version string
	// Registrations returns the registration of each aggregate type. queries is the pool of
	// the query side, or nil if the process does not use it.
	Registrations func(queries *pgxpool.Pool) []Registration
	// Parts are the options of the service. Their Settings are filled by each command, so a
	// Program with parts runs one command at a time.
	Parts []Part
}

// Main runs the command that the arguments of the process name, and ends the process with
// its exit code. SIGTERM and SIGINT end the command.
func (p Program) Main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := p.run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr, logGRPC)
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
	return p.run(ctx, args, environ, stdout, stderr, func(*slog.Logger) {})
}

// logGRPC takes the log of gRPC, of which a process has one. By default gRPC and its gateway
// write plain text to stderr, for example when a client of a watch disconnects.
func logGRPC(log *slog.Logger) {
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, slog.NewLogLogger(log.Handler(), slog.LevelDebug).Writer()))
}

func (p Program) run(ctx context.Context, args, environ []string, stdout, stderr io.Writer, takeLog func(*slog.Logger)) error {
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
	cfg, err := p.readConfig(command, environ)
	log := telemetry.NewLogger(stderr, cfg.LogLevel, cfg.PubSubProject)
	if unknown := p.unknownSettings(environ); len(unknown) > 0 {
		log.WarnContext(ctx, "settings: ignored", "err", strings.Join(unknown, ", ")+": try `server help`")
	}
	if err != nil {
		return usageError(err)
	}
	takeLog(log)
	switch line := strings.Join(append([]string{command}, args...), " "); {
	case line == "serve":
		return serve(ctx, cfg, log)
	case line == "migrate":
		return migrate(ctx, cfg, stdout, log)
	case line == "drain":
		return drain(ctx, cfg, stdout, log)
	case words[command].outbox != nil:
		return operate(ctx, cfg, command, args, stdout)
	default:
		if run := p.command(command); run != nil {
			return cfg.runCommand(ctx, command, run, args, stdout, log)
		}
		return usageError(fmt.Errorf("unknown command %q: try `server help`", line))
	}
}
