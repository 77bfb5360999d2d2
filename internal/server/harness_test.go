package server

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"example.com/videocatalog/api"
	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/auth"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/transport"
)

var must, same = pgtest.Must, pgtest.Same

// running is a server that really listens, over a store in memory.
type running struct {
	server  *transport.Server
	catalog *catalogService
	store   *fakeStore
	addr    string
	log     *logBuffer
	stop    context.CancelFunc
	done    chan error // gets what Run returns

	mu    sync.Mutex
	admit func(ctx context.Context, method string) (string, error) // guarded by mu; nil: all
}

// deps are what a test may change before its server is made.
type deps struct {
	transport.Deps
	videos        VideoStore
	entries       CatalogStore // nil: the server has no handlers
	catalogConfig CatalogConfig
}

// admitting returns an Admit of what returns the name of the caller.
func admitting(name func(ctx context.Context, method string) (string, error)) func(context.Context, string) (context.Context, error) {
	return func(ctx context.Context, method string) (context.Context, error) {
		who, err := name(ctx, method)
		return auth.WithCaller(ctx, who), err
	}
}

// start runs a server until the test ends.
func start(t testing.TB, cfg transport.Config, change ...func(*deps)) *running {
	t.Helper()
	r := &running{store: newFakeStore(), log: new(logBuffer), done: make(chan error, 1)}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	r.addr = listener.Addr().String()
	deps := deps{videos: r.store, entries: r.store}
	deps.Log, deps.Listener, deps.OpenAPI = slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelWarn})), listener, api.OpenAPI
	deps.Admit = admitting(func(ctx context.Context, method string) (string, error) {
		r.mu.Lock()
		admit := r.admit
		r.mu.Unlock()
		if admit == nil {
			return "", nil
		}
		return admit(ctx, method)
	})
	for _, f := range change {
		f(&deps)
	}
	server, catalog, err := newServer(cfg, deps, r.store)
	must(t, err)
	r.server, r.catalog = server, catalog
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() {
		r.done <- server.Run(ctx)
		close(r.done)
	}()
	t.Cleanup(func() {
		stop()
		if err := <-r.done; err != nil {
			t.Errorf("Run() = %v, want nil once ctx is done", err)
		}
	})
	return r
}

// newServer makes the server of both services.
func newServer(cfg transport.Config, d deps, changes Changes) (*transport.Server, *catalogService, error) {
	store := d.entries
	catalog := newCatalogService(d.catalogConfig, store, changes)
	d.Services = []transport.Service{Videos(d.videos), catalogOf(catalog)}
	for i := range d.Services {
		if store == nil {
			d.Services[i].Handler = nil
		}
	}
	d.Log = cmp.Or(d.Log, slog.Default())
	if d.Live == nil {
		d.Live = func() error { return nil }
	}
	server, err := transport.New(cfg, d.Deps)
	return server, catalog, err
}

type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// client calls both services.
type client struct {
	videos  videov1.VideoServiceClient
	catalog catalogv1.CatalogServiceClient
}

func (r *running) dial(t testing.TB, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:"+r.addr, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (r *running) grpcClient(t testing.TB, options ...grpc.DialOption) client {
	t.Helper()
	conn := r.dial(t, options...)
	return client{videov1.NewVideoServiceClient(conn), catalogv1.NewCatalogServiceClient(conn)}
}

// httpClient returns a client of its own for each test, of one protocol.
func httpClient(t testing.TB, http2 bool) *http.Client {
	t.Helper()
	var protocols http.Protocols
	protocols.SetHTTP1(!http2)
	protocols.SetUnencryptedHTTP2(http2)
	transport := &http.Transport{Protocols: &protocols, MaxIdleConnsPerHost: 100}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// serve runs a server and a client of its gRPC API. The gateway calls the same server, so that a rule that
// is proven here holds over REST, too: rest_test.go and openapi_test.go are about what REST adds.
func serve(t *testing.T, cfg transport.Config, change ...func(*deps)) (*running, client) {
	t.Helper()
	r := start(t, cfg, change...)
	return r, r.grpcClient(t)
}

// violations returns the fields that a status says are wrong.
func violations(err error) []string {
	var fields []string
	for _, detail := range status.Convert(err).Details() {
		if bad, ok := detail.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				fields = append(fields, v.GetField())
			}
		}
	}
	return fields
}
