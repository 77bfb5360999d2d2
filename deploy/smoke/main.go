// Command smoke tests a running service with a real gRPC client. It creates a video, publishes it, waits until the
// catalog has it, and deletes it. So it tests the whole path: both databases, the publisher, the topic, the
// subscription and the projector. It also tries to delete the video when a step fails.
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
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Getenv("SMOKE_TOKEN"), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "smoke:", err)
		os.Exit(1) //nolint:forbidigo // main ends the process
	}
}

// patience is the default time for all steps. A drain job starts once a minute. Then it has to get an instance and
// publish the event, and the projector has to receive it.
const patience = 3 * time.Minute

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
	if err := smoke(ctx, videov1.NewVideoServiceClient(conn), catalogv1.NewCatalogServiceClient(conn)); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "smoke: created, published, found in the catalog and deleted a video in %s\n", time.Since(start).Round(time.Millisecond))
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
// that checks tokens itself (AUTH=oidc) reads the first: docs/security.md.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	value := "Bearer " + string(b)
	return map[string]string{"authorization": value, "x-serverless-authorization": value}, nil
}

func (bearer) RequireTransportSecurity() bool { return true }

// smoke runs all steps with one video.
func smoke(ctx context.Context, videos videov1.VideoServiceClient, catalog catalogv1.CatalogServiceClient) (err error) {
	video, err := videos.CreateVideo(ctx, &videov1.CreateVideoRequest{
		Video: &videov1.Video{Title: "Smoke test", Tags: []string{"smoke-test"}}, RequestId: uuid.NewString(),
	}, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("create video: %w", err)
	}
	name := video.GetName()
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if _, e := videos.DeleteVideo(ctx, &videov1.DeleteVideoRequest{Name: name}); e != nil {
			err = errors.Join(err, fmt.Errorf("delete %s: %w", name, e))
		}
	}()
	video, err = videos.PublishVideo(ctx, &videov1.PublishVideoRequest{Name: name, Etag: video.GetEtag()})
	if err != nil {
		return fmt.Errorf("publish %s: %w", name, err)
	}
	entry := strings.Replace(name, "videos/", "catalogEntries/", 1)
	for {
		got, err := catalog.GetCatalogEntry(ctx, &catalogv1.GetCatalogEntryRequest{Name: entry, MinVersion: video.GetVersion()})
		if err == nil && got.GetTitle() == video.GetTitle() {
			return nil
		}
		if err == nil {
			return fmt.Errorf("get %s: title is %q, want %q", entry, got.GetTitle(), video.GetTitle())
		}
		// The server also waits for the version, but not as long as this client.
		if code := status.Code(err); ctx.Err() != nil || code != codes.NotFound && code != codes.Unavailable && code != codes.DeadlineExceeded && code != codes.FailedPrecondition {
			return fmt.Errorf("get %s in version %d: %w; are publisher, topic, subscription and projector at work?", entry, video.GetVersion(), err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}
