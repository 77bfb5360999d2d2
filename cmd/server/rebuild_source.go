package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"

	"google.golang.org/api/idtoken"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// rebuildSource is where rebuild reads from, and as whom.
type rebuildSource struct {
	address  string // HOST:PORT
	tls      bool
	audience string // of an ID token of Google; empty: none
	file     string // which has an ID token; empty: none
	dryRun   bool   // write nothing
}

// parseRebuild reads the arguments of rebuild.
func parseRebuild(args []string) (rebuildSource, error) {
	var s rebuildSource
	flags := flag.NewFlagSet("rebuild", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the error says it all
	idToken := flags.Bool("id-token", false, "")
	flags.BoolVar(&s.dryRun, "dry-run", false, "")
	flags.StringVar(&s.audience, "audience", "", "")
	flags.StringVar(&s.file, "token-file", "", "")
	if err := flags.Parse(args); err != nil {
		return s, fmt.Errorf("rebuild: %w: try `server help`", err)
	}
	if flags.NArg() != 1 {
		return s, fmt.Errorf("rebuild has %d arguments, want one, HOST:PORT or https://HOST, behind the flags: try `server help`", flags.NArg())
	}
	target := flags.Arg(0)
	switch {
	case s.audience != "" && !*idToken:
		return s, errors.New("--audience is of a token that --id-token asks for: give both")
	case s.file != "" && *idToken:
		return s, errors.New("--id-token and --token-file are two ways to get one token: give one of them")
	}
	if !strings.Contains(target, "://") {
		s.address = target
		if _, port, err := net.SplitHostPort(target); err != nil || port == "" {
			return s, fmt.Errorf("rebuild from %q: want HOST:PORT, or https://HOST for TLS", target)
		}
		if *idToken || s.file != "" {
			return s, fmt.Errorf("rebuild from %q: want https://HOST, because a token must not be sent in the clear", target)
		}
		return s, nil
	}
	u, err := url.Parse(target)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || strings.TrimSuffix(target, "/") != "https://"+u.Host {
		return s, fmt.Errorf("rebuild from %q: want https://HOST[:PORT] and nothing else, or HOST:PORT without TLS", target)
	}
	s.tls, s.address = true, u.Host
	if u.Port() == "" {
		s.address = net.JoinHostPort(u.Hostname(), "443")
	}
	if *idToken && s.audience == "" {
		s.audience = "https://" + u.Host
	}
	return s, nil
}

// connect connects to the source. It does not wait for it.
func (s rebuildSource) connect(ctx context.Context) (*grpc.ClientConn, error) {
	transport := insecure.NewCredentials()
	if s.tls {
		transport = credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12})
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(transport)}
	switch {
	case s.file != "":
		read := bearer(func() (string, error) {
			text, err := os.ReadFile(s.file)
			return string(text), err
		})
		if _, err := read(); err != nil { // now rather than as the status of a call
			return nil, fmt.Errorf("--token-file: %w", err)
		}
		options = append(options, grpc.WithPerRPCCredentials(read))
	case s.audience != "":
		tokens, err := idtoken.NewTokenSource(ctx, s.audience)
		if err != nil {
			return nil, fmt.Errorf("--id-token: %w; it takes a service account: on a machine of your own give --token-file", err)
		}
		options = append(options, grpc.WithPerRPCCredentials(bearer(func() (string, error) {
			token, err := tokens.Token()
			if err != nil {
				return "", err
			}
			return token.AccessToken, nil
		})))
	}
	return grpc.NewClient(s.address, options...)
}

// refused returns what to do when the source does not let us read, or nothing.
func (s rebuildSource) refused(err error) string {
	switch code := status.Code(err); {
	case code == codes.Unauthenticated && s.audience == "" && s.file == "":
		return "; it wants a token: give --id-token or --token-file"
	case code == codes.Unauthenticated:
		return "; it does not take the token: is the audience one of its AUTH_AUDIENCE, or its URL?"
	case code == codes.PermissionDenied:
		return "; the caller needs video.v1.VideoService/ListVideos and GetVideo in its policy, or roles/run.invoker"
	}
	return ""
}

// bearer returns an ID token for each call; it may have changed meanwhile.
type bearer func() (string, error)

// GetRequestMetadata sends the token twice, because Cloud Run takes the
// signature out of the one that it has read, the second if there is one: see
// internal/auth.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := b()
	if err != nil {
		return nil, fmt.Errorf("get token: %w", err)
	}
	value := "Bearer " + strings.TrimSpace(token)
	return map[string]string{"authorization": value, "x-serverless-authorization": value}, nil
}

// RequireTransportSecurity keeps the token off connections without TLS.
func (bearer) RequireTransportSecurity() bool { return true }
