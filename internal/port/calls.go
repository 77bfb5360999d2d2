package port

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"strings"
	"time"

	"buf.build/go/protovalidate"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"

	"example.com/videocatalog/internal/aip"
	"example.com/videocatalog/internal/problem"
)

// call is a call in flight.
type call struct {
	server *Server
	method string // /package.Service/Method
	start  time.Time
	caller string // the verified name, or empty
}

// callKey is the context key of a *call.
type callKey struct{}

// unary is the interceptor of every unary call.
func (s *Server) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (response any, err error) {
	ctx, c := s.begin(ctx, info.FullMethod)
	defer func() { err = c.end(ctx, err, recover(), request, response) }()
	// A shorter deadline of the caller holds; none is required. Without a
	// deadline, a call that waits for a lock could hold a pooled connection
	// forever.
	limited, cancel := context.WithTimeout(ctx, s.cfg.CallTimeout)
	defer cancel()
	if limited, err = c.admit(limited); err != nil {
		return nil, err
	}
	if err := s.validate(request); err != nil {
		return nil, err
	}
	return handler(limited, request)
}

// stream is the interceptor of every stream. The context of a stream also ends after
// Config.StreamLifetime and when the server drains: a stream does not end by itself, and
// would block the shutdown.
func (s *Server) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	ctx, c := s.begin(stream.Context(), info.FullMethod)
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.StreamLifetime, errStreamOver)
	defer cancel()
	ctx, drain := context.WithCancelCause(ctx)
	defer context.AfterFunc(s.draining, func() { drain(ErrDraining) })()
	defer func() {
		code := status.Code(toStatus(err))
		if ours, ok := errors.AsType[*problem.Error](context.Cause(ctx)); ok && (code == codes.Canceled || code == codes.DeadlineExceeded) {
			err = ours
		}
		err = c.end(ctx, err, recover(), nil)
	}()
	if s.draining.Err() != nil {
		return ErrDraining
	}
	admitted, err := c.admit(ctx)
	if err != nil {
		return err
	}
	return handler(srv, &checkedStream{ServerStream: stream, ctx: admitted, server: s})
}

// checkedStream is a stream with its own context, which validates what it receives.
type checkedStream struct {
	grpc.ServerStream
	ctx    context.Context
	server *Server
}

func (s *checkedStream) Context() context.Context { return s.ctx }

func (s *checkedStream) RecvMsg(message any) error {
	if err := s.ServerStream.RecvMsg(message); err != nil {
		return err
	}
	return s.server.validate(message)
}

// begin returns a new call and its context. It continues the trace of the caller if nothing
// else does: the store saves the id with each change, whether or not this process records
// spans.
func (s *Server) begin(ctx context.Context, method string) (context.Context, *call) {
	c := &call{server: s, method: method, start: time.Now()}
	const traceparent = "traceparent" // the W3C format, the only one that is supported
	parent := metadata.ValueFromIncomingContext(ctx, traceparent)
	if len(parent) > 0 && !trace.SpanContextFromContext(ctx).IsValid() {
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{traceparent: parent[0]})
	}
	return context.WithValue(ctx, callKey{}, c), c
}

// admit returns the context of a call that may continue, with its caller.
func (c *call) admit(ctx context.Context) (_ context.Context, err error) {
	if c.caller, err = c.server.deps.Admit(ctx, c.method); err != nil {
		return ctx, err
	}
	return c.server.deps.WithCaller(ctx, c.caller), nil
}

// validate checks a request against the rules in api/proto, and rejects NUL
// characters.
func (s *Server) validate(request any) error {
	message, ok := request.(proto.Message)
	if !ok {
		return fmt.Errorf("validate %T: not a proto message", request)
	}
	if err := s.validator.Validate(message, protovalidate.WithFilter(aip.RulesFor(message))); err != nil {
		return err
	}
	return rejectNUL(message)
}

// rejectNUL rejects strings with the character NUL: it is valid UTF-8, but
// PostgreSQL cannot store it
// (https://www.postgresql.org/docs/current/datatype-character.html).
func rejectNUL(message proto.Message) error {
	return protorange.Range(message.ProtoReflect(), func(values protopath.Values) error {
		text, ok := values.Index(-1).Value.Interface().(string)
		if ok && strings.ContainsRune(text, 0) {
			return problem.InvalidField(strings.TrimPrefix(values.Path[1:].String(), "."), "must not contain the character NUL")
		}
		return nil
	})
}

// end returns the status of a call for its client, from its error or its panic. It logs
// the call, but not health checks and reflection, and on a line of its own the error
// that the client must not see. No other code logs the error of a call, except the
// one that admits callers.
func (c *call) end(ctx context.Context, err error, panicked any, messages ...any) error {
	if panicked != nil {
		err = fmt.Errorf("panic: %v\n%s", panicked, debug.Stack())
	}
	result, log := toStatus(err), c.server.deps.Log
	known, isKnown := errors.AsType[*problem.Error](err)
	switch {
	case status.Code(result) == codes.Internal:
		log.ErrorContext(ctx, "server: call failed", "method", c.method, "err", err)
	case isKnown && known.Err != nil:
		log.WarnContext(ctx, "server: call failed", "method", c.method, "err", err)
	}
	if strings.HasPrefix(c.method, "/grpc.") || !log.Enabled(ctx, slog.LevelInfo) {
		return result
	}
	attrs := []slog.Attr{
		slog.String("method", c.method), slog.String("code", status.Code(result).String()),
		slog.Float64("latency_ms", float64(time.Since(c.start).Microseconds())/1000), slog.String("caller", cut(Caller(ctx))),
	}
	for _, message := range messages { // the request, and the response if there is one
		if m, ok := message.(interface{ GetName() string }); ok && m.GetName() != "" {
			attrs = append(attrs, slog.String("name", cut(m.GetName())))
			break
		}
	}
	if m, ok := messages[0].(interface{ GetRequestId() string }); ok && m.GetRequestId() != "" {
		attrs = append(attrs, slog.String("request_id", cut(m.GetRequestId())))
	}
	if id := metadata.ValueFromIncomingContext(ctx, "x-request-id"); len(id) > 0 {
		attrs = append(attrs, slog.String("x_request_id", cut(id[0])))
	}
	log.LogAttrs(ctx, slog.LevelInfo, "server: request", attrs...)
	return result
}

// cut limits one value that a caller can write into our log.
func cut(s string) string { return strings.ToValidUTF8(s[:min(len(s), 200)], "") }

// Caller identifies the caller of a call in flight, for the log and for limits: its verified
// name, or else its address, which a caller cannot forge. It is empty outside a call.
func Caller(ctx context.Context) string {
	c, ok := ctx.Value(callKey{}).(*call)
	if !ok {
		return ""
	}
	return cmp.Or(c.caller, c.server.deps.Address(ctx))
}

// Draining returns a channel that is closed when the server of a call in flight
// begins to stop. A handler that waits for something should then end soon, with
// ErrDraining. Outside a call the channel is nil.
func Draining(ctx context.Context) <-chan struct{} {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return c.server.draining.Done()
	}
	return nil
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
