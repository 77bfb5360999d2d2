// Package problem has the errors that a caller of the API can act on. A handler,
// the domain or a store returns an [*Error]; internal/transport turns it into a gRPC
// status or a REST response. Every other error is a defect or a failure below,
// and its text is not for the caller.
package problem

import "fmt"

// Kind says what a caller can do about an error. Its number is the code of gRPC.
type Kind int

// The kinds.
const (
	// Invalid: the request is not valid; a retry will not help (INVALID_ARGUMENT).
	Invalid Kind = 3
	// NotFound: the object does not exist (NOT_FOUND).
	NotFound Kind = 5
	// Exists: the object already exists (ALREADY_EXISTS).
	Exists Kind = 6
	// Exhausted: the caller, or all callers, use too much of something; a later
	// call may succeed (RESOURCE_EXHAUSTED).
	Exhausted Kind = 8
	// Precondition: the object must first be brought into another state
	// (FAILED_PRECONDITION).
	Precondition Kind = 9
	// Conflict: another caller changed the object; read it again and retry
	// (ABORTED).
	Conflict Kind = 10
	// Unavailable: a dependency is unavailable; the same request may succeed
	// later (UNAVAILABLE).
	Unavailable Kind = 14
)

// Error is an error for the caller. The client gets its Message, its Reason
// and, for Invalid, its Field; it does not get the wrapped Err.
type Error struct {
	Kind    Kind
	Reason  Reason // empty: the Kind alone says it
	Field   string // path in the request, such as "book.title"; may be empty
	Message string
	Err     error // the cause, for the log; may be nil
}

// Reason is a machine-readable cause of an error within its Kind. Clients may
// depend on a reason, so it never changes after its release.
type Reason string

// ReasonRequestIDReused means that the request id belongs to another create request.
const ReasonRequestIDReused Reason = "REQUEST_ID_REUSED"

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
