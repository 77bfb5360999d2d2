package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"buf.build/go/protovalidate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"example.com/videocatalog/internal/aip"
	"example.com/videocatalog/internal/auth"
	"example.com/videocatalog/internal/problem"
)

// call is a call in flight. It is in the context of its handler under callKey.
type call struct {
	server *Server
	method string // /package.Service/Method
	start  time.Time
	caller string // the verified name, or empty
}

type callKey struct{}

// unary is the interceptor of every unary call.
func (s *Server) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (response any, err error) {
	c := &call{server: s, method: info.FullMethod, start: time.Now()}
	ctx = context.WithValue(ctx, callKey{}, c)
	defer func() { err = c.end(ctx, err, recover(), request, response) }()
	// A shorter deadline of the caller holds. Without any, a call that waits for a
	// lock could hold a pooled connection forever.
	limited, cancel := context.WithTimeout(ctx, s.cfg.CallTimeout)
	defer cancel()
	if limited, err = c.admit(limited); err == nil {
		err = validate(request)
	}
	if err != nil {
		return nil, err
	}
	return handler(limited, request)
}

// stream is the interceptor of every stream. Its context also ends after
// Config.StreamLifetime and when the server drains: a stream does not end by itself.
func (s *Server) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	c := &call{server: s, method: info.FullMethod, start: time.Now()}
	ctx, cancel := context.WithTimeoutCause(context.WithValue(stream.Context(), callKey{}, c), s.cfg.StreamLifetime, errStreamOver)
	defer cancel()
	ctx, drain := context.WithCancelCause(ctx)
	defer context.AfterFunc(s.draining, func() { drain(ErrDraining) })()
	defer func() {
		code := status.Code(toStatus(err))
		if ours, ok := errors.AsType[*problem.Error](context.Cause(ctx)); ok && (code == codes.Canceled || code == codes.DeadlineExceeded) {
			err = ours
		}
		err = c.end(ctx, err, recover(), nil, nil)
	}()
	if s.draining.Err() != nil {
		return ErrDraining
	}
	admitted, err := c.admit(ctx)
	if err != nil {
		return err
	}
	return handler(srv, &checkedStream{ServerStream: stream, ctx: admitted})
}

// checkedStream is a stream with its own context, which validates what it receives.
type checkedStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *checkedStream) Context() context.Context { return s.ctx }

func (s *checkedStream) RecvMsg(message any) error {
	if err := s.ServerStream.RecvMsg(message); err != nil {
		return err
	}
	return validate(message)
}

// admit returns the context of a call with its caller, and an error if the call may not continue.
func (c *call) admit(ctx context.Context) (_ context.Context, err error) {
	if c.server.deps.Admit != nil {
		ctx, err = c.server.deps.Admit(ctx, c.method)
	}
	c.caller = auth.CallerOf(ctx)
	return ctx, err
}

// validate checks a request against the rules in api/proto, without the fields that only the server sets. A large one gets one error.
func validate(request any) error {
	message, _ := request.(proto.Message) // as gRPC has decoded it
	aip.DropOutputOnly(message.ProtoReflect())
	options := []protovalidate.ValidationOption{protovalidate.WithFilter(aip.RulesFor(message))}
	if proto.Size(message) > 4<<10 {
		options = append(options, protovalidate.WithFailFast())
	}
	return protovalidate.Validate(message, options...)
}

// end returns the status of a call for its client, from its error or its panic. It logs
// the call, unless it is a health check or reflection. On another line it logs the error
// that the client must not see.
func (c *call) end(ctx context.Context, err error, panicked, request, response any) error {
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
	if !strings.HasPrefix(c.method, "/grpc.") && log.Enabled(ctx, slog.LevelInfo) {
		log.LogAttrs(ctx, slog.LevelInfo, "server: request",
			attr("method", c.method), attr("code", status.Code(result).String()), attr("caller", Caller(ctx)),
			slog.Float64("latency_ms", float64(time.Since(c.start).Microseconds())/1000),
			attr("name", nameOf(request, response)), attr("x_request_id", append(metadata.ValueFromIncomingContext(ctx, "x-request-id"), "")[0]))
	}
	return result
}

// attr returns an attribute of at most 200 bytes, because a caller can write anything into it.
func attr(key, value string) slog.Attr {
	if value == "" {
		return slog.Attr{}
	}
	return slog.String(key, strings.ToValidUTF8(value[:min(len(value), 200)], ""))
}

// nameOf returns the name of the resource that a call is about.
func nameOf(messages ...any) string {
	for _, message := range messages {
		if named, ok := message.(interface{ GetName() string }); ok && named.GetName() != "" {
			return named.GetName()
		}
	}
	return ""
}

// Caller identifies the caller of a call in flight, for the log and for limits: its verified
// name, or else its address, which a caller cannot forge. It is empty outside a call.
func Caller(ctx context.Context) string {
	c, ok := ctx.Value(callKey{}).(*call)
	if !ok {
		return ""
	}
	return cmp.Or(c.caller, auth.Address(ctx, c.server.deps.Proxies))
}
