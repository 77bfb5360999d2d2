package console

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/codes"

	"example.com/videocatalog/internal/problem"
)

//go:embed templates static
var files embed.FS

// server serves the pages.
type server struct {
	sides

	service   string // its name
	log       *slog.Logger
	user      string // who acts, for the audit
	traceURL  string // where a trace is shown, with traceID instead of its id; empty: nowhere
	templates map[string]*template.Template
	acting    sync.WaitGroup // actions that run

	sampling sync.Mutex
	sampled  time.Time // when last ended; guarded by sampling
	last     sample    // guarded by sampling
}

// parse parses the templates.
func (s *server) parse() error {
	layout, err := template.New("layout.html").Funcs(functions).ParseFS(files, "templates/layout.html", "templates/parts.html")
	if err != nil {
		return fmt.Errorf("parse templates: %w", err)
	}
	pages, err := fs.Glob(files, "templates/page_*.html")
	if err != nil {
		return err
	}
	s.templates = make(map[string]*template.Template)
	for _, name := range pages {
		page, err := template.Must(layout.Clone()).ParseFS(files, name)
		if err != nil {
			return fmt.Errorf("parse templates: %w", err)
		}
		s.templates[strings.TrimSuffix(strings.TrimPrefix(name, "templates/page_"), ".html")] = page
	}
	return nil
}

func (s *server) routes() *http.ServeMux {
	mux := http.NewServeMux()
	static, err := fs.Sub(files, "static")
	if err == nil { // the folder is embedded: it cannot be missing
		mux.Handle("GET /static/", http.StripPrefix("/static/", http.FileServerFS(static)))
	}
	mux.HandleFunc("GET /{$}", s.now)
	mux.HandleFunc("GET /stuck", s.stuck)
	mux.HandleFunc("GET /aggregates", s.find)
	mux.HandleFunc("GET /aggregates/{type}/{id}", s.aggregate)
	mux.HandleFunc("GET /audit", s.audit)
	mux.HandleFunc("GET /actions", s.act) // counts
	mux.HandleFunc("POST /actions", s.act)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, problem.Errorf(problem.NotFound, "there is no such page: the console needs a host of its own, and has no path prefix"))
	})
	return mux
}

// policy is the content security policy of every response.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// protect adds the headers of every response.
func protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "same-origin")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cache-Control", "no-store")
		r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
		next.ServeHTTP(w, r)
	})
}

// stopTimeout is how long requests in flight may take when the console stops.
const stopTimeout = 500 * time.Millisecond

// serve serves until ctx is done. It waits stopTimeout for requests, interrupts the others, waits
// for the end of their actions, and returns nil. It closes the listener.
func (s *server) serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	defer s.acting.Wait()
	server := &http.Server{
		Handler: protect(handler), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve the console: %w", err)
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := server.Shutdown(last); err != nil {
		_ = server.Close() // cuts off what did not end in time
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the console: %w", err)
	}
	return nil
}

// page is the input of every template. Data is for its content.
type page struct {
	Service, Title, Page string
	Query                string // in the search field
	Role, RoleHelp       string
	Acts                 bool // the user may change something
	Sample               sample
	Data                 any
}

// queryTimeout is how long a page may wait for its own queries. See also sampleTimeout.
const queryTimeout = 8 * time.Second

// show writes a page.
func (s *server) show(w http.ResponseWriter, r *http.Request, status int, name, current, title string, data any) {
	p := page{Page: current, Title: title, Data: data, Service: s.service, Query: r.URL.Query().Get("q"), Sample: s.sample(r.Context())}
	mine := p.Sample.Rights
	p.Role, p.RoleHelp, p.Acts = mine.text(), mine.help(), mine.Commands || mine.Queries
	var out bytes.Buffer
	if err := s.templates[name].ExecuteTemplate(&out, "layout", p); err != nil {
		s.log.ErrorContext(r.Context(), "console: page not rendered", "page", name, "err", err)
		http.Error(w, "the page cannot be shown: the log of the console says why", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = out.WriteTo(w) // the only error is that the client has left
}

// fail writes a page that says what went wrong.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	status := statusOf(err)
	if status == http.StatusInternalServerError {
		s.log.ErrorContext(r.Context(), "console: request failed", "path", r.URL.Path, "err", err)
	}
	s.show(w, r, status, "error", "", http.StatusText(status), reasonOf(err))
}

func statusOf(err error) int {
	known, ok := errors.AsType[*problem.Error](err)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return http.StatusServiceUnavailable
	case !ok:
		return http.StatusInternalServerError
	}
	return runtime.HTTPStatusFromCode(codes.Code(known.Kind)) //nolint:gosec // a Kind is a code
}

// reasonOf returns an error as one sentence for a person.
func reasonOf(err error) string {
	if known, ok := errors.AsType[*problem.Error](err); ok {
		return known.Error()
	}
	return err.Error()
}
