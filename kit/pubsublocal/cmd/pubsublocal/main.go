// Command pubsublocal runs a Google Cloud Pub/Sub server on one machine: gRPC
// and HTTP/JSON on one port, for client libraries, gcloud and curl.
//
//	go run ./cmd/pubsublocal --addr 127.0.0.1:8085
//
// It serves until it is interrupted. --help lists its flags. Package
// pubsublocal documents what it guarantees. It is not for production.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"

	"example.com/servicekit/pubsublocal"
)

const usage = `pubsublocal is a Google Cloud Pub/Sub server for one machine: gRPC and HTTP/JSON on one port.

  --addr HOST:PORT  the address to listen on; port 0: any free one. Default: 127.0.0.1:8085. There is no
                    authentication, so everybody who can connect to the address can use it.
  --allowed-hosts NAMES
                    host names, separated by commas, by which clients may reach it, such as a name in docker compose;
                    *: any. Default: only localhost and IP addresses, so that no web page can use it by DNS rebinding.
  --data-dir DIR    keep all data in DIR over a restart. Default: in memory, lost at the end.
  --sync WHEN       when the data in DIR is safe from a crash of the machine: batch (before each response), interval
                    (every 10 ms), never (the operating system decides). Default: batch.
  --memory SIZE     let the garbage collector work harder above SIZE, such as 2GiB. It is not a limit: the stored
                    messages may need more. Default: off, the process may grow to twice the size of its data.
  --admin           serve /admin/ on the same port, to inject faults and move the clock:
                    curl -d '{"method":"Publish","code":"UNAVAILABLE","times":3}' http://127.0.0.1:8085/admin/faults

PUBSUB_PROJECT1=my-project,topic1:sub1:sub2,topic2 makes it create these topics, with their subscriptions, when it starts.
PUBSUB_PROJECT2, and so on, are for other projects.

Client libraries need PUBSUB_EMULATOR_HOST, which it prints. gcloud needs
  export CLOUDSDK_API_ENDPOINT_OVERRIDES_PUBSUB=http://127.0.0.1:8085/ CLOUDSDK_AUTH_DISABLE_CREDENTIALS=true
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "pubsublocal:", err)
		os.Exit(1)
	}
}

// run serves until ctx is done.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) (err error) {
	opts, err := parseOptions(args)
	if errors.Is(err, flag.ErrHelp) {
		_, err := io.WriteString(stdout, usage)
		return err
	}
	if err != nil {
		return err
	}
	opts.config.Log = slog.New(slog.NewTextHandler(stderr, nil))
	server, err := pubsublocal.Start(opts.config)
	if err != nil {
		return explain(err, opts.config.Addr)
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	if err := seed(ctx, server, environ); err != nil {
		return err
	}
	if opts.memory > 0 {
		defer debug.SetMemoryLimit(debug.SetMemoryLimit(opts.memory))
	}
	fmt.Fprint(stdout, greeting(server.Addr(), opts))
	<-ctx.Done()
	return nil
}

type options struct {
	config pubsublocal.Config
	memory int64 // bytes; 0: no limit
}

func parseOptions(args []string) (options, error) {
	var opts options
	flags := flag.NewFlagSet("pubsublocal", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // run prints the usage, and main the error
	flags.StringVar(&opts.config.Addr, "addr", "127.0.0.1:8085", "")
	flags.StringVar(&opts.config.DataDir, "data-dir", "", "")
	flags.BoolVar(&opts.config.Admin, "admin", false, "")
	flags.Func("allowed-hosts", "", func(text string) error {
		opts.config.AllowedHosts = strings.Split(text, ",")
		return nil
	})
	flags.Func("sync", "", func(text string) error {
		opts.config.Sync = pubsublocal.Sync(text)
		switch opts.config.Sync {
		case pubsublocal.SyncBatch, pubsublocal.SyncInterval, pubsublocal.SyncNever:
			return nil
		default:
			return errors.New("it must be batch, interval or never")
		}
	})
	flags.Func("memory", "", func(text string) (err error) {
		opts.memory, err = parseBytes(text)
		return err
	})
	err := flags.Parse(args)
	switch {
	case err == nil && flags.NArg() > 0:
		err = fmt.Errorf("unknown argument %q", flags.Arg(0))
	case err == nil && opts.config.Sync != "" && opts.config.DataDir == "":
		err = errors.New("--sync is about what is kept: give --data-dir, too")
	}
	if err == nil {
		_, _, err = net.SplitHostPort(opts.config.Addr)
		if err != nil {
			err = fmt.Errorf("--addr is %q: it must be HOST:PORT, such as 127.0.0.1:8085", opts.config.Addr)
		}
	}
	if err != nil {
		return opts, fmt.Errorf("%w (--help lists the flags)", err)
	}
	return opts, nil
}

// parseBytes reads a size like those of GOMEMLIMIT.
func parseBytes(text string) (int64, error) {
	number, unit := text, int64(1)
	for i, suffix := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if n, ok := strings.CutSuffix(text, suffix); ok {
			number, unit = n, 1<<(10*(i+1))
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n <= 0 || n > math.MaxInt64/unit {
		return 0, errors.New("it must be a size, such as 512MiB or 2GiB")
	}
	return n * unit, nil
}

// explain adds to an error of Start what the user can do.
func explain(err error, addr string) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%s is in use by another program: stop it, or choose another port with --addr (port 0: any free one)", addr)
	case errors.Is(err, syscall.EACCES) && strings.Contains(err.Error(), "listen"):
		return fmt.Errorf("may not listen on %s: choose a port from 1024 on with --addr", addr)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%s is no address of this machine: choose one with --addr, such as 127.0.0.1:8085", addr)
	default:
		return fmt.Errorf("start server: %w", err)
	}
}

// greeting returns the text that the command prints when it serves: the address,
// and how clients find it. Programs such as testcontainers wait for the first
// line.
func greeting(addr string, opts options) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Server started, listening on %s\n", addr)
	reach := addr
	if parsed, err := netip.ParseAddrPort(addr); err == nil && !parsed.Addr().IsLoopback() {
		if parsed.Addr().IsUnspecified() {
			reach = fmt.Sprintf("127.0.0.1:%d", parsed.Port())
		}
		b.WriteString("Everybody who can connect to this address can use it: there is no authentication.\n")
	}
	if opts.config.DataDir == "" {
		b.WriteString("All data is in memory, and lost at the end (--data-dir keeps it).\n")
	} else {
		fmt.Fprintf(&b, "Everything is kept in %s.\n", opts.config.DataDir)
	}
	if opts.memory > 0 {
		fmt.Fprintf(&b, "The garbage collector works harder above %d MiB.\n", opts.memory>>20)
	} else {
		b.WriteString("There is no memory limit (--memory sets one).\n")
	}
	if opts.config.Admin {
		fmt.Fprintf(&b, "Faults are injected at http://%s/admin/.\n", reach)
	}
	fmt.Fprintf(&b, "\nexport PUBSUB_EMULATOR_HOST=%s\n", reach)
	return b.String()
}
