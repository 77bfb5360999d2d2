package transport

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"buf.build/go/protovalidate"
	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/problem"
)

// The errors of this package that have a reason of their own. docs/errors.md
// explains every reason.
var (
	// ErrDraining ends a wait or a stream that cannot finish before the server stops.
	ErrDraining      = problem.Errorf(problem.Unavailable, "the server is stopping: call again").Because("SERVER_STOPPING")
	errStreamOver    = problem.Errorf(problem.Unavailable, "the stream has lasted as long as it may: call again").Because("STREAM_LIFETIME_OVER")
	errTooManyCalls  = problem.Errorf(problem.Exhausted, "too many calls at a time: call again").Because("TOO_MANY_CALLS")
	errTooLarge      = problem.Errorf(problem.Exhausted, "the body is larger than a request may be").Because("REQUEST_TOO_LARGE")
	errEncoded       = problem.Errorf(problem.Invalid, "the header Content-Encoding must be identity: send the body as it is").Because("CONTENT_ENCODING_UNSUPPORTED")
	errPathUnknown   = problem.Errorf(problem.NotFound, "there is nothing at this path").Because("PATH_UNKNOWN")
	errMethodUnknown = problem.Errorf(problem.Kind(codes.Unimplemented), "this path has other methods").Because("METHOD_NOT_ALLOWED")
)

// reasonOf maps a code to the reason of errors that have no reason of their own.
var reasonOf = map[codes.Code]problem.Reason{
	codes.InvalidArgument:    "INVALID_REQUEST",
	codes.NotFound:           "RESOURCE_NOT_FOUND",
	codes.AlreadyExists:      "RESOURCE_EXISTS",
	codes.Aborted:            "ETAG_MISMATCH",
	codes.FailedPrecondition: "STATE_UNSUITABLE",
	codes.Unavailable:        "SERVICE_UNAVAILABLE",
	codes.DeadlineExceeded:   "CALL_TIMEOUT",
	codes.Canceled:           "CALLER_LEFT",
	codes.Unauthenticated:    "CREDENTIALS_INVALID",
	codes.PermissionDenied:   "CALLER_NOT_PERMITTED",
	codes.ResourceExhausted:  "RATE_LIMIT_EXCEEDED",
	codes.Unimplemented:      "METHOD_UNKNOWN",
	codes.Internal:           "INTERNAL_ERROR",
}

// toStatus converts an error to the status that the client gets. Errors that are
// not meant for clients become INTERNAL without any detail.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	// Only a status created here is passed on. A status wrapped by an error
	// came from another service, and is not for our client.
	if known, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return explain(known.GRPCStatus(), "")
	}
	if invalid, ok := errors.AsType[*protovalidate.ValidationError](err); ok {
		violations := make([]*errdetails.BadRequest_FieldViolation, min(len(invalid.Violations), 20)) // clients limit trailers
		for i, v := range invalid.Violations[:len(violations)] {
			violations[i] = &errdetails.BadRequest_FieldViolation{
				Field: protovalidate.FieldPathString(v.Proto.GetField()), Description: v.Proto.GetMessage(),
			}
		}
		return badRequest(violations...)
	}
	if known, ok := errors.AsType[*problem.Error](err); ok {
		if known.Field != "" {
			return badRequest(&errdetails.BadRequest_FieldViolation{Field: known.Field, Description: known.Message})
		}
		return explain(status.New(codes.Code(known.Kind), utf8Of(known.Message)), known.Reason) //nolint:gosec // a Kind is a code
	}
	st := status.New(codes.Internal, "internal error")
	if errors.Is(err, context.DeadlineExceeded) {
		st = status.New(codes.DeadlineExceeded, "it took longer than the call may")
	} else if errors.Is(err, context.Canceled) {
		st = status.New(codes.Canceled, "the caller is gone")
	}
	return explain(st, "")
}

// badRequest returns INVALID_ARGUMENT with the violations as a detail, and as its
// message: each as "field: rule", separated by semicolons.
func badRequest(violations ...*errdetails.BadRequest_FieldViolation) error {
	var texts []string
	for _, v := range violations {
		v.Field, v.Description = utf8Of(v.GetField()), utf8Of(v.GetDescription())
		texts = append(texts, strings.TrimPrefix(v.GetField()+": "+v.GetDescription(), ": "))
	}
	st := status.New(codes.InvalidArgument, strings.Join(texts, "; "))
	return explain(st, "", &errdetails.BadRequest{FieldViolations: violations})
}

// utf8Of returns text that gRPC can send. It cuts what a caller has sent, so that the response stays small.
func utf8Of(text string) string { return strings.ToValidUTF8(text[:min(len(text), 1000)], "\ufffd") }

// explain returns the status with details, and with exactly one google.rpc.ErrorInfo
// (AIP-193). An empty reason means the default of the code. A status that a retry may cure
// also gets google.rpc.RetryInfo: a second is long enough to reach another instance.
func explain(st *status.Status, reason problem.Reason, details ...protoadapt.MessageV1) error {
	if detail[*errdetails.ErrorInfo](st) != nil {
		return st.Err()
	}
	reason = cmp.Or(reason, reasonOf[st.Code()], reasonOf[codes.Internal])
	details = append(details, &errdetails.ErrorInfo{Reason: string(reason), Domain: names.ErrorDomain})
	if st.Code() == codes.Unavailable || reason == errTooManyCalls.Reason || reason == reasonOf[codes.ResourceExhausted] {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)})
	}
	explained, err := st.WithDetails(details...)
	if err != nil { // cannot happen with these messages
		return st.Err()
	}
	return explained.Err()
}

// detail returns the first detail of type T of a status, or nil.
func detail[T any](st *status.Status) (found T) {
	for _, each := range st.Details() {
		if message, ok := each.(T); ok {
			return message
		}
	}
	return found
}

// httpStatusOf maps a reason to an HTTP status, if the code has another one.
var httpStatusOf = map[problem.Reason]int{
	errTooLarge.Reason: http.StatusRequestEntityTooLarge, errMethodUnknown.Reason: http.StatusMethodNotAllowed, errEncoded.Reason: http.StatusUnsupportedMediaType,
}

// httpStatus returns the HTTP status for the status of an error.
func httpStatus(st *status.Status) int {
	return cmp.Or(httpStatusOf[problem.Reason(detail[*errdetails.ErrorInfo](st).GetReason())], runtime.HTTPStatusFromCode(st.Code()))
}
