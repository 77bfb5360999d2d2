package port

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/problem"
)

// retryDelay is the delay before a retry that UNAVAILABLE recommends. It is
// long enough to reach another instance, and short enough to find a database
// soon after a failover.
const retryDelay = time.Second

// The reasons of this package. Each code has a default reason; see reasonOf.
const (
	reasonInvalidRequest       problem.Reason = "INVALID_REQUEST"
	reasonMediaTypeUnsupported problem.Reason = "MEDIA_TYPE_UNSUPPORTED"
	reasonNotFound             problem.Reason = "RESOURCE_NOT_FOUND"
	reasonPathUnknown          problem.Reason = "PATH_UNKNOWN"
	reasonExists               problem.Reason = "RESOURCE_EXISTS"
	reasonEtagMismatch         problem.Reason = "ETAG_MISMATCH"
	reasonPrecondition         problem.Reason = "STATE_UNSUITABLE"
	reasonUnavailable          problem.Reason = "SERVICE_UNAVAILABLE"
	reasonStopping             problem.Reason = "SERVER_STOPPING"
	reasonStreamOver           problem.Reason = "STREAM_LIFETIME_OVER"
	reasonTooManyCalls         problem.Reason = "TOO_MANY_CALLS"
	reasonTooManyPages         problem.Reason = "TOO_MANY_PAGES"
	reasonDeadline             problem.Reason = "CALL_TIMEOUT"
	reasonCanceled             problem.Reason = "CALLER_LEFT"
	reasonUnauthenticated      problem.Reason = "CREDENTIALS_INVALID"
	reasonDenied               problem.Reason = "CALLER_NOT_PERMITTED"
	reasonRate                 problem.Reason = "RATE_LIMIT_EXCEEDED"
	reasonTooLarge             problem.Reason = "REQUEST_TOO_LARGE"
	reasonMethodUnknown        problem.Reason = "METHOD_UNKNOWN"
	reasonMethodNotAllowed     problem.Reason = "METHOD_NOT_ALLOWED"
	reasonInternal             problem.Reason = "INTERNAL_ERROR"
)

// causes maps each reason to its code, and to its HTTP status if the code
// implies another one. docs/errors.md explains every reason.
var causes = map[problem.Reason]struct {
	code codes.Code
	http int
}{
	reasonInvalidRequest:       {code: codes.InvalidArgument},
	reasonMediaTypeUnsupported: {codes.InvalidArgument, http.StatusUnsupportedMediaType},
	reasonNotFound:             {code: codes.NotFound},
	reasonPathUnknown:          {code: codes.NotFound},
	reasonExists:               {code: codes.AlreadyExists},
	reasonEtagMismatch:         {code: codes.Aborted},
	reasonPrecondition:         {code: codes.FailedPrecondition},
	reasonUnavailable:          {code: codes.Unavailable},
	reasonStopping:             {code: codes.Unavailable},
	reasonStreamOver:           {code: codes.Unavailable},
	reasonTooManyCalls:         {code: codes.Unavailable},
	reasonTooManyPages:         {code: codes.Unavailable},
	reasonDeadline:             {code: codes.DeadlineExceeded},
	reasonCanceled:             {code: codes.Canceled},
	reasonUnauthenticated:      {code: codes.Unauthenticated},
	reasonDenied:               {code: codes.PermissionDenied},
	reasonRate:                 {code: codes.ResourceExhausted},
	reasonTooLarge:             {codes.ResourceExhausted, http.StatusRequestEntityTooLarge},
	reasonMethodUnknown:        {code: codes.Unimplemented},
	reasonMethodNotAllowed:     {codes.Unimplemented, http.StatusMethodNotAllowed},
	reasonInternal:             {code: codes.Internal},
}

// reasonOf maps a code to the reason of errors that have no reason of their
// own.
var reasonOf = map[codes.Code]problem.Reason{
	codes.InvalidArgument:    reasonInvalidRequest,
	codes.NotFound:           reasonNotFound,
	codes.AlreadyExists:      reasonExists,
	codes.Aborted:            reasonEtagMismatch,
	codes.FailedPrecondition: reasonPrecondition,
	codes.Unavailable:        reasonUnavailable,
	codes.DeadlineExceeded:   reasonDeadline,
	codes.Canceled:           reasonCanceled,
	codes.Unauthenticated:    reasonUnauthenticated,
	codes.PermissionDenied:   reasonDenied,
	codes.ResourceExhausted:  reasonRate,
	codes.Unimplemented:      reasonMethodUnknown,
}

// newStatus returns a status with a reason and the code of that reason.
func newStatus(reason problem.Reason, format string, args ...any) *status.Status {
	return explain(status.Newf(causes[reason].code, format, args...), reason)
}

// explain returns the status with exactly one google.rpc.ErrorInfo (AIP-193),
// and keeps one that exists. An empty reason means the default of the code.
// UNAVAILABLE also gets google.rpc.RetryInfo, because a retry may succeed.
func explain(st *status.Status, reason problem.Reason) *status.Status {
	if detail[*errdetails.ErrorInfo](st) != nil {
		return st
	}
	if reason == "" {
		reason = reasonOf[st.Code()]
	}
	if reason == "" {
		reason = reasonInternal
	}
	details := []proto.Message{&errdetails.ErrorInfo{Reason: string(reason), Domain: names.ErrorDomain}}
	if st.Code() == codes.Unavailable && detail[*errdetails.RetryInfo](st) == nil {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(retryDelay)})
	}
	explained := st.Proto()
	explained.Message = strings.ToValidUTF8(explained.GetMessage(), "\ufffd") // gRPC cannot send other text
	for i, message := range details {
		packed, err := anypb.New(message)
		if err != nil { // cannot happen with these messages
			return st
		}
		explained.Details = slices.Insert(explained.Details, i, packed)
	}
	return status.FromProto(explained)
}

// detail returns the first detail of type T of a status, or nil.
func detail[T proto.Message](st *status.Status) (found T) {
	for _, each := range st.Details() {
		if message, ok := each.(T); ok {
			return message
		}
	}
	return found
}

// httpStatus returns the HTTP status for the status of an error.
func httpStatus(st *status.Status) int {
	if info := detail[*errdetails.ErrorInfo](st); info != nil {
		if own := causes[problem.Reason(info.GetReason())].http; own != 0 {
			return own
		}
	}
	return runtime.HTTPStatusFromCode(st.Code())
}
