package domain

import "fmt"

// Kind says what a caller can do about an error.
type Kind int

// The kinds. An error that is not an *Error is a defect or a failure below this
// package, and its text is not for the caller.
const (
	// Invalid: the request is not valid; a retry will not help.
	Invalid Kind = iota + 1
	// NotFound: the object does not exist.
	NotFound
	// Exists: the object already exists.
	Exists
	// Conflict: another caller changed the object; read it again and retry.
	Conflict
	// Precondition: the object must first be brought into another state.
	Precondition
	// Unavailable: a dependency is unavailable; the same request may succeed
	// later.
	Unavailable
)

// Error is an error for the caller. The client gets its Message, its Reason
// and, for Invalid, its Field; it does not get the wrapped Err.
type Error struct {
	Kind    Kind
	Reason  Reason // empty: the Kind alone says it
	Field   string // path in the request, such as "video.title"; may be empty
	Message string
	Err     error // the cause, for the log; may be nil
}

// Reason is a machine-readable cause of an error within its Kind. Clients may
// depend on a reason, so it never changes after its release.
type Reason string

// The reasons.
const (
	// ReasonRequestIDReused: the request id belongs to another create request.
	ReasonRequestIDReused Reason = "REQUEST_ID_REUSED"
	// ReasonVideoDeleted: the video is deleted, and must be undeleted first.
	ReasonVideoDeleted Reason = "VIDEO_DELETED"
	// ReasonVideoNotDeleted: the video cannot be undeleted, because it is not
	// deleted.
	ReasonVideoNotDeleted Reason = "VIDEO_NOT_DELETED"
)

// Errorf returns an Error of a kind with a formatted message.
func Errorf(kind Kind, format string, args ...any) *Error {
	return &Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

// InvalidField returns an Error of kind Invalid for one field of the request.
func InvalidField(field, format string, args ...any) *Error {
	return &Error{Kind: Invalid, Field: field, Message: fmt.Sprintf(format, args...)}
}

// Because sets the reason of the Error, and returns the same Error.
func (e *Error) Because(reason Reason) *Error {
	e.Reason = reason
	return e
}

func (e *Error) Error() string {
	text := e.Message
	if e.Field != "" {
		text = e.Field + ": " + text
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
