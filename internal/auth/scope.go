package auth

import "context"

// Scope returns the context of a call by its token, which a [Checker] has verified. Its error is why the call is refused,
// for the log only.
type Scope func(ctx context.Context, token string) (context.Context, error)

// scope returns the context of a call that the Checker allows.
func (g *Gate) scope(ctx context.Context, method string, caller Caller) (context.Context, error) {
	if g.Scope == nil {
		return ctx, nil
	}
	token, _ := bearer(ctx, headerOwn, headerCloudRun) // the Checker has read it
	scoped, err := g.Scope(ctx, token)
	if err != nil {
		ctx = WithCaller(ctx, caller.String())
		return ctx, g.refuse(ctx, errDenied, method, "sub "+caller.Subject, err.Error())
	}
	return scoped, nil
}
