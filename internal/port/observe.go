package port

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc/filters"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// observed returns the options that trace and measure every call, except health
// checks and reflection. Both providers may be nil. Then calls only continue
// the trace of their caller: the store saves its id with each change, whether
// or not this process records spans.
func observed(tracing trace.TracerProvider, metrics metric.MeterProvider) []grpc.ServerOption {
	if tracing == nil && metrics == nil {
		return []grpc.ServerOption{grpc.ChainUnaryInterceptor(continueUnary), grpc.ChainStreamInterceptor(continueStream)}
	}
	if tracing == nil {
		tracing = tracenoop.NewTracerProvider()
	}
	if metrics == nil {
		metrics = metricnoop.NewMeterProvider()
	}
	return []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(tracing), otelgrpc.WithMeterProvider(metrics), otelgrpc.WithPropagators(propagation.TraceContext{}),
		otelgrpc.WithFilter(filters.None(filters.HealthCheck(), filters.ServicePrefix("grpc.reflection."))),
	))}
}

func continueUnary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	return handler(continueTrace(ctx), request)
}

func continueStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return handler(srv, &streamIn{ServerStream: stream, ctx: continueTrace(stream.Context())})
}

// continueTrace returns ctx with the trace of the caller, if the metadata has
// one.
func continueTrace(ctx context.Context) context.Context {
	const traceparent = "traceparent" // the W3C format, the only one that is supported
	values := metadata.ValueFromIncomingContext(ctx, traceparent)
	if len(values) == 0 {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{traceparent: values[0]})
}

// streamIn is a stream with another context.
type streamIn struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *streamIn) Context() context.Context { return s.ctx }

// requests logs a line for every call, and for REST requests that never become
// a call. It is the outermost interceptor, so it sees the status that the
// client gets. Of requests and responses it logs only ids. The guard logs
// internal errors.
type requests struct {
	log      *slog.Logger
	address  func(context.Context) string
	draining <-chan struct{}
}

func (r *requests) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, start := r.remember(ctx), time.Now()
	if !r.wanted(ctx, info.FullMethod) {
		return handler(ctx, request)
	}
	response, err := handler(ctx, request)
	r.write(ctx, info.FullMethod, start, err, ids(request, response)...)
	return response, err
}

func (r *requests) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, start := r.remember(stream.Context()), time.Now()
	err := handler(srv, &streamIn{ServerStream: stream, ctx: ctx})
	if r.wanted(ctx, info.FullMethod) {
		r.write(ctx, info.FullMethod, start, err)
	}
	return err
}

func (r *requests) wanted(ctx context.Context, method string) bool {
	return !strings.HasPrefix(method, "/grpc.") && r.log.Enabled(ctx, slog.LevelInfo)
}

func (r *requests) write(ctx context.Context, method string, start time.Time, err error, ids ...slog.Attr) {
	attrs := append([]slog.Attr{
		slog.String("method", method), slog.String("code", status.Code(err).String()),
		slog.Float64("latency_ms", float64(time.Since(start).Microseconds())/1000), slog.String("caller", caller(ctx)),
	}, ids...)
	if id := header(ctx, "x-request-id"); id != "" {
		attrs = append(attrs, slog.String("x_request_id", id))
	}
	r.log.LogAttrs(ctx, slog.LevelInfo, "server: request", attrs...)
}

// rest logs a request that the gateway rejected. It omits the path and the
// query, which can contain anything, and unknown HTTP methods.
func (r *requests) rest(request *http.Request, err error) {
	seen, ok := request.Context().Value(restKey{}).(*restRequest)
	if !ok || seen.called || !r.log.Enabled(request.Context(), slog.LevelInfo) {
		return
	}
	method := "REST"
	switch request.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		method += " " + request.Method
	}
	md := metadata.MD{"x-request-id": request.Header.Values("X-Request-Id"), "traceparent": request.Header.Values("traceparent")}
	address, _, _ := net.SplitHostPort(request.RemoteAddr)
	md.Set("x-forwarded-for", append(request.Header.Values("X-Forwarded-For"), address)...) // the gateway does the same for calls
	r.write(continueTrace(metadata.NewIncomingContext(request.Context(), md)), method, seen.start, err)
}

// ids returns the resource name and the request id of a call as log attributes.
// They are shortened, because an invalid request can contain anything.
func ids(request, response any) []slog.Attr {
	var attrs []slog.Attr
	type named interface{ GetName() string }
	name := ""
	if r, ok := request.(named); ok {
		name = r.GetName()
	} else if r, ok := response.(named); ok {
		name = r.GetName()
	}
	if name != "" {
		attrs = append(attrs, slog.String("name", cut(name)))
	}
	if r, ok := request.(interface{ GetRequestId() string }); ok && r.GetRequestId() != "" {
		attrs = append(attrs, slog.String("request_id", cut(r.GetRequestId())))
	}
	return attrs
}

// call is what this package knows of a call in flight.
type call struct {
	caller   string                       // its verified name, or empty
	address  func(context.Context) string // of the caller
	draining <-chan struct{}              // closed when the server begins to stop
}

// callKey is the context key of a *call. The outermost interceptor stores it, and
// the guard, an inner one, sets the caller.
type callKey struct{}

func (r *requests) remember(ctx context.Context) context.Context {
	return context.WithValue(ctx, callKey{}, &call{address: r.address, draining: r.draining})
}

func callOf(ctx context.Context) *call {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return c
	}
	return new(call) // a REST request that never became a call
}

// Caller identifies the caller of a call in flight, for limits: its verified name,
// or else its address, which a caller cannot forge. It is empty outside a call.
func Caller(ctx context.Context) string {
	c := callOf(ctx)
	if c.caller != "" || c.address == nil {
		return c.caller
	}
	return c.address(ctx)
}

// Draining returns a channel that is closed when the server of a call in flight
// begins to stop. A handler that waits for something should then end soon, with
// ErrDraining. Outside a call the channel is nil.
func Draining(ctx context.Context) <-chan struct{} { return callOf(ctx).draining }

// caller returns the verified name of the caller, for the log, or else its
// address. With a front end the address is the end of X-Forwarded-For: a caller
// can forge its beginning, but the front end appends the real address.
func caller(ctx context.Context) string {
	if name := callOf(ctx).caller; name != "" {
		return cut(name)
	}
	if forwarded := strings.Join(metadata.ValueFromIncomingContext(ctx, "x-forwarded-for"), ", "); forwarded != "" {
		return strings.ToValidUTF8(forwarded[max(0, len(forwarded)-most):], "")
	}
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}

// connectionAddress returns the address of the caller's connection. For a REST
// call it is the last entry of x-forwarded-for, which the gateway appends.
func connectionAddress(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	if p.Addr.Network() == "bufconn" {
		forwarded := strings.Join(metadata.ValueFromIncomingContext(ctx, "x-forwarded-for"), ",")
		return strings.TrimSpace(forwarded[strings.LastIndex(forwarded, ",")+1:])
	}
	host, _, _ := net.SplitHostPort(p.Addr.String())
	return host
}

func header(ctx context.Context, name string) string {
	values := metadata.ValueFromIncomingContext(ctx, name)
	if len(values) == 0 {
		return ""
	}
	return cut(values[0])
}

// most is the largest number of bytes of one value that a caller can write into
// our log.
const most = 200

func cut(s string) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "")
}

// Kinds of calls that Config.MaxCalls counts separately.
const (
	kindCall   = "call"
	kindStream = "stream"
)

func refusedKind(kind string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("kind", kind)))
}

// newRefused returns the counter of calls rejected because of Config.MaxCalls.
// It starts at 0 for each kind, so that the first rejection shows as an
// increase.
func newRefused(provider metric.MeterProvider) (metric.Int64Counter, error) {
	if provider == nil {
		provider = metricnoop.NewMeterProvider()
	}
	refused, err := provider.Meter(scope).Int64Counter("server.calls.refused", metric.WithUnit("{call}"),
		metric.WithDescription("Calls refused because there were too many at a time (port.Config.MaxCalls), by kind: call, stream. They are in no other metric."))
	if err != nil {
		return nil, fmt.Errorf("make instruments: %w", err)
	}
	for _, kind := range []string{kindCall, kindStream} {
		refused.Add(context.Background(), 0, refusedKind(kind))
	}
	return refused, nil
}

// scope is the name of the meter of this package.
const scope = "example.com/videocatalog/internal/port"
