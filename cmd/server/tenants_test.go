package main

import (
	"context"
	"errors"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"example.com/servicekit/localissuer"
)

// startTenants starts a server whose callers have tenants. as returns the context of a caller with some claims; the usual
// one is tenant. A test that sets no other claim calls as("tenant", "acme").
func (s *stack) startTenants(t testing.TB, extra ...string) (p *process, as func(claim string, value any) context.Context) {
	t.Helper()
	issuer, err := localissuer.Start()
	must(t, err)
	t.Cleanup(func() { _ = issuer.Close() })
	calls, err := url.Parse(s.url)
	must(t, err)
	user := "calls_of" + strings.ReplaceAll(calls.Path, "/", "_") // users belong to the whole server
	_, err = s.pool.Exec(t.Context(), "CREATE USER "+user+" IN ROLE video_catalog_calls, video_catalog_read_calls")
	must(t, err)
	calls.User = url.User(user)
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	must(t, os.WriteFile(policy, []byte(localissuer.Policy), 0o600))
	p = s.start(t, append(extra, "TENANCY_DATABASE_URL="+calls.String(), "AUTH=oidc", "AUTH_ISSUER="+issuer.URL,
		"AUTH_AUDIENCE="+localissuer.Audience, "AUTH_POLICY_FILE="+policy)...)
	return p, func(claim string, value any) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+issuer.Token(map[string]any{claim: value}))
	}
}

// A call needs a token with one tenant of the right form. The log has the reason, and the caller does not.
func TestTenantsOfTokens(t *testing.T) {
	t.Parallel()
	p, as := newStack(t).startTenants(t)
	for _, tt := range []struct {
		claim  string
		value  any
		want   codes.Code
		reason string
	}{
		{"tenant", "acme", codes.OK, ""},
		{"customer", "acme", codes.PermissionDenied, "no claim tenant"},
		{"tenant", []string{"acme", "other"}, codes.PermissionDenied, "must be one string"},
		{"tenant", "acme\nother", codes.PermissionDenied, "a character that no tenant may have"},
		{"tenant", strings.Repeat("x", 65), codes.PermissionDenied, "has 65 bytes"},
	} {
		services, err := grpc_reflection_v1.NewServerReflectionClient(p.conn).ServerReflectionInfo(as(tt.claim, tt.value))
		must(t, err)
		must(t, services.CloseSend())
		for err == nil {
			_, err = services.Recv()
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		if got := status.Convert(err); got.Code() != tt.want || tt.reason != "" && strings.Contains(got.Message(), tt.reason) {
			t.Errorf("a call with %s %v = %v, want %s without the reason", tt.claim, tt.value, err, tt.want)
		}
		eventually(t, time.Minute, "the log has: "+tt.reason, func() bool {
			return strings.Contains(strings.Join(p.lines(), "\n"), tt.reason)
		})
	}
}
