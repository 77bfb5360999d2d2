package port

import (
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
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"

	"example.com/videocatalog/internal/aip"
	"example.com/videocatalog/internal/problem"
)

// guard checks every call exactly once, over gRPC or REST. It admits the
// caller, validates the request, sets a deadline, and turns every error and
// panic into a status.
type guard struct {
	admit          func(ctx context.Context, fullMethod string) (caller string, err error)
	withCaller     func(ctx context.Context, caller string) context.Context // may be nil
	validator      protovalidate.Validator
	log            *slog.Logger
	draining       context.Context // of the server, not of a call
	callTimeout    time.Duration
	streamLifetime time.Duration
}

func (g *guard) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (response any, err error) {
	defer func() { err = g.settle(ctx, info.FullMethod, err, recover()) }()
	// A shorter deadline of the caller holds; none is required. Without a
	// deadline, a call that waits for a lock could hold a pooled connection
	// forever.
	limited, cancel := context.WithTimeout(ctx, g.callTimeout)
	defer cancel()
	if limited, err = g.admitted(limited, info.FullMethod); err != nil {
		return nil, err
	}
	if err := g.validate(request); err != nil {
		return nil, err
	}
	return inBudget(limited, request, func() (any, error) { return handler(limited, request) })
}

// stream guards a stream. Its context also ends after streamLifetime and when
// the server drains: a stream does not end by itself, and would block the
// shutdown.
func (g *guard) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	ctx, cancel := context.WithTimeoutCause(stream.Context(), g.streamLifetime, errStreamOver)
	defer cancel()
	defer context.AfterFunc(g.draining, cancel)()
	defer func() {
		switch code := status.Code(toStatus(err)); {
		case g.draining.Err() != nil && code == codes.Canceled:
			err = ErrDraining
		case errors.Is(context.Cause(ctx), errStreamOver) && (code == codes.Canceled || code == codes.DeadlineExceeded):
			err = errStreamOver
		}
		err = g.settle(ctx, info.FullMethod, err, recover())
	}()
	if g.draining.Err() != nil {
		return ErrDraining
	}
	ctx, err = g.admitted(ctx, info.FullMethod)
	if err != nil {
		return err
	}
	return handler(srv, &guardedStream{ServerStream: stream, ctx: ctx, guard: g})
}

// admitted returns the context of a call that may continue, with its caller, or
// the reason why it may not.
func (g *guard) admitted(ctx context.Context, method string) (context.Context, error) {
	caller, err := g.admit(ctx, method)
	callOf(ctx).caller = caller
	if err == nil && g.withCaller != nil {
		ctx = g.withCaller(ctx, caller)
	}
	return ctx, err
}

type guardedStream struct {
	grpc.ServerStream
	ctx   context.Context
	guard *guard
}

func (s *guardedStream) Context() context.Context { return s.ctx }

func (s *guardedStream) RecvMsg(message any) error {
	if err := s.ServerStream.RecvMsg(message); err != nil {
		return err
	}
	return s.guard.validate(message)
}

// validate checks a request against the rules in api/proto, and rejects NUL
// characters.
func (g *guard) validate(request any) error {
	message, ok := request.(proto.Message)
	if !ok {
		return fmt.Errorf("validate %T: not a proto message", request)
	}
	if err := g.validator.Validate(message, protovalidate.WithFilter(aip.RulesFor(message))); err != nil {
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

// orPanic returns err, or an error with the stack if panicked is not nil.
func orPanic(err error, panicked any) error {
	if panicked == nil {
		return err
	}
	return fmt.Errorf("panic: %v\n%s", panicked, debug.Stack())
}

// settle converts the error or panic of a call to the status for the client,
// and logs what the client must not see. No other code logs the error of a
// call, except the one that admits callers.
func (g *guard) settle(ctx context.Context, method string, err error, panicked any) error {
	err = orPanic(err, panicked)
	result := toStatus(err)
	known, isKnown := errors.AsType[*problem.Error](err)
	switch {
	case status.Code(result) == codes.Internal:
		g.log.ErrorContext(ctx, "server: call failed", "method", method, "err", err)
	case isKnown && known.Err != nil:
		g.log.WarnContext(ctx, "server: call failed", "method", method, "err", err)
	}
	return result
}
