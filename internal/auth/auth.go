// Package auth admits. It reports whether a call may go on, before anything of
// it is looked at but its metadata:
//
//   - [Verifier]: who calls, by the OpenID Connect ID token that the call
//     carries (https://openid.net/specs/openid-connect-core-1_0.html#IDToken);
//   - [Policy]: what that caller may call, by a file that is checked as a whole
//     when the process starts;
//   - how often, per caller: [GateConfig].CallerRate.
//
// [Gate] is the three in this order. The server asks it once for every call,
// also for one that came over REST.
//
// It promises: nobody is admitted whose token was not signed by the issuer for
// one of our audiences, is expired or not yet valid; a caller who is refused
// learns that, and not why; why is in the log, at most so often that the log
// stays readable. Keys are read from the issuer one request at a time, at most
// every few seconds however many tokens name an unknown key, and those that
// were read last a day while the issuer is away. The number of callers that it
// remembers is bounded.
//
// It does not know what a user is, keeps no session, and asks no issuer whether
// a token was revoked: a token is good until it expires, and a stream until its
// lifetime is over. It owns no table.
package auth

import (
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Caller is who calls, as the issuer vouches for it.
type Caller struct {
	// Subject is the issuer's name of the caller, which is never given to another.
	Subject string
	// Email is empty unless the issuer has verified it.
	Email string
}

// String is how a person knows the caller: the email, or without one the subject.
func (c Caller) String() string {
	if c.Email != "" {
		return c.Email
	}
	return "sub " + c.Subject
}

// What a caller who is refused gets to see. It is the same whatever the reason,
// so that nobody can find out by trying what almost worked.
var (
	errUnauthenticated = status.Error(codes.Unauthenticated, "valid credentials are required")
	errDenied          = status.Error(codes.PermissionDenied, "the caller may not do this")
	errUnavailable     = status.Error(codes.Unavailable, "credentials cannot be checked at the moment: call again")
)

// errExhausted tells a caller who calls too often when to call again.
func errExhausted(after time.Duration) error {
	st := status.New(codes.ResourceExhausted, "too many calls: call again later")
	detailed, err := st.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(after)})
	if err != nil { // not with a message of a type that is linked in
		return st.Err()
	}
	return detailed.Err()
}
