// Package port serves an API on one port:
//
//   - gRPC requests, recognized by their content type, come over HTTP/2 without
//     TLS, because Cloud Run terminates TLS;
//   - REST requests are JSON over HTTP/1.1 or HTTP/2, mapped by the annotations of
//     the proto files and described at /openapi.json;
//   - /health/live, /health/ready, grpc.health.v1 and gRPC reflection are there too.
//
// It knows no service: Deps.Services has them. Their handlers return a
// [*problem.Error] for what their caller can act on.
//
// Every call passes the same guard exactly once. A REST request reaches it through
// an in-process gRPC connection. The guard calls Deps.Admit, checks the rules in
// the proto files, sets a deadline and turns panics and errors into statuses. It
// logs once what the client must not see.
//
// The server answers every request that it accepted, even while it stops, within
// Config.DrainTimeout. Streams are the exception: they end with UNAVAILABLE when
// the server begins to stop.
//
// Config limits the resources that clients can hold; docs/limits.md lists the
// attacks that were tried. The tests of package server, which has the handlers,
// test this package too.
package port

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"buf.build/go/protovalidate"
	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionalphapb "google.golang.org/grpc/reflection/grpc_reflection_v1alpha" // older clients still use it
	"google.golang.org/grpc/test/bufconn"
)

// Service is a gRPC service, and how REST requests reach it.
type Service struct {
	// Desc and Handler are what [grpc.ServiceRegistrar] takes. Without a Handler
	// the methods are UNIMPLEMENTED, over gRPC and REST.
	Desc    *grpc.ServiceDesc
	Handler any
	// Gateway adds the routes of REST to mux. They call the service through
	// conn. Nil: there are none.
	Gateway func(mux *runtime.ServeMux, conn grpc.ClientConnInterface) error
	// Side is the side in Deps.Sides that the service needs. Empty: none.
	Side string
	// Wait waits for goroutines that handlers have started and left. It is
	// called when all calls have ended. Nil: there are none.
	Wait func()
}

// Deps has the dependencies of a Server.
type Deps struct {
	Services []Service
	// OpenAPI is the description of the REST API. Nil: /openapi.json is not
	// served.
	OpenAPI []byte
	// Wrap returns a handler around all requests of the port, before they are checked, such
	// as one for browsers. Nil: there is none.
	Wrap func(http.Handler) http.Handler
	// Admit decides whether a call may continue, from its metadata and its
	// method, /package.Service/Method. It returns the status of a rejected
	// call, and the name of the caller if it verified one. Nil: every call may
	// continue.
	Admit func(ctx context.Context, fullMethod string) (caller string, err error)
	// WithCaller returns the context of an admitted call for its handler. caller is
	// the name that Admit returned. Nil: the context of handlers has no caller.
	WithCaller func(ctx context.Context, caller string) context.Context
	// Address returns the address of a caller, from the metadata and the peer
	// of the call. Limits per caller use it when Admit returned no name. Nil:
	// the address of the connection.
	Address func(ctx context.Context) string
	// Sides are the parts of the process that can be unavailable by themselves,
	// such as its commands and its queries. Each has a check, which returns an
	// error if the side cannot serve now. A check that takes more than a second
	// has failed. It must not depend on the backlog of events, or it would remove
	// the instances that process the backlog. Without a side the process is
	// always ready.
	Sides map[string]func(context.Context) error
	// Live returns an error if this process can never work again and should be
	// restarted. Dependencies that are unavailable for a time belong to Sides.
	// Nil: the process is always live.
	Live func() error
	// Tracing makes a span of every call, and Metrics counts calls. Each may be
	// nil, which turns it off. Handlers continue the trace of their caller in
	// any case.
	Tracing trace.TracerProvider
	Metrics metric.MeterProvider
	// Log receives a line for every call, and the errors that clients must not
	// see. Nil: slog.Default().
	Log *slog.Logger
	// Listener is the listener to serve on; Run closes it. Nil: Run listens on
	// Config.Addr.
	Listener net.Listener
}

// Server serves the API on one port. Create it with New.
type Server struct {
	cfg      Config
	services []Service
	openAPI  []byte
	sides    map[string]func(context.Context) error
	live     func() error
	log      *slog.Logger
	listener net.Listener

	grpc      *grpc.Server
	health    *health.Server
	inProcess *bufconn.Listener // gRPC calls of the gateway
	conn      *grpc.ClientConn  // from the gateway to inProcess
	gateway   http.Handler
	admitted  http.Handler // route, behind Deps.Wrap and RefusePages
	http      *http.Server // serves the port

	streaming map[string]bool // whether a method is a stream, by full name
	calls     atomic.Int64    // in flight, without streams
	streams   atomic.Int64    // in flight
	refused   metric.Int64Counter

	pages       *budget
	largeBodies *semaphore.Weighted
	checking    sync.Mutex // held during checkSides

	// draining is canceled by drain when Run begins to stop.
	draining context.Context
	drain    context.CancelFunc
}

// New returns a Server that does not serve yet. The caller must call Run, which
// releases the resources.
func New(cfg Config, deps Deps) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.WithDefaults()
	s := &Server{
		cfg: cfg, services: deps.Services, openAPI: deps.OpenAPI, sides: deps.Sides, live: deps.Live, log: deps.Log, listener: deps.Listener,
		health: health.NewServer(), inProcess: bufconn.Listen(256 << 10),
		largeBodies: semaphore.NewWeighted(largeBodies),
		pages:       &budget{bytes: semaphore.NewWeighted(cfg.PagesBudget), wait: cfg.PageWait, read: cfg.PageRead},
	}
	if s.live == nil {
		s.live = func() error { return nil }
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	s.draining, s.drain = context.WithCancel(context.Background())

	var err error
	if s.refused, err = newRefused(deps.Metrics); err != nil {
		return nil, err
	}
	requests := &requests{log: s.log, address: deps.Address, draining: s.draining.Done()}
	if requests.address == nil {
		requests.address = connectionAddress
	}
	if err := s.makeGRPC(deps, requests); err != nil {
		return nil, err
	}
	if err := s.makeGateway(requests); err != nil {
		return nil, err
	}
	s.admitted = RefusePages(s.cfg.Hosts, http.HandlerFunc(s.route))
	if deps.Wrap != nil {
		s.admitted = deps.Wrap(s.admitted)
	}
	s.http = s.makeHTTP()
	return s, nil
}

func (s *Server) makeGRPC(deps Deps, requests *requests) error {
	validator, err := protovalidate.New()
	if err != nil {
		return fmt.Errorf("make validator: %w", err)
	}
	guard := &guard{
		admit: deps.Admit, withCaller: deps.WithCaller, validator: validator, log: s.log, draining: s.draining,
		callTimeout: s.cfg.CallTimeout, streamLifetime: s.cfg.StreamLifetime,
	}
	if guard.admit == nil {
		guard.admit = func(context.Context, string) (string, error) { return "", nil }
	}
	s.grpc = grpc.NewServer(append(observed(deps.Tracing, deps.Metrics),
		grpc.ChainUnaryInterceptor(requests.unary, guard.unary),
		grpc.ChainStreamInterceptor(requests.stream, guard.stream),
		grpc.ForceServerCodecV2(newInboundCodec()),
		grpc.MaxRecvMsgSize(s.cfg.MaxReceive),
		grpc.WaitForHandlers(true), // no handler uses a store after Run has returned
	)...)
	services := inboundServices{s.grpc}
	healthpb.RegisterHealthServer(services, s.health)
	s.health.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
	for _, service := range s.services {
		if service.Handler != nil {
			services.RegisterService(service.Desc, service.Handler)
			s.health.SetServingStatus(service.Desc.ServiceName, healthpb.HealthCheckResponse_SERVING)
		}
	}
	reflection.Register(s.grpc)
	s.streaming = make(map[string]bool)
	for service, info := range s.grpc.GetServiceInfo() {
		for _, method := range info.Methods {
			s.streaming["/"+service+"/"+method.Name] = method.IsClientStream || method.IsServerStream
		}
	}
	return nil
}

// Methods returns the names of all methods of a Server that has these services,
// as package.Service/Method.
func Methods(services ...*grpc.ServiceDesc) []string {
	var names []string
	for _, service := range append(services, &healthpb.Health_ServiceDesc, &reflectionpb.ServerReflection_ServiceDesc, &reflectionalphapb.ServerReflection_ServiceDesc) {
		for _, method := range service.Methods {
			names = append(names, service.ServiceName+"/"+method.MethodName)
		}
		for _, method := range service.Streams {
			names = append(names, service.ServiceName+"/"+method.StreamName)
		}
	}
	slices.Sort(names)
	return names
}

// makeGateway connects the REST gateway to the gRPC server inside the process.
// This connection skips net/http, which costs four times as much as gRPC's own
// transport.
func (s *Server) makeGateway(requests *requests) error {
	var err error
	s.conn, err = grpc.NewClient("passthrough:in-process",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.inProcess.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect gateway: %w", err)
	}
	s.gateway, err = newGateway(s.services, s.conn, int64(s.cfg.MaxReceive), requests)
	return err
}

// makeHTTP returns the HTTP server with limits on what a client can hold. It
// sets no ReadTimeout and no WriteTimeout, because they would end streams;
// handle limits the time of each request.
func (s *Server) makeHTTP() *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           http.HandlerFunc(s.handle),
		Protocols:         &protocols,
		ReadHeaderTimeout: s.cfg.ReadHeaderTimeout,
		IdleTimeout:       s.cfg.IdleTimeout,
		MaxHeaderBytes:    s.cfg.MaxHeaderBytes,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: s.cfg.MaxConcurrentStreams,
			MaxReadFrameSize:     16 << 10, // a connection keeps a buffer of the largest frame it received
			SendPingTimeout:      s.cfg.PingAfter,
			PingTimeout:          s.cfg.PingAfter / 2,
			WriteByteTimeout:     30 * time.Second, // closes connections whose client reads nothing
		},
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
}
