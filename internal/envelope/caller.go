package envelope

import "context"

type callerKey struct{}

// WithCaller returns ctx with the name of who calls a command. The outbox keeps it with the
// events that are appended under ctx. It is no attribute of the message: consumers do not
// learn it.
func WithCaller(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, callerKey{}, name)
}

// CallerOf returns the caller of ctx; empty if it has none.
func CallerOf(ctx context.Context) string {
	name, _ := ctx.Value(callerKey{}).(string)
	return name
}
