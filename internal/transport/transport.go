// Package transport serves an API on one port: gRPC over HTTP/2 without TLS, which Cloud Run
// terminates; REST as the annotations of the proto files map it; health checks for both,
// and gRPC reflection. It knows no service: Deps.Services has them. Their handlers return
// a [*problem.Error] for what their caller can act on.
//
// A gRPC request goes from net/http (http.go) through one interceptor (calls.go) to
// its handler. A REST request becomes a gRPC call of the same process (rest.go), so
// that every call passes that interceptor once. errors.go has all errors.
//
// The server responds to every request that it accepted, even while it stops, within
// Config.DrainTimeout. Streams are the exception: they end with UNAVAILABLE when
// the server begins to stop. The tests of package server test this package too.
package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc/filters"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/test/bufconn"
)

// The sides of the process that services need.
const (
	SideCommands = "commands"
	SideQueries  = "queries"
)

// Service is a gRPC service, and how REST requests reach it.
type Service struct {
	Desc    *grpc.ServiceDesc
	Handler any // nil: the methods are UNIMPLEMENTED, over gRPC and REST
	// Gateway adds the routes of REST to mux, which call the service through
	// conn, as grpc-gateway generates it. It may be nil.
	Gateway func(ctx context.Context, mux *runtime.ServeMux, conn *grpc.ClientConn) error
	Side    string // in Deps.Sides, which the service needs; may be empty
	// only full: begin
	// Wait waits for goroutines that handlers have left, when all calls have
	// ended. It may be nil.
	Wait func()
	// only full: end
}

// Deps has the dependencies of a Server. All but Listener, Live and Log may be zero.
type Deps struct {
	Listener net.Listener // Run closes it
	Services []Service
	OpenAPI  []byte // the description of the REST API, served as /openapi.json
	// Wrap returns a handler around all requests, before they are checked.
	Wrap func(http.Handler) http.Handler
	// Admit returns the context of a call of a method, /package.Service/Method,
	// with the caller if it verified one, or the status of a rejected call.
	Admit   func(ctx context.Context, fullMethod string) (context.Context, error)
	Proxies int // in front of the process, for the addresses of callers: see auth.Gate
	// Sides are the parts of the process that can be unavailable by themselves.
	// The check of a part returns an error if the part cannot serve now. It must not
	// depend on the backlog, or it would remove the instances that process the backlog.
	Sides   map[string]func(context.Context) error
	Live    func() error // returns an error if the process should be restarted
	Tracing trace.TracerProvider
	Metrics metric.MeterProvider
	Log     *slog.Logger // gets a line for every call, and the errors that clients must not see
}

// Server serves the API on one port. Create it with New.
type Server struct {
	cfg  Config
	deps Deps

	http      *http.Server // serves the port
	grpc      *grpc.Server
	mux       *runtime.ServeMux // of REST
	allow     *runtime.ServeMux // adds the method of a request to Allow if mux has a handler
	inProcess *bufconn.Listener // gRPC calls of mux
	conn      *grpc.ClientConn  // from mux to inProcess
	sideOf    map[string]string // the side of a service with a handler
	streaming map[string]bool
	checks    singleflight.Group // of sides
	calls     atomic.Int64       // in flight, without streams
	streams   atomic.Int64       // in flight
	refused   metric.Int64Counter
	draining  context.Context // is canceled by drain when Run begins to stop
	drain     context.CancelFunc
}

// New returns a Server that does not serve yet. The caller must call Run, which
// releases the resources.
func New(cfg Config, deps Deps) (*Server, error) {
	s := &Server{
		cfg: cfg.WithDefaults(), deps: deps, sideOf: map[string]string{"": ""},
		inProcess: bufconn.Listen(256 << 10),
	}
	s.draining, s.drain = context.WithCancel(context.Background())
	s.makeGRPC()
	if err := errors.Join(s.makeRefused(), s.makeGateway()); err != nil {
		return nil, err
	}
	s.makeHTTP()
	return s, nil
}

func (s *Server) makeGRPC() {
	s.grpc = newGRPC(healthService{server: s},
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
		grpc.MaxRecvMsgSize(s.cfg.MaxReceive),
		grpc.WaitForHandlers(true), // no handler uses a store after Run has returned
		grpc.StatsHandler(otelgrpc.NewServerHandler( // it also passes on the trace of the caller, which the store saves
			otelgrpc.WithTracerProvider(s.deps.Tracing), otelgrpc.WithMeterProvider(s.deps.Metrics), otelgrpc.WithPropagators(propagation.TraceContext{}),
			otelgrpc.WithFilter(filters.None(filters.HealthCheck(), filters.ServicePrefix("grpc.reflection."))),
		)),
	)
	for _, service := range s.deps.Services {
		if service.Handler != nil {
			s.grpc.RegisterService(service.Desc, service.Handler)
			s.sideOf[service.Desc.ServiceName] = service.Side
		}
	}
	s.streaming = streaming(s.grpc)
}

// streaming returns whether each method of a server is a stream, by package.Service/Method.
func streaming(s *grpc.Server) map[string]bool {
	all := make(map[string]bool)
	for service, info := range s.GetServiceInfo() {
		for _, method := range info.Methods {
			all[service+"/"+method.Name] = method.IsClientStream || method.IsServerStream
		}
	}
	return all
}

// newGRPC returns a server that has the services of every port.
func newGRPC(checks healthpb.HealthServer, options ...grpc.ServerOption) *grpc.Server {
	s := grpc.NewServer(options...)
	healthpb.RegisterHealthServer(s, checks)
	reflection.Register(s)
	return s
}

// Run serves until ctx is done, then drains and returns nil. It returns an
// error if it cannot serve. It can be called once.
func (s *Server) Run(ctx context.Context) error {
	ended := make(chan error, 2)
	var serving sync.WaitGroup
	serving.Go(func() { ended <- s.grpc.Serve(s.inProcess) })
	serving.Go(func() { ended <- s.http.Serve(netutil.LimitListener(s.deps.Listener, s.cfg.MaxConnections)) })
	defer serving.Wait()

	defer s.stop(ctx)
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return fmt.Errorf("serve: %w", err)
	}
}

// stop drains the server. net/http goes first, because it waits for all its
// calls. The gateway's connection and the gRPC server, which serve those calls,
// go last: grpc.Server.GracefulStop would abort calls that came through
// net/http.
func (s *Server) stop(ctx context.Context) {
	s.drain() // not ready from now on; ends streams, and tells handlers that wait

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.DrainTimeout)
	defer cancel()
	if err := s.http.Shutdown(ctx); err != nil {
		s.deps.Log.WarnContext(ctx, "server: cutting off what did not end in time", "err", err)
	}
	_ = s.http.Close() // the error of a connection that is closed anyway
	_ = s.conn.Close() // the same
	s.grpc.Stop()
	// only full: begin
	for _, service := range s.deps.Services {
		if service.Wait != nil {
			service.Wait()
		}
	}
	// only full: end
}

// Config has the settings of a Server. The zero value works.
type Config struct {
	// CallTimeout is the longest time of a call, from its header to the last
	// byte of its response. A caller can set a shorter deadline. Default: 30 s.
	CallTimeout time.Duration
	// StreamLifetime is the longest time of a stream. Its client must then call
	// again, and is authenticated again. Default: 30 min.
	StreamLifetime time.Duration
	// MaxReceive is the largest size in bytes of a request. Default: 256 KiB.
	MaxReceive int
	// MaxCalls is the largest number of calls in flight, counted from their
	// header on. Besides, half as many streams may be open. More are rejected with
	// RESOURCE_EXHAUSTED. A call holds a request of MaxReceive or a page of
	// 256 KiB. Default: 500, twice containerConcurrency of deploy/run.
	MaxCalls int
	// MaxConnections is the largest number of open connections; more wait to be
	// accepted. Default: 10,000.
	MaxConnections int
	// ReadHeaderTimeout is the longest time that a client may take to send a
	// request header over HTTP/1.1. Default: 10 s.
	ReadHeaderTimeout time.Duration
	// Hosts protect a port without authentication from DNS rebinding, by which a
	// web page calls it under the page's host name. The host of a request must be
	// one of Hosts, localhost, or an IP address; "*": any. Default: any.
	Hosts []string
	// DrainTimeout is how long a stopping server waits for the calls in flight
	// before it aborts them. Cloud Run gives a process 10 s. Default: 4.5 s.
	DrainTimeout time.Duration
}

// WithDefaults returns the Config with each zero value replaced by its default.
func (c Config) WithDefaults() Config {
	c.CallTimeout = cmp.Or(c.CallTimeout, 30*time.Second)
	c.StreamLifetime = cmp.Or(c.StreamLifetime, 30*time.Minute)
	c.MaxReceive = cmp.Or(c.MaxReceive, 256<<10)
	c.MaxCalls = cmp.Or(c.MaxCalls, 500)
	c.MaxConnections = cmp.Or(c.MaxConnections, 10_000)
	c.ReadHeaderTimeout = cmp.Or(c.ReadHeaderTimeout, 10*time.Second)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 4500*time.Millisecond)
	return c
}
