package domain

import "fmt"

// Kind says what a caller may do about an error.
type Kind int

// The kinds. An error that is no *Error at all is a defect or a failure of
// something below, and none of the caller's business.
const (
	// Invalid: the command makes no sense; sending it again will not help.
	Invalid Kind = iota + 1
	// NotFound: there is no such thing.
	NotFound
	// Exists: it is there already.
	Exists
	// Conflict: somebody else was faster; read again and decide anew.
	Conflict
	// Precondition: the thing must first be brought into another state.
	Precondition
	// Unavailable: something needed is down; the same command may succeed later.
	Unavailable
)

// Error is an error that a caller may see: its Message, and for Invalid the
// Field it is about, reach the client; what it wraps does not.
type Error struct {
	Kind    Kind
	Reason  Reason // empty: what the Kind says is all there is to know
	Field   string // path in the request, such as "video.title"; may be empty
	Message string
	Err     error // the cause, for the log; may be nil
}

// Reason names one cause of an error within its Kind, for programs. A client may
// branch on it, so it never changes once released.
type Reason string

// The reasons.
const (
	// ReasonRequestIDReused: the request id was used to create something else.
	ReasonRequestIDReused Reason = "REQUEST_ID_REUSED"
	// ReasonVideoDeleted: the video is deleted, and must be undeleted first.
	ReasonVideoDeleted Reason = "VIDEO_DELETED"
	// ReasonVideoNotDeleted: there is nothing to undelete.
	ReasonVideoNotDeleted Reason = "VIDEO_NOT_DELETED"
)

// Errorf makes an Error of a kind.
func Errorf(kind Kind, format string, args ...any) *Error {
	return &Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

// InvalidField makes an Error of kind Invalid about one field of the request.
func InvalidField(field, format string, args ...any) *Error {
	return &Error{Kind: Invalid, Field: field, Message: fmt.Sprintf(format, args...)}
}

// Because returns the Error with a reason.
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
