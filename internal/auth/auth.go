// Package auth decides whether a call may continue, from its metadata alone. The
// server calls [Gate.Admit] once per call, over gRPC or REST.
//
// By default Cloud Run's IAM has already checked the caller, and the gate only
// limits how often each caller may call. An option of the service can have a
// Checker. Then the gate also verifies the token of each call, and whether its
// caller may call the method.
//
// A rejected caller does not learn the reason. The log has the reason, at a limited
// rate.
package auth

import (
	"context"
	"strings"
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

// Claims are the claims of an ID token that identify its caller.
type Claims struct {
	Subject       string `json:"sub"`
	Email         string `json:"email"`
	EmailVerified any    `json:"email_verified"` // true, or "true" from some issuers
}

// Caller returns the caller that the claims name.
func (c Claims) Caller() Caller {
	caller := Caller{Subject: c.Subject}
	if c.EmailVerified == true || c.EmailVerified == "true" {
		caller.Email = c.Email
	}
	return caller
}

// IsOpen reports whether a method, package.Service/Method, needs no credentials. Only the
// health service needs none: the platform that starts and balances this process has none.
// It reveals only whether the process serves.
func IsOpen(method string) bool { return strings.HasPrefix(method, "grpc.health.v1.Health/") }

type callerKey struct{}

// WithCaller returns the context of a call with the name of its caller, for its handler.
func WithCaller(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, callerKey{}, name)
}

// CallerOf returns the caller of ctx; empty if it has none.
func CallerOf(ctx context.Context) string {
	name, _ := ctx.Value(callerKey{}).(string)
	return name
}
