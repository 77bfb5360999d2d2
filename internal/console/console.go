// Package console shows the service in a browser, and lets a person mend it.
//
// One page has the whole way of an event, drawn once and alive: commands, lanes, topic,
// projector, view. Others have what is blocked or in quarantine, one aggregate with its
// events, the settings in force, and who did what.
//
// The package knows no SQL and no aggregate type. Small interfaces give it what it shows:
// see [Config]. The console is a process of its own, with its own database user. What that
// user may not read is not shown, and what it may not write cannot be done.
//
// # What it promises
//
// Lists and forms work without script, and the keyboard reaches everything. Every text
// comes from a template that escapes it, and the content security policy allows no inline
// script and no inline style. A request that changes something must come from a page of the
// console. The Host of every request must be known, so that a foreign page cannot reach the
// console under a name of its own (DNS rebinding).
//
// Nothing is measured while nobody looks. The charts of the last 15 minutes are in memory,
// and are gone with the process.
//
// # What it does not promise
//
// It has no users and no passwords: who reaches its port may do what its database user may
// do. So it listens on the loopback interface unless it is told otherwise.
package console

import (
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
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/envelope"
)

//go:embed templates static
var files embed.FS

// Config has what a console shows.
type Config struct {
	Service, Version string
	Commands         Commands
	Queries          Queries
	Outbox           admin.Outbox
	Quarantine       admin.Quarantine
	Apply            admin.Apply // applies a message of the quarantine
	// Decode returns a message as this build reads it, for people.
	Decode    func(Message) (string, error)
	Types     []Type   // aggregate types, in the order in which they are shown
	Consumers []string // names in the inbox of each side, and in the quarantine
	// Settings are the settings in force. They must not have secrets.
	Settings []Setting
	// Facts returns what else a person wants to know about this deployment.
	Facts func(context.Context) ([]Setting, error)
	// User is who acts, for the audit.
	User string
	// Metrics is the URL of the metrics of a process of the service, in the text format of
	// Prometheus. Empty: what only the process knows is not shown.
	Metrics string
	// TraceURL is where a trace is shown, with TraceID instead of its id. Empty: nowhere.
	TraceURL string
	// Guard refuses requests that no page of the console makes, and those to unknown hosts.
	Guard func(http.Handler) http.Handler
	Log   *slog.Logger
}

// Type is an aggregate type.
type Type struct {
	Name string
	// View is what the projection of the type is called, such as "overview".
	View string
	// Source reads the type. Nil: there are no titles, and nothing to search.
	Source Source
	// Compare is the same as that of Source, for a type without. Nil: the console shows its
	// events only.
	Compare func(ctx context.Context, id string) (Comparison, error)
}

// TraceID stands for the id of a trace in Config.TraceURL.
const TraceID = "{trace_id}"

// comparer returns what compares both sides of the type; nil: nothing does.
func (t Type) comparer() func(context.Context, string) (Comparison, error) {
	if t.Source != nil {
		return t.Source.Compare
	}
	return t.Compare
}

func isID(text string) bool { return uuid.Validate(text) == nil }

// find returns aggregates by id or by a part of their title. Without a source it knows ids
// only.
func (t Type) find(ctx context.Context, text string) ([]Found, error) {
	if t.Source != nil {
		return t.Source.Find(ctx, text)
	}
	if !isID(text) || t.Compare == nil {
		return nil, nil
	}
	c, err := t.Compare(ctx, text)
	if err != nil || c.Source == nil && c.Projection == nil {
		return nil, err
	}
	return []Found{{ID: text, Version: max(c.SourceVersion, c.ProjectionVersion)}}, nil
}

// Server serves a console. Create it with New.
type Server struct {
	cfg       Config
	log       *slog.Logger
	templates map[string]*template.Template
	hub       *hub
	jobs      jobs
	handler   http.Handler
}

// New makes a console. Run must be called once.
func New(cfg Config) (*Server, error) {
	s := &Server{cfg: cfg, log: cfg.Log, templates: make(map[string]*template.Template)}
	if s.log == nil {
		s.log = slog.Default()
	}
	layout, err := template.New("layout.html").Funcs(functions).ParseFS(files, "templates/layout.html", "templates/parts.html")
	if err != nil {
		return nil, fmt.Errorf("parse templates: %w", err)
	}
	pages, err := fs.Glob(files, "templates/page_*.html")
	if err != nil {
		return nil, err
	}
	for _, name := range pages {
		page, err := template.Must(layout.Clone()).ParseFS(files, name)
		if err != nil {
			return nil, fmt.Errorf("parse templates: %w", err)
		}
		short := strings.TrimSuffix(strings.TrimPrefix(name, "templates/page_"), ".html")
		s.templates[short] = page
	}
	s.hub = newHub(cfg, layout, s.log)
	s.handler = s.protect(s.routes())
	return s, nil
}

func (s *Server) routes() *http.ServeMux {
	mux := http.NewServeMux()
	static, err := fs.Sub(files, "static")
	if err == nil { // the folder is embedded: it cannot be missing
		mux.Handle("GET /static/", http.StripPrefix("/static/", http.FileServerFS(static)))
	}
	mux.HandleFunc("GET /{$}", s.overview)
	mux.HandleFunc("GET /live", s.live)
	mux.HandleFunc("GET /blocked", s.blocked)
	mux.HandleFunc("GET /quarantine", s.quarantine)
	mux.HandleFunc("GET /quarantine/{id}", s.quarantined)
	mux.HandleFunc("GET /aggregates", s.find)
	mux.HandleFunc("GET /aggregates/{type}/{id}", s.aggregate)
	mux.HandleFunc("GET /settings", s.settings)
	mux.HandleFunc("GET /audit", s.audit)
	mux.HandleFunc("POST /actions", s.act)
	mux.HandleFunc("GET /actions/{id}", s.showJob)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, http.StatusNotFound, errors.New("there is no such page"))
	})
	return mux
}

// policy is the content security policy of every response.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// protect adds the headers of every response, and the guard.
func (s *Server) protect(next http.Handler) http.Handler {
	guarded := s.cfg.Guard(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "same-origin")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cache-Control", "no-store")
		r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
		guarded.ServeHTTP(w, r)
	})
}

// stopTimeout is how long requests in flight may take when the console stops. Streams end at
// once.
const stopTimeout = 500 * time.Millisecond

// Run serves until ctx is done, then ends all streams and actions, and returns nil. It
// closes the listener.
func (s *Server) Run(ctx context.Context, listener net.Listener) error {
	sampling, end := context.WithCancel(ctx)
	defer s.jobs.wait()
	defer s.hub.wait()
	defer end()
	s.hub.start(sampling)
	s.jobs.start(sampling)
	server := &http.Server{
		Handler: s.handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
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

// Setting is a name with its value.
type Setting struct{ Name, Value, Help string }

// Privileges are what the database user of the console may do on a side.
type Privileges struct {
	User          string
	Writes        bool
	ReadsPayloads bool
}

// Commands reads the command side.
type Commands interface {
	// SampleCommands measures the command side. It counts the events since a time, unless
	// that is zero.
	SampleCommands(ctx context.Context, since time.Time) (CommandSample, error)
	// Events returns the newest events of an aggregate that happened from a time on.
	Events(ctx context.Context, aggregate envelope.Aggregate, from, until time.Time) (History, error)
	// Reacted adds when the command side reacted to events, by id.
	Reacted(ctx context.Context, consumers []string, events []Event) error
	// CommandPrivileges returns what the user may do.
	CommandPrivileges(ctx context.Context) (Privileges, error)
}

// Queries reads the query side.
type Queries interface {
	// SampleQueries measures the quarantine of some consumers.
	SampleQueries(ctx context.Context, consumers []string) (QuerySample, error)
	// Applied adds when the query side applied events, by id.
	Applied(ctx context.Context, consumers []string, events []Event) error
	// Quarantined returns a message, with its payload if the user may read it.
	Quarantined(ctx context.Context, id int64) (Message, error)
	// QueryPrivileges returns what the user may do.
	QueryPrivileges(ctx context.Context) (Privileges, error)
}

// Source reads an aggregate type on both sides.
type Source interface {
	// SampleView measures the projection. It describes the entries written after a position.
	SampleView(ctx context.Context, after uint64) (ViewSample, error)
	// Find returns aggregates by id or by a part of their title.
	Find(ctx context.Context, text string) ([]Found, error)
	// Titles returns the titles of those aggregates that have one.
	Titles(ctx context.Context, ids []string) (map[string]string, error)
	// Compare returns the state of an aggregate on both sides. A side without it is nil.
	Compare(ctx context.Context, id string) (Comparison, error)
}
