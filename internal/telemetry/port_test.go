package telemetry_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"example.com/videocatalog/internal/telemetry"
)

// ask makes a request of a handler and returns the status and the body.
func ask(t *testing.T, handler http.Handler, method, path, body string) (int, string) {
	t.Helper()
	response := httptest.NewRecorder()
	handler.ServeHTTP(response, httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body)))
	return response.Code, strings.TrimSpace(response.Body.String())
}

// PUT changes the level of the log; nonsense changes nothing.
func TestPrivatePortChangesTheLevel(t *testing.T) {
	var level slog.LevelVar
	handler := telemetry.Private{Level: &level}.Handler()
	for _, test := range []struct {
		method, body string
		code         int
		want         string
		level        slog.Level
	}{
		{http.MethodGet, "", http.StatusOK, "INFO", slog.LevelInfo},
		{http.MethodPut, "debug", http.StatusOK, "DEBUG", slog.LevelDebug},
		{http.MethodPut, "loud", http.StatusBadRequest, "the body must be a level: DEBUG, INFO, WARN or ERROR", slog.LevelDebug},
		{http.MethodPut, strings.Repeat("x", 1000), http.StatusBadRequest, "the body must be a level: DEBUG, INFO, WARN or ERROR", slog.LevelDebug},
		{http.MethodGet, "", http.StatusOK, "DEBUG", slog.LevelDebug},
		{http.MethodDelete, "", http.StatusMethodNotAllowed, "Method Not Allowed", slog.LevelDebug},
	} {
		code, body := ask(t, handler, test.method, "/log/level", test.body)
		if code != test.code || body != test.want || level.Level() != test.level {
			t.Errorf("%s %q = %d %q, level %s, want %d %q, level %s", test.method, test.body, code, body, level.Level(), test.code, test.want, test.level)
		}
	}
}

// lockedBuffer may still be written to while a test reads it.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

// What net/http says of connections has the address of the client in it, and
// is of one message nevertheless, so that it is sampled.
func TestConnectionErrorsAreSampled(t *testing.T) {
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var out lockedBuffer
	served := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	panics := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("on purpose") })
	go func() {
		served <- telemetry.Serve(ctx, listener, panics, telemetry.NewLogger(&out, slog.LevelInfo, ""))
	}()
	for range 30 {
		if response, err := http.Get("http://" + listener.Addr().String()); err == nil {
			response.Body.Close()
			t.Error("a handler that panics has answered")
		}
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	out.mu.Lock()
	defer out.mu.Unlock()
	got := lines(t, &out.Buffer)
	if len(got) != 20 {
		t.Errorf("%d lines, want the first 20", len(got))
	}
	for _, line := range got {
		if text, _ := line["err"].(string); line["message"] != "telemetry: connection failed" || !strings.Contains(text, "127.0.0.1:") {
			t.Errorf("line = %v, want the address in err only", line)
		}
	}
}
