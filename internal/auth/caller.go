package auth

import "context"

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
