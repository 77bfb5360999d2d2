// Command smoke tests a running service with a real gRPC client. The service must say that it serves, and pass the
// checks of the other files of this package.
//
//	smoke [--timeout 3m] URL
//
// URL is https://HOST[:PORT], or http:// for a service on this machine. The environment variable SMOKE_TOKEN is an
// identity token for the calls. It is sent over TLS only.
package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Getenv("SMOKE_TOKEN"), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "smoke:", err)
		os.Exit(1) //nolint:forbidigo // main ends the process
	}
}

// patience is the default time for all steps.
const patience = 3 * time.Minute

// A check calls the service, and returns what is wrong.
type check func(context.Context, *grpc.ClientConn) error

// more are the checks that other files of this package add.
var more []check

func run(ctx context.Context, args []string, token string, stdout io.Writer) error {
	flags := flag.NewFlagSet("smoke", flag.ContinueOnError)
	timeout := flags.Duration("timeout", patience, "how long all of it may take")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("want one argument, the URL of the service, such as https://service-abc.a.run.app")
	}
	conn, err := dial(flags.Arg(0), token)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(withToken(ctx, token), *timeout)
	defer cancel()
	start := time.Now()
	for _, check := range append([]check{serves}, more...) {
		if err := check(ctx, conn); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(stdout, "smoke: the service works, tested in %s\n", time.Since(start).Round(time.Millisecond))
	return err
}

// dial connects to a URL. A token must not be sent in the clear.
func dial(address, token string) (*grpc.ClientConn, error) {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("URL is %q, want http://HOST:PORT or https://HOST", address)
	case u.Scheme == "https":
		host := net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443"))
		return grpc.NewClient(host, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12})))
	case token != "":
		return nil, errors.New("URL is http://, want https:// with SMOKE_TOKEN, which must not be sent in the clear")
	}
	return grpc.NewClient(u.Host, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// withToken returns a context whose calls have the token in two headers. Cloud Run reads the second one and removes its
// signature. A service that checks tokens itself (AUTH=oidc) reads the first.
func withToken(ctx context.Context, token string) context.Context {
	if token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token, "x-serverless-authorization", "Bearer "+token)
}

// serves waits for the connection, and checks by grpc.health.v1 that the server serves.
func serves(ctx context.Context, conn *grpc.ClientConn) error {
	answer, err := healthpb.NewHealthClient(conn).Check(ctx, new(healthpb.HealthCheckRequest), grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("check health: %w", err)
	}
	if answer.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		return fmt.Errorf("check health: %s, want SERVING", answer.GetStatus())
	}
	return nil
}
