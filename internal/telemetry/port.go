package telemetry

import (
	"context"
	"encoding/json"
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

// Private is what the private port has, each where it is not nil.
type Private struct {
	// Scrape is at /metrics.
	Scrape http.Handler
	// Level is that of the log: GET /log/level reads it, PUT writes it.
	Level *slog.LevelVar
	// Backlog returns what waits, for /health/backlog. It says how things are, and
	// never that a process is unhealthy: ending one does not make a backlog less.
	Backlog func(context.Context) (any, error)
}

// Handler returns the private port: the above, and profiles at /debug/pprof/.
func (p Private) Handler() http.Handler {
	mux := http.NewServeMux()
	if p.Scrape != nil {
		mux.Handle("GET /metrics", p.Scrape)
	}
	if p.Level != nil {
		mux.HandleFunc("GET /log/level", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, p.Level.Level()) })
		mux.HandleFunc("PUT /log/level", p.setLevel)
	}
	if p.Backlog != nil {
		mux.HandleFunc("GET /health/backlog", p.backlog)
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

// backlogTimeout is how long a look at the backlog may take.
const backlogTimeout = 5 * time.Second

func (p Private) backlog(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), backlogTimeout)
	defer cancel()
	backlog, err := p.Backlog(ctx)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(backlog) // the reader is gone
}

// Serve serves a handler until ctx is done, and returns nil then. It closes the
// listener. Whoever is being answered is cut off.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler, log *slog.Logger) error {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(connlog.New(log, "telemetry: connection failed"), slog.LevelWarn),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // it would be the error of a connection that we end anyway
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the private port: %w", err)
	}
	return nil
}
