package server

import (
	"context"
	"errors"
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

// observed returns the options that make a span and a metric of every call, also
// one that came over REST, which brings the trace of its caller along. When
// nobody wants either, they only put calls into that trace: it belongs to the
// caller, and is stored with what a call changes whether or not this process
// records it. Health checks and reflection are not measured.
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

// continueTrace returns ctx in the trace of the caller, if that says which.
func continueTrace(ctx context.Context) context.Context {
	const traceparent = "traceparent" // W3C; of others we know nothing
	values := metadata.ValueFromIncomingContext(ctx, traceparent)
	if len(values) == 0 {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{traceparent: values[0]})
}

// streamIn is a stream in another context.
type streamIn struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *streamIn) Context() context.Context { return s.ctx }

// requests writes a line for every call: the outermost of the interceptors, so
// that it sees what the client gets. A request over REST that does not become a
// call has one too. It tells ids, and nothing else of what a
// request or a response says. What is wrong inside is told by the guard.
type requests struct{ log *slog.Logger }

func (r *requests) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, start := remember(ctx), time.Now()
	if !r.wanted(ctx, info.FullMethod) {
		return handler(ctx, request)
	}
	response, err := handler(ctx, request)
	r.write(ctx, info.FullMethod, start, err, ids(request, response)...)
	return response, err
}

func (r *requests) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if !r.wanted(stream.Context(), info.FullMethod) {
		return handler(srv, stream)
	}
	ctx, start := remember(stream.Context()), time.Now()
	err := handler(srv, &streamIn{ServerStream: stream, ctx: ctx})
	r.write(ctx, info.FullMethod, start, err)
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

// rest writes a line for a request that the gateway refused by itself. It tells
// neither path nor query, which may be anything, and of methods only known ones.
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
	md.Set("x-forwarded-for", append(request.Header.Values("X-Forwarded-For"), address)...) // as the gateway does for calls
	r.write(continueTrace(metadata.NewIncomingContext(request.Context(), md)), method, seen.start, err)
}

// ids are the names of what a call was about. Of an invalid request they may be
// anything, so they are cut.
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

// admittedKey is where the context of a call has the name of its caller, a
// *string: the guard, which is inside, learns it, and the log, outside, tells it.
type admittedKey struct{}

func remember(ctx context.Context) context.Context {
	return context.WithValue(ctx, admittedKey{}, new(string))
}

// setCaller tells the log, if there is one, who calls.
func setCaller(ctx context.Context, name string) {
	if remembered, ok := ctx.Value(admittedKey{}).(*string); ok {
		*remembered = name
	}
}

// caller is who calls, if that was checked; else the address a call came from:
// as the front end saw it, if there is one, which a caller without one may make
// up. A front end adds to the end, so a caller cannot push it out of the log.
func caller(ctx context.Context) string {
	if remembered, ok := ctx.Value(admittedKey{}).(*string); ok && *remembered != "" {
		return cut(*remembered)
	}
	if forwarded := strings.Join(metadata.ValueFromIncomingContext(ctx, "x-forwarded-for"), ", "); forwarded != "" {
		return strings.ToValidUTF8(forwarded[max(0, len(forwarded)-most):], "")
	}
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}

// callerOf returns what names the caller of a call for bounds: who it is, if that
// was checked, else its address, of which nothing is made up.
func callerOf(address func(context.Context) string) func(context.Context) string {
	if address == nil {
		address = connectionAddress
	}
	return func(ctx context.Context) string {
		if remembered, ok := ctx.Value(admittedKey{}).(*string); ok && *remembered != "" {
			return *remembered
		}
		return address(ctx)
	}
}

// connectionAddress is where the connection of a call comes from; of one over
// REST the gateway has put it last.
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

// most is how much of one thing somebody else may write into our log, in bytes.
const most = 200

func cut(s string) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "")
}

// What a call is for Config.MaxCalls.
const (
	kindCall   = "call"
	kindStream = "stream"
)

func refusedKind(kind string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("kind", kind)))
}

// newRefused makes the counter of calls beyond Config.MaxCalls. It shows 0 from
// the beginning on, so that the first one is seen as an increase.
func newRefused(provider metric.MeterProvider) (metric.Int64Counter, error) {
	if provider == nil {
		provider = metricnoop.NewMeterProvider()
	}
	refused, err := provider.Meter(scope).Int64Counter("server.calls.refused", metric.WithUnit("{call}"),
		metric.WithDescription("Calls refused because there were too many at a time (server.Config.MaxCalls), by kind: call, stream. They are in no other metric."))
	if err != nil {
		return nil, fmt.Errorf("make instruments: %w", err)
	}
	for _, kind := range []string{kindCall, kindStream} {
		refused.Add(context.Background(), 0, refusedKind(kind))
	}
	return refused, nil
}

// scope is the name of our meter.
const scope = "example.com/videocatalog/internal/server"

// catalogMetrics show how far the catalog is behind those who wait for it; nil
// ones show nothing.
type catalogMetrics struct {
	lag  metric.Int64Histogram
	wait metric.Float64Histogram
}

func newCatalogMetrics(provider metric.MeterProvider) (*catalogMetrics, error) {
	if provider == nil {
		return nil, nil //nolint:nilnil // see catalogMetrics
	}
	meter := provider.Meter(scope)
	var m catalogMetrics
	var errs [2]error
	m.lag, errs[0] = meter.Int64Histogram("catalog.version.lag", metric.WithUnit("{version}"),
		metric.WithExplicitBucketBoundaries(0, 1, 2, 5, 10, 20, 50, 100),
		metric.WithDescription("Versions that an entry was behind min_version when a caller of GetCatalogEntry asked for it; 0 when it was not."))
	m.wait, errs[1] = meter.Float64Histogram("catalog.version.wait", metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30),
		metric.WithDescription("How long callers of GetCatalogEntry waited for min_version, if the catalog was behind, also in vain."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("make instruments: %w", err)
	}
	return &m, nil
}

func (m *catalogMetrics) behind(ctx context.Context, versions int64) {
	if m != nil {
		m.lag.Record(ctx, max(0, versions))
	}
}

func (m *catalogMetrics) waited(ctx context.Context, d time.Duration) {
	if m != nil {
		m.wait.Record(ctx, d.Seconds())
	}
}
