package port

import (
	"bytes"
	"log/slog"
	"testing"
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
