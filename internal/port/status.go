package port

import (
	"context"
	"errors"
	"strings"

	"buf.build/go/protovalidate"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"example.com/videocatalog/internal/problem"
)

// ErrDraining ends a wait or a stream that cannot finish before the server
// stops.
var ErrDraining = problem.Errorf(problem.Unavailable, "the server is stopping: call again").Because(reasonStopping)

// errStreamOver ends a stream at Config.StreamLifetime. Clients of a watch
// resume after its code, UNAVAILABLE.
var errStreamOver = problem.Errorf(problem.Unavailable, "the stream has lasted as long as it may: call again").Because(reasonStreamOver)

// errTooManyCalls rejects a call beyond Config.MaxCalls.
var errTooManyCalls = newStatus(reasonTooManyCalls, "too many calls at a time: call again")

// errTooManyPages rejects a list call that got no memory for its page in time.
var errTooManyPages = problem.Errorf(problem.Unavailable, "clients are reading too many large pages: call again, or for a smaller page").Because(reasonTooManyPages)

// toStatus converts an error to the status that the client gets, with the
// details that explain adds. Errors that are not meant for clients become
// INTERNAL without any detail. Code that rejects a call outside a handler uses
// newStatus.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	// Only a status created here is passed on. A status wrapped by an error
	// came from another service, and is not for our client.
	if known, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return explain(known.GRPCStatus(), "").Err()
	}
	if invalid, ok := errors.AsType[*protovalidate.ValidationError](err); ok {
		return explain(violationsStatus(invalid), "").Err()
	}
	if known, ok := errors.AsType[*problem.Error](err); ok {
		return explain(problemStatus(known), known.Reason).Err()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return newStatus(reasonDeadline, "it took longer than the call may").Err()
	}
	if errors.Is(err, context.Canceled) {
		return newStatus(reasonCanceled, "the caller is gone").Err()
	}
	return newStatus(reasonInternal, "internal error").Err()
}

var codeOf = map[problem.Kind]codes.Code{
	problem.Invalid:      codes.InvalidArgument,
	problem.NotFound:     codes.NotFound,
	problem.Exists:       codes.AlreadyExists,
	problem.Conflict:     codes.Aborted,
	problem.Precondition: codes.FailedPrecondition,
	problem.Unavailable:  codes.Unavailable,
	problem.Exhausted:    codes.ResourceExhausted,
	problem.Late:         codes.DeadlineExceeded,
}

func problemStatus(err *problem.Error) *status.Status {
	code, ok := codeOf[err.Kind]
	if !ok {
		return newStatus(reasonInternal, "internal error")
	}
	if err.Kind != problem.Invalid || err.Field == "" {
		return status.New(code, err.Message)
	}
	return badRequest(&errdetails.BadRequest_FieldViolation{Field: err.Field, Description: err.Message})
}

func violationsStatus(err *protovalidate.ValidationError) *status.Status {
	violations := make([]*errdetails.BadRequest_FieldViolation, len(err.Violations))
	for i, v := range err.Violations {
		violations[i] = &errdetails.BadRequest_FieldViolation{
			Field:       protovalidate.FieldPathString(v.Proto.GetField()),
			Description: v.Proto.GetMessage(),
		}
	}
	return badRequest(violations...)
}

func badRequest(violations ...*errdetails.BadRequest_FieldViolation) *status.Status {
	st := status.New(codes.InvalidArgument, messageOf(violations))
	detailed, err := st.WithDetails(&errdetails.BadRequest{FieldViolations: violations})
	if err != nil { // a field name that is not UTF-8
		return st
	}
	return detailed
}

// messageOf returns the message of an error about fields: "field: rule", and
// more of them behind semicolons.
func messageOf(violations []*errdetails.BadRequest_FieldViolation) string {
	texts := make([]string, len(violations))
	for i, v := range violations {
		texts[i] = v.GetDescription()
		if v.GetField() != "" {
			texts[i] = v.GetField() + ": " + texts[i]
		}
	}
	return strings.Join(texts, "; ")
}
