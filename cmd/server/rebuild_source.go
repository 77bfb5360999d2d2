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

// rebuildSource is the address that rebuild reads from, and its credentials.
type rebuildSource struct {
	address  string // HOST:PORT
	tls      bool
	audience string // of an ID token of Google; empty if there is none
	file     string // has an ID token; empty if there is none
	dryRun   bool   // change no entry
	restart  bool   // do not resume an interrupted rebuild
}

// parseRebuild reads the arguments of rebuild.
func parseRebuild(args []string) (rebuildSource, error) {
	var s rebuildSource
	flags := flag.NewFlagSet("rebuild", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the error says enough
	idToken := flags.Bool("id-token", false, "")
	flags.BoolVar(&s.dryRun, "dry-run", false, "")
	flags.BoolVar(&s.restart, "restart", false, "")
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
		return s, errors.New("--audience is the audience of the token that --id-token requests: give both")
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

// connect makes the connection to the source. It does not wait until it is open.
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
		if _, err := read(); err != nil { // fail now, not with the status of a call
			return nil, fmt.Errorf("--token-file: %w", err)
		}
		options = append(options, grpc.WithPerRPCCredentials(read))
	case s.audience != "":
		tokens, err := idtoken.NewTokenSource(ctx, s.audience)
		if err != nil {
			return nil, fmt.Errorf("--id-token: %w; it needs a service account: on your own machine, give --token-file", err)
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

// refused returns advice if the source refused the caller, or an empty string.
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

// bearer returns the ID token. It is called for each call, because the token may have
// changed.
type bearer func() (string, error)

// GetRequestMetadata sends the token in two headers. Cloud Run reads one of them, the
// second if there is one, and removes the signature from it: see internal/auth.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := b()
	if err != nil {
		return nil, fmt.Errorf("get token: %w", err)
	}
	value := "Bearer " + strings.TrimSpace(token)
	return map[string]string{"authorization": value, "x-serverless-authorization": value}, nil
}

// RequireTransportSecurity returns true: the token must not be sent without TLS.
func (bearer) RequireTransportSecurity() bool { return true }
