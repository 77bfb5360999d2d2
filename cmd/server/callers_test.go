package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/auth"
)

// tokens is an OpenID Connect issuer on this machine.
type tokens struct {
	url    string
	signer jose.Signer
}

func newTokens(t *testing.T) *tokens {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key := jose.JSONWebKey{Key: private, KeyID: "1", Algorithm: string(jose.ES256), Use: "sig"}
	issuer := new(tokens)
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": issuer.url, "jwks_uri": issuer.url + "/keys"})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{key.Public()}})
	})
	listener := httptest.NewServer(mux)
	t.Cleanup(listener.Close)
	issuer.url = listener.URL
	if issuer.signer, err = jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, nil); err != nil {
		t.Fatal(err)
	}
	return issuer
}

// of returns a token of a caller, for an audience.
func (i *tokens) of(t *testing.T, email, audience string) string {
	t.Helper()
	claims := map[string]any{
		"iss": i.url, "sub": "sub of " + email, "aud": audience, "exp": time.Now().Add(time.Hour).Unix(), "email": email, "email_verified": true,
	}
	token, err := jwt.Signed(i.signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

const somePolicy = `rules:
  - email: [editor@example.com]
    methods: [video.v1.VideoService/*, catalog.v1.CatalogService/*]
  - email: [reader@example.com]
    methods: [video.v1.VideoService/ListVideos]
`

func policyFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// In production a server that checks tokens lets everyone do what the policy
// says, over gRPC and REST, and nothing else; why is in its log only. One caller
// who calls too often is held up alone.
func TestServerAdmitsByPolicy(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	issuer := newTokens(t)
	const audience = "https://videos.example.com"
	p := s.start(t, "K_SERVICE=videos", "ENVIRONMENT=development", "AUTH=oidc", "AUTH_ISSUER="+issuer.url, "AUTH_AUDIENCE="+audience,
		"AUTH_POLICY_FILE="+policyFile(t, somePolicy), "SERVER_CALLER_RATE=3")
	editor, reader := issuer.of(t, "editor@example.com", audience), issuer.of(t, "reader@example.com", audience)
	for _, tt := range []struct { // in this order, because the log has the first ten refusals
		name   string
		token  string
		create codes.Code
		list   codes.Code
	}{
		{"editor", editor, codes.OK, codes.OK},
		{"reader", reader, codes.PermissionDenied, codes.OK},
		{"stranger", issuer.of(t, "stranger@example.com", audience), codes.PermissionDenied, codes.PermissionDenied},
		{"editor elsewhere", issuer.of(t, "editor@example.com", "https://other.example.com"), codes.Unauthenticated, codes.Unauthenticated},
		{"of another issuer", newTokens(t).of(t, "editor@example.com", audience), codes.Unauthenticated, codes.Unauthenticated},
		{"no token", "", codes.Unauthenticated, codes.Unauthenticated},
		{"not even a token", "x", codes.Unauthenticated, codes.Unauthenticated},
		{"with one too large", strings.Repeat("x", 20_000), codes.Unauthenticated, codes.Unauthenticated},
	} {
		ctx := t.Context()
		if tt.token != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+tt.token)
		}
		_, err := p.videos.CreateVideo(ctx, &videov1.CreateVideoRequest{Video: &videov1.Video{Title: "Ran"}})
		if status.Code(err) != tt.create {
			t.Errorf("%s: CreateVideo() = %v, want %v", tt.name, err, tt.create)
		}
		if _, err := p.videos.ListVideos(ctx, &videov1.ListVideosRequest{}); status.Code(err) != tt.list {
			t.Errorf("%s: ListVideos() = %v, want %v", tt.name, err, tt.list)
		}
		want := map[codes.Code]int{codes.OK: 200, codes.PermissionDenied: 403, codes.Unauthenticated: 401}[tt.create]
		if got, body := p.post(t, tt.token); got != want || strings.Contains(body, "rule") || strings.Contains(body, "audience") {
			t.Errorf("%s: POST /v1/videos = %d %s, want %d without a reason", tt.name, got, body, want)
		}
	}
	if _, err := healthpb.NewHealthClient(p.conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Errorf("health = %v, want it open to everyone", err)
	}

	callOften := func(token string) (refused error) {
		for range 30 {
			ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
			if _, err := p.videos.ListVideos(ctx, &videov1.ListVideosRequest{}); err != nil {
				refused = err
			}
		}
		return refused
	}
	if err := callOften(reader); status.Code(err) != codes.ResourceExhausted || !slices.ContainsFunc(status.Convert(err).Details(), isRetryInfo) {
		t.Errorf("30 calls at once = %v, want ResourceExhausted with google.rpc.RetryInfo", err)
	}
	if _, err := p.videos.ListVideos(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+editor), nil); err != nil {
		t.Errorf("another caller = %v, want success", err)
	}

	if _, err := p.stop(t); err != nil {
		t.Errorf("stop = %v, want nil", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	log := strings.Join(p.log, "\n")
	for _, want := range []string{"auth: call refused", "no rule of the policy allows it; email stranger@example.com", "invalid audience claim", `"auth":"oidc"`} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %q", want)
		}
	}
	if strings.Contains(log, editor[:60]) {
		t.Error("the log has a token")
	}
}

// post creates a video over REST.
func (p *process) post(t *testing.T, token string) (code int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+p.addr+"/v1/videos", strings.NewReader(`{"title":"Ran"}`))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// With AUTH=iam the server trusts that Cloud Run has asked, and only counts.
func TestServerCountsCallersBehindIAM(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	p := s.start(t, "K_SERVICE=videos", "ENVIRONMENT=development", "AUTH=iam", "SERVER_CALLER_RATE=1")
	call := func(from string) error {
		_, err := p.videos.ListVideos(metadata.AppendToOutgoingContext(t.Context(), "x-forwarded-for", "203.0.113.99, "+from), &videov1.ListVideosRequest{})
		return err
	}
	var last error
	for range 100 { // on a busy machine more than the first two are within the rate
		if last = call("198.51.100.1"); last != nil {
			break
		}
	}
	if status.Code(last) != codes.ResourceExhausted {
		t.Errorf("one of many calls of one address = %v, want ResourceExhausted", last)
	}
	if err := call("198.51.100.2"); err != nil {
		t.Errorf("another address = %v, want success", err)
	}
	// Over REST, too, whatever the caller writes before the address that the proxy has appended.
	for from, want := range map[string]int{"198.51.100.1": http.StatusTooManyRequests, "198.51.100.3": http.StatusOK} {
		code := 0
		for range 100 {
			code, _ = send(t, http.MethodGet, "http://"+p.addr+"/v1/videos", "", http.Header{"X-Forwarded-For": {"\xff, " + from}})
			if code == want {
				break
			}
		}
		if code != want {
			t.Errorf("REST of address %s = %d, want %d", from, code, want)
		}
	}
}

// send sends a REST request, and returns the status and the body of the response.
func send(t *testing.T, method, url, body string, header http.Header) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header = header
	if host := header.Get("Host"); host != "" {
		request.Host = host
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// A port that authenticates nobody is for this machine, and refuses pages that call by a name
// of their own, unless the operator has named the hosts.
func TestPortsWithoutAuthenticationAreLocal(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	for _, tt := range []struct {
		name        string
		extra       []string
		local       bool
		public, own int // status by another host, of the public and the private port
	}{
		{"nobody is authenticated", nil, true, 403, 403},
		{"the host is allowed", []string{"ALLOWED_HOSTS=evil.example"}, false, 200, 200},
		{"any host is", []string{"ALLOWED_HOSTS=*"}, false, 200, 200},
		{"callers are authenticated", []string{"AUTH=iam"}, false, 200, 403},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := s.start(t, append(tt.extra, "ROLES=api", "TELEMETRY_ADDR=127.0.0.1:0")...)
			if local := p.listens == "127.0.0.1"; local != tt.local {
				t.Errorf("PORT listens on %q, want loopback only: %t", p.listens, tt.local)
			}
			evil := http.Header{"Host": {"evil.example"}, "Origin": {"http://evil.example"}, "Content-Type": {"application/json"}}
			private := p.private(t)
			for _, call := range []struct {
				method, url, body string
				want              int
			}{
				{"POST", p.addr + "/v1/videos", `{"title":"Ran"}`, tt.public},
				{"GET", p.addr + "/v1/videos", "", tt.public},
				{"PUT", private + "/log/level", "INFO", tt.own},
				{"GET", private + "/debug/pprof/heap", "", tt.own},
				{"GET", private + "/metrics", "", tt.own},
			} {
				code, text := send(t, call.method, "http://"+call.url, call.body, evil)
				if code != call.want || code == 403 && !(strings.Contains(text, "evil.example") && strings.Contains(text, "ALLOWED_HOSTS")) {
					t.Errorf("%s %s by another host = %d %.300s, want %d, and a refusal with the host and the setting", call.method, call.url, code, text, call.want)
				}
			}
			for _, host := range []string{"localhost", "10.1.2.3:9090"} {
				if code, text := send(t, "GET", "http://"+private+"/metrics", "", http.Header{"Host": {host}}); code != 200 {
					t.Errorf("GET /metrics of %s = %d %.300s, want 200", host, code, text)
				}
			}
		})
	}
}

// With AUTH=iam the outbox keeps the caller whom Cloud Run has checked, and nobody if the call
// has no token.
func TestOutboxKeepsCallersBehindIAM(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	p := s.start(t, "K_SERVICE=videos", "ENVIRONMENT=development", "AUTH=iam", "ROLES=api")
	token := newTokens(t).of(t, "web@example.com", "https://videos.example.com")
	token = token[:strings.LastIndex(token, ".")] + ".SIGNATURE_REMOVED_BY_GOOGLE"
	for want, ctx := range map[string]context.Context{
		"web@example.com": metadata.AppendToOutgoingContext(t.Context(), "x-serverless-authorization", "Bearer "+token),
		"":                t.Context(),
	} {
		video, err := p.videos.CreateVideo(ctx, &videov1.CreateVideoRequest{Video: &videov1.Video{Title: "Ran"}})
		if err != nil {
			t.Fatal(err)
		}
		const called = "SELECT count(*) FROM video_catalog.outbox WHERE 'videos/' || aggregate_id = $1 AND coalesce(caller, '') = $2"
		if n := s.count(t, called, video.GetName(), want); n != 1 {
			t.Errorf("%d events of the caller %q, want 1", n, want)
		}
	}
}

// Settings that would leave production open, or say one thing and do another, are
// refused, all at once.
func TestMistakesAboutCallersAreToldAtOnce(t *testing.T) {
	t.Parallel()
	good := []string{"DATABASE_URL=postgres://x", "PUBSUB_PROJECT=p"}
	policy, bad := policyFile(t, somePolicy), policyFile(t, "rules:\n- {methods: [video.v1.VideoService/BurnVideo]}\n")
	for name, tt := range map[string]struct {
		environ []string
		want    []string
	}{
		"nobody says who checks":     {nil, []string{"AUTH is required by the role api: iam if Cloud Run's IAM checks callers, oidc for this process to check them, or off"}},
		"nothing said in words":      {[]string{"AUTH="}, []string{"AUTH is required by the role api"}},
		"nothing said on Cloud Run":  {[]string{"K_SERVICE=videos"}, []string{"AUTH is required by the role api"}},
		"a worker that says nothing": {[]string{"ROLES=publisher,projector"}, nil},
		"development":                {[]string{"AUTH=off"}, nil},
		"off on Cloud Run":           {[]string{"K_SERVICE=videos", "AUTH=off"}, []string{"AUTH must not be off in production"}},
		"off in production":          {[]string{"ENVIRONMENT=production", "AUTH=off"}, []string{"AUTH must not be off in production"}},
		"a worker in production":     {[]string{"ENVIRONMENT=production", "ROLES=publisher,projector"}, nil},
		"development on Cloud Run":   {[]string{"K_SERVICE=videos", "ENVIRONMENT=development", "AUTH=off"}, nil},
		"IAM":                        {[]string{"K_SERVICE=videos", "AUTH=iam"}, nil},
		"OIDC":                       {[]string{"K_SERVICE=videos", "AUTH=oidc", "AUTH_AUDIENCE=https://a,https://b", "AUTH_POLICY_FILE=" + policy}, nil},
		"OIDC with nothing":          {[]string{"AUTH=oidc"}, []string{"AUTH_AUDIENCE is required", "AUTH_POLICY_FILE is required"}},
		"OIDC with everything bad":   {[]string{"AUTH=oidc", "AUTH_ISSUER=http://accounts.google.com", "AUTH_AUDIENCE=a,,b", "AUTH_POLICY_FILE=" + bad}, []string{"AUTH_ISSUER must begin with https://", "AUTH_AUDIENCE is required", "AUTH_POLICY_FILE: rules[0] names nobody", "AUTH_POLICY_FILE: rules[0].methods[0]"}},
		"no such policy":             {[]string{"AUTH=oidc", "AUTH_AUDIENCE=a", "AUTH_POLICY_FILE=/nowhere"}, []string{"AUTH_POLICY_FILE: open /nowhere"}},
		"a policy for nobody":        {[]string{"AUTH=iam", "AUTH_POLICY_FILE=" + policy}, []string{"AUTH_POLICY_FILE has no effect"}},
		"unknown words":              {[]string{"AUTH=none", "ENVIRONMENT=prod"}, []string{"AUTH must be off, iam or oidc", "ENVIRONMENT must be production or development"}},
		"limits":                     {[]string{"AUTH=off", "SERVER_CALLER_RATE=-1", "SERVER_TRUSTED_PROXIES=-2"}, []string{"SERVER_CALLER_RATE", "SERVER_TRUSTED_PROXIES"}},
		"any number, and no limits":  {[]string{"AUTH=iam", "SERVER_CALLER_RATE=0"}, nil},
	} {
		err := program().Validate("serve", append(good, tt.environ...))
		if len(tt.want) == 0 {
			if err != nil {
				t.Errorf("%s: Validate() = %v, want nil", name, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%s: Validate() = nil, want an error", name)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: Validate() = %v, want in it %q", name, err, want)
			}
		}
		if got := strings.Count(err.Error(), "\n"); got != len(tt.want) {
			t.Errorf("%s: Validate() tells %d mistakes, want %d:\n%v", name, got, len(tt.want), err)
		}
	}
	if err := program().Validate("migrate", []string{"DATABASE_URL=postgres://x", "K_SERVICE=videos", "AUTH_POLICY_FILE=/nowhere"}); err != nil {
		t.Errorf("Validate(migrate) = %v, want nil: nobody calls a command", err)
	}
}

// Every policy in the documents is one that the server takes.
func TestDocumentedPoliciesAreGood(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(text, -1) {
		seen++
		if _, err := auth.ParsePolicy(block[1], program().Methods()); err != nil {
			t.Errorf("a policy in docs/security.md: %v\n%s", err, block[1])
		}
	}
	if seen == 0 {
		t.Error("docs/security.md has no example of a policy")
	}
}

func isRetryInfo(detail any) bool {
	_, ok := detail.(*errdetails.RetryInfo)
	return ok
}
