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
// A gRPC request goes from net/http (http.go) through the interceptors (calls.go) to
// its handler. A REST request becomes a gRPC call of the same process (rest.go), so
// that every call passes the same interceptors once. errors.go has all errors.
//
// The server answers every request that it accepted, even while it stops, within
// Config.DrainTimeout. Streams are the exception: they end with UNAVAILABLE when
// the server begins to stop.
//
// The tests of package server, which has the handlers, test this package too.
package port

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"buf.build/go/protovalidate"
	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc/filters"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"
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

// Deps has the dependencies of a Server. All but Listener may be zero.
type Deps struct {
	// Listener is the listener to serve on; Run closes it.
	Listener net.Listener
	Services []Service
	// OpenAPI is the description of the REST API. Nil: /openapi.json is not
	// served.
	OpenAPI []byte
	// Wrap returns a handler around all requests of the port, before they are
	// checked, such as one for browsers.
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
}

// withDefaults returns the Deps without nil functions.
func (d Deps) withDefaults() Deps {
	if d.Wrap == nil {
		d.Wrap = func(next http.Handler) http.Handler { return next }
	}
	if d.Admit == nil {
		d.Admit = func(context.Context, string) (string, error) { return "", nil }
	}
	if d.WithCaller == nil {
		d.WithCaller = func(ctx context.Context, _ string) context.Context { return ctx }
	}
	if d.Address == nil {
		d.Address = connectionAddress
	}
	if d.Live == nil {
		d.Live = func() error { return nil }
	}
	d.Log = cmp.Or(d.Log, slog.Default())
	return d
}

// Server serves the API on one port. Create it with New.
type Server struct {
	cfg       Config
	deps      Deps
	validator protovalidate.Validator

	http      *http.Server // serves the port
	grpc      *grpc.Server
	health    *health.Server
	mux       *runtime.ServeMux // of REST
	inProcess *bufconn.Listener // gRPC calls of mux
	conn      *grpc.ClientConn  // from mux to inProcess
	streaming map[string]bool   // whether a method is a stream, by full name
	calls     atomic.Int64      // in flight, without streams
	streams   atomic.Int64      // in flight
	refused   metric.Int64Counter
	checking  sync.Mutex      // held during checkSides
	draining  context.Context // is canceled by drain when Run begins to stop
	drain     context.CancelFunc
}

// New returns a Server that does not serve yet. The caller must call Run, which
// releases the resources.
func New(cfg Config, deps Deps) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg.WithDefaults(), deps: deps.withDefaults(), health: health.NewServer(), inProcess: bufconn.Listen(256 << 10)}
	s.draining, s.drain = context.WithCancel(context.Background())
	var err error
	if s.validator, err = protovalidate.New(); err != nil {
		return nil, fmt.Errorf("make validator: %w", err)
	}
	s.makeGRPC()
	if err := errors.Join(s.makeRefused(), s.makeGateway()); err != nil {
		return nil, err
	}
	s.makeHTTP()
	return s, nil
}

func (s *Server) makeGRPC() {
	s.grpc = grpc.NewServer(append(s.observed(),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
		grpc.MaxRecvMsgSize(s.cfg.MaxReceive),
		grpc.WaitForHandlers(true), // no handler uses a store after Run has returned
	)...)
	healthpb.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
	for _, service := range s.deps.Services {
		if service.Handler != nil {
			s.grpc.RegisterService(service.Desc, service.Handler)
			s.setServing(service.Desc.ServiceName, true)
		}
	}
	s.streaming = make(map[string]bool)
	for service, info := range s.grpc.GetServiceInfo() {
		for _, method := range info.Methods {
			s.streaming["/"+service+"/"+method.Name] = method.IsClientStream || method.IsServerStream
		}
	}
}

// observed returns the option that traces and measures every call, except health
// checks and reflection.
func (s *Server) observed() []grpc.ServerOption {
	if s.deps.Tracing == nil && s.deps.Metrics == nil {
		return nil
	}
	return []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(cmp.Or[trace.TracerProvider](s.deps.Tracing, tracenoop.NewTracerProvider())),
		otelgrpc.WithMeterProvider(cmp.Or[metric.MeterProvider](s.deps.Metrics, metricnoop.NewMeterProvider())),
		otelgrpc.WithPropagators(propagation.TraceContext{}),
		otelgrpc.WithFilter(filters.None(filters.HealthCheck(), filters.ServicePrefix("grpc.reflection."))),
	))}
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
