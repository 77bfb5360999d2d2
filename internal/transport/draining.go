package transport

import "context"

// Draining returns a channel that is closed when the server of a call in flight
// begins to stop. A handler that waits for something should then end soon, with
// ErrDraining. Outside a call the channel is nil.
func Draining(ctx context.Context) <-chan struct{} {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return c.server.draining.Done()
	}
	return nil
}
