// Package auth decides whether a call may continue, from its metadata alone:
//
//   - [Verifier] identifies the caller by the OpenID Connect ID token of the call
//     (https://openid.net/specs/openid-connect-core-1_0.html#IDToken);
//   - [Policy] lists the methods that each caller may call. Its file is checked as
//     a whole when the process starts;
//   - [GateConfig].CallerRate limits how often each caller may call.
//
// [Gate] applies these three in this order. The server calls it once per call,
// over gRPC or REST.
//
// A token is accepted only if the issuer signed it for one of our audiences and it
// is valid now. A rejected caller does not learn the reason. The log has the
// reason, at a limited rate.
//
// The issuer's keys are read with one request at a time, at most once every few
// seconds, even if many tokens name an unknown key. While the issuer is
// unavailable the last keys stay valid for a day. The number of callers in memory
// is limited.
//
// The package has no users and no sessions, and does not ask the issuer whether a
// token was revoked. A token is valid until it expires, and a stream may outlive
// its token until the stream's lifetime ends. The package owns no table.
package auth

import (
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Caller is the identity of a caller as the issuer confirms it.
type Caller struct {
	// Subject is the issuer's id of the caller, which it never reuses.
	Subject string
	// Email is empty unless the issuer has verified it.
	Email string
}

// String returns the email, or the subject if there is no email.
func (c Caller) String() string {
	if c.Email != "" {
		return c.Email
	}
	return "sub " + c.Subject
}

// Statuses of rejected callers. Each is the same for every reason, so that an
// attacker does not learn which part of an attempt was right.
var (
	errUnauthenticated = status.Error(codes.Unauthenticated, "valid credentials are required")
	errDenied          = status.Error(codes.PermissionDenied, "the caller may not do this")
	errUnavailable     = status.Error(codes.Unavailable, "credentials cannot be checked at the moment: call again")
)

// errExhausted returns the status of a caller beyond its rate, with the time to
// wait before the next call.
func errExhausted(after time.Duration) error {
	st := status.New(codes.ResourceExhausted, "too many calls: call again later")
	detailed, err := st.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(after)})
	if err != nil { // cannot happen with a linked-in message type
		return st.Err()
	}
	return detailed.Err()
}
