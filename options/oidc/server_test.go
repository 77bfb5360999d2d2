package oidc

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/server"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/transport"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// program is a service with videos, and with this option.
func program() app.Program {
	return app.Program{Options: []app.Option{Option()}, Registrations: []app.Registration{{
		AggregateType: "video",
		Services: func(b app.Backend) ([]transport.Service, error) {
			return []transport.Service{server.Videos(store.NewVideos(b.CommandPool, b.Wake))}, nil
		},
	}}}
}

// process is a server of the program.
type process struct {
	addr    string
	videos  videov1.VideoServiceClient
	conn    *grpc.ClientConn
	stop    context.CancelFunc
	done    chan error
	started chan string

	mu  sync.Mutex
	log bytes.Buffer // guarded by mu
}

// Write keeps a line of the log, and finds the address of the server in it.
func (p *process) Write(line []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var of struct{ Message, Addr string }
	if json.Unmarshal(line, &of) == nil && of.Message == "server: started" {
		p.started <- of.Addr
	}
	return p.log.Write(line)
}

func (p *process) logged() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

func startServer(t *testing.T, environ ...string) *process {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	p := &process{stop: stop, done: make(chan error, 1), started: make(chan string, 1)}
	go func() { p.done <- program().Run(ctx, nil, append(environ, "ROLES=api", "PORT=0"), io.Discard, p) }()
	t.Cleanup(stop)
	select {
	case p.addr = <-p.started:
		p.addr = strings.Replace(p.addr, "[::]", "127.0.0.1", 1)
	case err := <-p.done:
		t.Fatalf("the server ended: %v\n%s", err, p.logged())
	}
	var err error
	if p.conn, err = grpc.NewClient(p.addr, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.conn.Close() })
	p.videos = videov1.NewVideoServiceClient(p.conn)
	return p
}

// post creates a video over REST.
func (p *process) post(t *testing.T, token string) (code int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+p.addr+"/v1/videos", strings.NewReader(`{"title":"Ran"}`))
	must(t, err)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := http.DefaultClient.Do(request)
	must(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must(t, err)
	return response.StatusCode, string(text)
}

const somePolicy = `rules:
  - email: [editor@example.com]
    methods: [video.v1.VideoService/*]
  - email: [reader@example.com]
    methods: [video.v1.VideoService/ListVideos]
`

// In production a server that checks tokens allows exactly the calls that the policy allows, over
// gRPC and REST. The reason of a refusal is in its log only, and the outbox keeps the caller of a
// command. A caller who calls too often delays no other caller.
func TestServerAdmitsByPolicy(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	key := newKey(t, "1", jose.ES256)
	i := newIssuer(t, key)
	p := startServer(t, "K_SERVICE=videos", "AUTH=oidc", "AUTH_ISSUER="+i.url, "AUTH_AUDIENCE="+audience,
		"AUTH_POLICY_FILE="+writePolicy(t, somePolicy), "SERVER_CALLER_RATE=3", "DATABASE_URL="+pool.Config().ConnString())
	of := func(email string) map[string]any {
		return with(with(i.goodClaims(), "email", email), "sub", "sub of "+email)
	}
	editor, reader := sign(t, key, of("editor@example.com")), sign(t, key, of("reader@example.com"))
	for _, tt := range []struct { // in this order, because the log has the first ten refusals
		name   string
		token  string
		create codes.Code
		list   codes.Code
	}{
		{"editor", editor, codes.OK, codes.OK},
		{"reader", reader, codes.PermissionDenied, codes.OK},
		{"stranger", sign(t, key, of("stranger@example.com")), codes.PermissionDenied, codes.PermissionDenied},
		{"editor elsewhere", sign(t, key, with(of("editor@example.com"), "aud", "https://other.example.com")), codes.Unauthenticated, codes.Unauthenticated},
		{"of another issuer", sign(t, newKey(t, "1", jose.ES256), of("editor@example.com")), codes.Unauthenticated, codes.Unauthenticated},
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
	var kept int
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM video_catalog.outbox WHERE caller = 'editor@example.com'").Scan(&kept); err != nil || kept != 2 {
		t.Errorf("%d events of the editor in the outbox, %v, want 2", kept, err)
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
	isRetryInfo := func(detail any) bool {
		_, ok := detail.(*errdetails.RetryInfo)
		return ok
	}
	if err := callOften(reader); status.Code(err) != codes.ResourceExhausted || !slices.ContainsFunc(status.Convert(err).Details(), isRetryInfo) {
		t.Errorf("30 calls at once = %v, want ResourceExhausted with google.rpc.RetryInfo", err)
	}
	if _, err := p.videos.ListVideos(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+editor), nil); err != nil {
		t.Errorf("another caller = %v, want success", err)
	}

	p.stop()
	select {
	case err := <-p.done:
		if err != nil {
			t.Errorf("stop = %v, want nil", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the server does not stop")
	}
	log := p.logged()
	for _, want := range []string{"auth: call refused", "no rule of the policy allows it; email stranger@example.com", "invalid audience claim", `"auth":"oidc"`} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %q", want)
		}
	}
	if strings.Contains(log, editor[:60]) {
		t.Error("the log has a token")
	}
}

// Every policy in README.md is valid.
func TestDocumentedPoliciesAreGood(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	must(t, err)
	all := transport.Methods([]transport.Service{{Desc: &videov1.VideoService_ServiceDesc}, {Desc: &catalogv1.CatalogService_ServiceDesc}})
	if health := healthpb.Health_Check_FullMethodName[1:]; !slices.Contains(all, health) {
		t.Errorf("Methods() = %q, want %s of every port among them", all, health)
	}
	seen := 0
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(text, -1) {
		seen++
		if _, err := parsePolicy(block[1], all); err != nil {
			t.Errorf("a policy in README.md: %v\n%s", err, block[1])
		}
	}
	if seen == 0 {
		t.Error("README.md has no example of a policy")
	}
}
