package port

import (
	"bytes"
	"context"
	"log/slog"
	"testing"

	"google.golang.org/grpc"
)

// Health checks and reflection are nobody's news.
func TestHealthChecksAreNotLogged(t *testing.T) {
	t.Parallel()
	r := &requests{log: slog.New(slog.NewJSONHandler(new(bytes.Buffer), nil))}
	for method, want := range map[string]bool{
		"/grpc.health.v1.Health/Check": false, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": false, "/library.v1.BookService/GetBook": true,
	} {
		if got := r.wanted(t.Context(), method); got != want {
			t.Errorf("wanted(%s) = %t, want %t", method, got, want)
		}
	}
}

// A handler finds out who calls and when the server stops, whatever is logged.
func TestCallsKnowTheirCaller(t *testing.T) {
	t.Parallel()
	draining := make(chan struct{})
	r := &requests{log: slog.New(slog.DiscardHandler), draining: draining, address: func(context.Context) string { return "192.0.2.1" }}
	check := func(ctx context.Context) error {
		if got := Caller(ctx); got != "192.0.2.1" {
			t.Errorf("Caller() = %q, want the address", got)
		}
		callOf(ctx).caller = "editor@example.com"
		if got := Caller(ctx); got != "editor@example.com" {
			t.Errorf("Caller() = %q, want the verified name", got)
		}
		if Draining(ctx) != (<-chan struct{})(draining) {
			t.Error("Draining() is not the channel of the server")
		}
		return nil
	}
	if _, err := r.unary(t.Context(), nil, &grpc.UnaryServerInfo{}, func(ctx context.Context, _ any) (any, error) { return nil, check(ctx) }); err != nil {
		t.Error(err)
	}
	stream := &streamIn{ctx: t.Context()}
	if err := r.stream(nil, stream, &grpc.StreamServerInfo{}, func(_ any, s grpc.ServerStream) error { return check(s.Context()) }); err != nil {
		t.Error(err)
	}
	if Caller(t.Context()) != "" || Draining(t.Context()) != nil {
		t.Error("outside a call there is a caller")
	}
}
