// Package server answers. It serves [videov1.VideoServiceServer], the commands,
// and [catalogv1.CatalogServiceServer], the queries, on one port:
//
//   - gRPC, by its content type, over HTTP/2 without TLS (Cloud Run ends TLS);
//   - REST as JSON, by the annotations in api/proto, over HTTP/1.1 or HTTP/2,
//     and its description at /openapi.json;
//   - /health/live and /health/ready, grpc.health.v1, and gRPC reflection.
//
// A handler is a conductor. It turns a request into what domain and the store
// understand, adds the clock and new ids, and turns the answer back. It decides
// nothing, and there is no layer between it and the store. [VideoStore],
// [CatalogStore] and [Changes] say what it needs.
//
// Every call passes the same guard once, also one that came over REST, which
// travels through an in-process connection: Deps.Admit is asked, the rules in
// api/proto are checked, the call gets an end in time, a panic ends the call and
// not the process, an error becomes a status, and what the client must not see
// of it is logged, once.
//
// It promises: a request that was accepted is answered, also while the server
// stops, within Config.DrainTimeout. A stream is no such request: it ends with
// UNAVAILABLE when the server begins to stop.
//
// What a client can make it hold is bounded, whoever the client is: see Config,
// and docs/limits.md for the attacks that are tested. It does not know who calls, which is
// for Deps.Admit, and it owns no table.
package server

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
	"github.com/google/uuid"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionalphapb "google.golang.org/grpc/reflection/grpc_reflection_v1alpha" // older clients still ask it
	"google.golang.org/grpc/test/bufconn"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/telemetry/connlog"
)

// Deps is what a Server works with.
type Deps struct {
	// Videos is what VideoService is served from, Catalog and Changes what
	// CatalogService is. Nil: that service is not served.
	Videos  VideoStore
	Catalog CatalogStore
	Changes Changes
	// TokenKey seals page tokens and resume tokens: 32 bytes, the same in all
	// processes. Nil: one at random, so tokens end with the process.
	TokenKey []byte
	// Admit returns the status of a call that may not go on, by its metadata and
	// its method, /package.Service/Method, and for the log who calls, or nothing
	// when that was not checked; nil: all calls may.
	Admit func(ctx context.Context, fullMethod string) (caller string, err error)
	// Address returns where a call comes from, by its metadata and its peer, for the
	// bounds of a caller whom Admit does not name; nil: the address of the
	// connection.
	Address func(ctx context.Context) string
	// Ready checks the sides of this process; the zero value has none, and is
	// always ready.
	Ready Ready
	// Live returns why this process will never work again and should be started
	// anew; nil: it always will. What is away may come back: that is for Ready.
	Live func() error
	// Tracing makes a span of every call, and Metrics counts them; nil: nothing
	// does. With or without, a handler is in the trace of its caller.
	Tracing trace.TracerProvider
	Metrics metric.MeterProvider
	// Log gets a line for every call, and what clients must not see; nil:
	// slog.Default().
	Log *slog.Logger
	// Listener is where to serve, and Run closes it; nil: a new one on
	// Config.Addr.
	Listener net.Listener
}

// Server serves the API on one port. Make it with New.
type Server struct {
	cfg      Config
	ready    Ready
	live     func() error
	log      *slog.Logger
	listener net.Listener

	grpc      *grpc.Server
	health    *health.Server
	inProcess *bufconn.Listener // where grpc serves the gateway
	conn      *grpc.ClientConn  // from the gateway to inProcess
	gateway   http.Handler
	admitted  http.Handler // route, for the origins that may call
	http      *http.Server // the port

	streaming map[string]bool // the methods that are streams, by full name
	calls     atomic.Int64    // under way, without the streams
	streams   atomic.Int64    // under way
	refused   metric.Int64Counter

	pages       *budget
	largeBodies *semaphore.Weighted
	waits       *waits
	checking    sync.Mutex // held while the sides are checked

	// draining ends when Run begins to stop, by drain.
	draining context.Context
	drain    context.CancelFunc
}

// New makes a Server that does not serve yet. It must be Run, which releases
// what it holds.
func New(cfg Config, deps Deps) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.WithDefaults()
	s := &Server{
		cfg: cfg, ready: deps.Ready, live: deps.Live, log: deps.Log, listener: deps.Listener,
		health: health.NewServer(), inProcess: bufconn.Listen(256 << 10),
		largeBodies: semaphore.NewWeighted(largeBodies),
		waits:       newWaits(cfg.MaxCalls / 2),
		pages:       &budget{bytes: semaphore.NewWeighted(pagesBudget), wait: cfg.CallTimeout / 2, read: cfg.CallTimeout / 3},
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
	if err := s.makeGRPC(deps); err != nil {
		return nil, err
	}
	if err := s.makeGateway(); err != nil {
		return nil, err
	}
	s.admitted = withCORS(s.cfg.CORSOrigins, http.HandlerFunc(s.route))
	s.http = s.makeHTTP()
	return s, nil
}

func (s *Server) makeGRPC(deps Deps) error {
	validator, err := protovalidate.New()
	if err != nil {
		return fmt.Errorf("make validator: %w", err)
	}
	guard := &guard{
		admit: deps.Admit, validator: validator, log: s.log, draining: s.draining,
		callTimeout: s.cfg.CallTimeout, streamLifetime: s.cfg.StreamLifetime,
	}
	if guard.admit == nil {
		guard.admit = func(context.Context, string) (string, error) { return "", nil }
	}
	seal, err := newSeal(deps.TokenKey)
	if err != nil {
		return err
	}
	requests := &requests{log: s.log}
	s.grpc = grpc.NewServer(append(observed(deps.Tracing, deps.Metrics),
		grpc.ChainUnaryInterceptor(requests.unary, guard.unary),
		grpc.ChainStreamInterceptor(requests.stream, guard.stream),
		grpc.ForceServerCodecV2(newInboundCodec()),
		grpc.MaxRecvMsgSize(s.cfg.MaxReceive),
		grpc.WaitForHandlers(true), // so that nothing uses the stores once Run has returned
	)...)
	services := inboundServices{s.grpc}
	healthpb.RegisterHealthServer(services, s.health)
	s.health.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
	if deps.Videos != nil {
		videov1.RegisterVideoServiceServer(services, &videoService{store: deps.Videos, seal: seal, now: time.Now, newID: uuid.NewV7})
		s.health.SetServingStatus(videov1.VideoService_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	}
	if deps.Catalog != nil {
		metrics, err := newCatalogMetrics(deps.Metrics)
		if err != nil {
			return err
		}
		catalogv1.RegisterCatalogServiceServer(services, &catalogService{
			store: deps.Catalog, changes: deps.Changes, seal: seal, metrics: metrics, maxWait: s.cfg.MaxWait,
			waits: s.waits, callerOf: callerOf(deps.Address),
			draining: s.draining.Done(), drainWait: s.cfg.DrainTimeout / 2,
		})
		s.health.SetServingStatus(catalogv1.CatalogService_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
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

// Methods returns all methods that a Server with all its services has, as
// package.Service/Method.
func Methods() []string {
	var names []string
	for _, service := range []grpc.ServiceDesc{
		videov1.VideoService_ServiceDesc, catalogv1.CatalogService_ServiceDesc, healthpb.Health_ServiceDesc,
		reflectionpb.ServerReflection_ServiceDesc, reflectionalphapb.ServerReflection_ServiceDesc,
	} {
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

// makeGateway gives REST a connection to the gRPC server of its own. That one
// speaks gRPC natively, at a quarter of the cost of the way through net/http.
func (s *Server) makeGateway() error {
	var err error
	s.conn, err = grpc.NewClient("passthrough:in-process",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.inProcess.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect gateway: %w", err)
	}
	s.gateway, err = newGateway(s.conn, int64(s.cfg.MaxReceive), &requests{log: s.log})
	return err
}

// makeHTTP limits what a client may hold on to, but not the time of a whole
// request or response, which handle does: ReadTimeout and WriteTimeout would
// end streams.
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
			MaxReadFrameSize:     16 << 10, // a connection keeps a buffer of the largest frame it has seen
			SendPingTimeout:      s.cfg.PingAfter,
			PingTimeout:          s.cfg.PingAfter / 2,
			WriteByteTimeout:     30 * time.Second, // ends connections whose client reads nothing at all
		},
		ErrorLog: slog.NewLogLogger(connlog.New(s.log, "server: connection failed"), slog.LevelWarn),
	}
}
