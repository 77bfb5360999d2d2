package auth

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Statuses of rejected callers. Each is the same for every reason, so that an
// attacker does not learn which part of an attempt was right.
var (
	errUnauthenticated = status.Error(codes.Unauthenticated, "valid credentials are required")
	errDenied          = status.Error(codes.PermissionDenied, "the caller may not do this")
	errUnavailable     = status.Error(codes.Unavailable, "credentials cannot be checked at the moment: call again")
)

// Checker checks the callers of this process. It must be safe for concurrent use.
type Checker interface {
	// Verify returns the caller that a token identifies. Its error says why the token
	// is not accepted, for the log only. It is ErrUnavailable if nobody can be
	// identified at the moment.
	Verify(ctx context.Context, token string) (Caller, error)
	// Allows reports whether a caller may call a method, package.Service/Method.
	Allows(caller Caller, method string) bool
}

// ErrUnavailable is the error of a Checker that can identify nobody at the moment.
var ErrUnavailable = errors.New("callers cannot be identified at the moment")

// check returns the context and the caller of a call that may continue. Otherwise the error is the status
// for the caller: Unauthenticated, PermissionDenied, or Unavailable if the Checker is.
func (g *Gate) check(ctx context.Context, method, address string) (context.Context, Caller, error) {
	caller, err := g.identify(ctx)
	switch {
	case errors.Is(err, ErrUnavailable):
		return ctx, Caller{}, g.refuse(ctx, errUnavailable, method, address, err.Error())
	case err != nil:
		return ctx, Caller{}, g.refuse(ctx, errUnauthenticated, method, address, err.Error())
	case !g.Checker.Allows(caller, method):
		ctx = WithCaller(ctx, caller.String())
		return ctx, caller, g.refuse(ctx, errDenied, method, "sub "+caller.Subject, "no rule of the policy allows it; email "+caller.Email)
	}
	ctx, err = g.scope(ctx, method, caller) // only tenancy
	return ctx, caller, err
}

// identify returns the caller that the token of a call identifies.
func (g *Gate) identify(ctx context.Context) (Caller, error) {
	token, err := bearer(ctx, headerOwn, headerCloudRun)
	if err != nil {
		return Caller{}, err
	}
	if token == "" {
		return Caller{}, errors.New("the call has no token")
	}
	if strings.HasSuffix(token, ".SIGNATURE_REMOVED_BY_GOOGLE") {
		return Caller{}, errors.New("the token has no signature any more, because Cloud Run has read it: " +
			"send the token for Cloud Run as X-Serverless-Authorization, and the one for the service as Authorization")
	}
	return g.Checker.Verify(ctx, token)
}
