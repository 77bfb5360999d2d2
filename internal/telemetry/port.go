package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"example.com/videocatalog/internal/telemetry/connlog"
)

// Private has the endpoints of the private port. Nil fields are not served.
type Private struct {
	// Scrape is served at /metrics.
	Scrape http.Handler
	// Level is the log level: GET /log/level reads it, PUT sets it.
	Level *slog.LevelVar
}

// Handler returns the handler of the private port: the endpoints above, and
// profiles at /debug/pprof/.
func (p Private) Handler() http.Handler {
	mux := http.NewServeMux()
	if p.Scrape != nil {
		mux.Handle("GET /metrics", p.Scrape)
	}
	if p.Level != nil {
		mux.HandleFunc("GET /log/level", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, p.Level.Level()) })
		mux.HandleFunc("PUT /log/level", p.setLevel)
	}
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}

func (p Private) setLevel(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64))
	var level slog.Level
	if err == nil {
		err = level.UnmarshalText(text)
	}
	if err != nil {
		http.Error(w, "the body must be a level: DEBUG, INFO, WARN or ERROR", http.StatusBadRequest)
		return
	}
	p.Level.Set(level)
	fmt.Fprintln(w, level)
}

// Serve serves a handler until ctx is done, then returns nil. It closes the
// listener and aborts the requests in flight.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler, log *slog.Logger) error {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(connlog.New(log, "telemetry: connection failed"), slog.LevelWarn),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // the error of a connection that is closed anyway
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the private port: %w", err)
	}
	return nil
}
