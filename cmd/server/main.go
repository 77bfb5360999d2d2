// Command server is the program of the service. One process runs the API, the outbox
// publisher, the projector and the reactor, or only those that ROLES names. `server help` lists the
// commands and the settings. The default command is serve, and the settings come from the
// environment.
package main

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
	"example.com/videocatalog/internal/telemetry/connlog"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
		os.Exit(exitCode(err))
	}
}

func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	command := "serve"
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	switch command {
	case "version":
		_, err := fmt.Fprintln(stdout, version)
		return err
	case "help", "-h", "--help":
		return printHelp(stdout)
	}
	cfg, err := readConfig(command, environ)
	level := new(slog.LevelVar)
	level.Set(cfg.LogLevel)
	log := telemetry.NewLogger(stderr, level, cfg.PubSubProject)
	if unknown := unknownSettings(environ); len(unknown) > 0 {
		log.WarnContext(ctx, "settings: ignored", "err", strings.Join(unknown, ", ")+": try `server help`")
	}
	if err != nil {
		return usageError(err)
	}
	// By default, gRPC and its gateway write plain text to stderr, for example when a
	// client of a watch disconnects.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, slog.NewLogLogger(connlog.New(log, "grpc: failed"), slog.LevelDebug).Writer()))
	switch words := strings.Join(append([]string{command}, args...), " "); {
	case words == "serve":
		return serve(ctx, cfg, level, log)
	case words == "migrate":
		return migrate(ctx, cfg, stdout, log)
	case words == "drain":
		return drain(ctx, cfg, stdout, log)
	case command == "console": // only console
		return serveConsole(ctx, cfg, args, stdout, log) // only console
	case command == "seek":
		return seek(ctx, cfg, args, stdout)
	case command == "databases":
		return databasesCommand(ctx, cfg, args, stdout)
	case command == "outbox":
		return outboxCommand(ctx, cfg, args, stdout, stderr)
	case command == "quarantine":
		return quarantineCommand(ctx, cfg, args, stdout)
	case command == "projection":
		return projectionCommand(ctx, cfg, args, stdout, stderr)
	case command == "audit":
		return auditCommand(ctx, cfg, args, stdout)
	default:
		return usageError(fmt.Errorf("unknown command %q: try `server help`", words))
	}
}
