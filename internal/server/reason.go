package server

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

	"example.com/videocatalog/internal/domain"
)

// errorDomain is where our reasons are unique (google.rpc.ErrorInfo).
const errorDomain = "videocatalog.example.com"

// retryDelay is how long a caller should wait who got UNAVAILABLE. It is long
// enough for another instance to be chosen, and for a database to fail over soon.
const retryDelay = time.Second

// The reasons that are no error of package domain. The first of a code is what
// every error with that code has which says nothing more exact.
const (
	reasonInvalidRequest       domain.Reason = "INVALID_REQUEST"
	reasonMediaTypeUnsupported domain.Reason = "MEDIA_TYPE_UNSUPPORTED"
	reasonNotFound             domain.Reason = "RESOURCE_NOT_FOUND"
	reasonPathUnknown          domain.Reason = "PATH_UNKNOWN"
	reasonExists               domain.Reason = "RESOURCE_EXISTS"
	reasonEtagMismatch         domain.Reason = "ETAG_MISMATCH"
	reasonPrecondition         domain.Reason = "STATE_UNSUITABLE"
	reasonUnavailable          domain.Reason = "SERVICE_UNAVAILABLE"
	reasonStopping             domain.Reason = "SERVER_STOPPING"
	reasonStreamOver           domain.Reason = "STREAM_LIFETIME_OVER"
	reasonTooManyCalls         domain.Reason = "TOO_MANY_CALLS"
	reasonTooManyPages         domain.Reason = "TOO_MANY_PAGES"
	reasonTooManyWaits         domain.Reason = "TOO_MANY_WAITS"
	reasonDeadline             domain.Reason = "CALL_TIMEOUT"
	reasonVersionNotSeen       domain.Reason = "VERSION_NOT_SEEN"
	reasonCanceled             domain.Reason = "CALLER_LEFT"
	reasonUnauthenticated      domain.Reason = "CREDENTIALS_INVALID"
	reasonDenied               domain.Reason = "CALLER_NOT_PERMITTED"
	reasonRate                 domain.Reason = "RATE_LIMIT_EXCEEDED"
	reasonTooLarge             domain.Reason = "REQUEST_TOO_LARGE"
	reasonMethodUnknown        domain.Reason = "METHOD_UNKNOWN"
	reasonMethodNotAllowed     domain.Reason = "METHOD_NOT_ALLOWED"
	reasonInternal             domain.Reason = "INTERNAL_ERROR"
)

// causes has the code of every reason, and its status over REST where that is not
// the one of the code. docs/errors.md says what each of them means.
var causes = map[domain.Reason]struct {
	code codes.Code
	http int
}{
	reasonInvalidRequest:         {code: codes.InvalidArgument},
	reasonMediaTypeUnsupported:   {codes.InvalidArgument, http.StatusUnsupportedMediaType},
	reasonNotFound:               {code: codes.NotFound},
	reasonPathUnknown:            {code: codes.NotFound},
	reasonExists:                 {code: codes.AlreadyExists},
	domain.ReasonRequestIDReused: {code: codes.AlreadyExists},
	domain.ReasonVideoNotDeleted: {code: codes.AlreadyExists},
	reasonEtagMismatch:           {code: codes.Aborted},
	reasonPrecondition:           {code: codes.FailedPrecondition},
	domain.ReasonVideoDeleted:    {code: codes.FailedPrecondition},
	reasonUnavailable:            {code: codes.Unavailable},
	reasonStopping:               {code: codes.Unavailable},
	reasonStreamOver:             {code: codes.Unavailable},
	reasonTooManyCalls:           {code: codes.Unavailable},
	reasonTooManyPages:           {code: codes.Unavailable},
	reasonTooManyWaits:           {code: codes.ResourceExhausted},
	reasonDeadline:               {code: codes.DeadlineExceeded},
	reasonVersionNotSeen:         {code: codes.DeadlineExceeded},
	reasonCanceled:               {code: codes.Canceled},
	reasonUnauthenticated:        {code: codes.Unauthenticated},
	reasonDenied:                 {code: codes.PermissionDenied},
	reasonRate:                   {code: codes.ResourceExhausted},
	reasonTooLarge:               {codes.ResourceExhausted, http.StatusRequestEntityTooLarge},
	reasonMethodUnknown:          {code: codes.Unimplemented},
	reasonMethodNotAllowed:       {codes.Unimplemented, http.StatusMethodNotAllowed},
	reasonInternal:               {code: codes.Internal},
}

// reasonOf is the reason of an error of which only the code is known.
var reasonOf = map[codes.Code]domain.Reason{
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

// newStatus returns a status with a reason, and with the code of that reason.
func newStatus(reason domain.Reason, format string, args ...any) *status.Status {
	return explain(status.Newf(causes[reason].code, format, args...), reason)
}

// explain returns the status with exactly one google.rpc.ErrorInfo (AIP-193),
// unless it has one already, and with google.rpc.RetryInfo where the same call may
// succeed soon. Without a reason it is that of the code.
func explain(st *status.Status, reason domain.Reason) *status.Status {
	if detail[*errdetails.ErrorInfo](st) != nil {
		return st
	}
	if reason == "" {
		reason = reasonOf[st.Code()]
	}
	if reason == "" {
		reason = reasonInternal
	}
	details := []proto.Message{&errdetails.ErrorInfo{Reason: string(reason), Domain: errorDomain}}
	if st.Code() == codes.Unavailable && detail[*errdetails.RetryInfo](st) == nil {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(retryDelay)})
	}
	explained := st.Proto()
	explained.Message = strings.ToValidUTF8(explained.GetMessage(), "\ufffd") // else it could not be sent
	for i, message := range details {
		packed, err := anypb.New(message)
		if err != nil { // not with these messages
			return st
		}
		explained.Details = slices.Insert(explained.Details, i, packed)
	}
	return status.FromProto(explained)
}

// detail returns the first detail of a status that is a T; nil if there is none.
func detail[T proto.Message](st *status.Status) (found T) {
	for _, each := range st.Details() {
		if message, ok := each.(T); ok {
			return message
		}
	}
	return found
}

// httpStatus returns the status over REST of an error.
func httpStatus(st *status.Status) int {
	if info := detail[*errdetails.ErrorInfo](st); info != nil {
		if own := causes[domain.Reason(info.GetReason())].http; own != 0 {
			return own
		}
	}
	return runtime.HTTPStatusFromCode(st.Code())
}
