package telemetry_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"

	"example.com/videocatalog/internal/telemetry"
)

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

// A client whose connections make net/http log errors cannot fill the log.
func TestConnectionErrorsAreLimited(t *testing.T) {
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
	for range 300 {
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
	if got := len(lines(t, &out.Buffer)); got < 20 || got > 150 {
		t.Errorf("%d lines of 300, want the first 20, and two per second", got)
	}
}
