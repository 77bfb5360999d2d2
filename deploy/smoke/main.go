// Command smoke tests a running service with a real gRPC client. The service must say that it serves, and pass the
// checks of the other files of this package.
//
//	smoke [--timeout 3m] URL
//
// URL is https://HOST[:PORT], or http:// for a service on this machine. The environment variable SMOKE_TOKEN is an
// identity token for the calls. It is sent over TLS only.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
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
	ctx, cancel := context.WithTimeout(ctx, *timeout)
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

// dial connects to a URL. Every call has the token.
func dial(address, token string) (*grpc.ClientConn, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("URL is %q, want http://HOST:PORT or https://HOST", address)
	}
	host := u.Host
	if u.Scheme == "http" {
		if token != "" {
			return nil, errors.New("URL is http://, want https:// with SMOKE_TOKEN, which must not be sent in the clear")
		}
		return grpc.NewClient(host, grpc.WithTransportCredentials(insecure.NewCredentials()))
	}
	if u.Port() == "" {
		host += ":443"
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12}))}
	if token != "" {
		options = append(options, grpc.WithPerRPCCredentials(bearer(token)))
	}
	return grpc.NewClient(host, options...)
}

// bearer is an identity token, sent in two headers. Cloud Run reads the second one and removes its signature. A service
// that checks tokens itself (AUTH=oidc) reads the first.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	value := "Bearer " + string(b)
	return map[string]string{"authorization": value, "x-serverless-authorization": value}, nil
}

func (bearer) RequireTransportSecurity() bool { return true }

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
