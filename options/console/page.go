package console

import (
	"bytes"
	"context"
	"errors"
	"html/template"
	"net/http"
	"time"

	"example.com/videocatalog/internal/problem"
)

// page is what every template gets. Data is what its content shows.
type page struct {
	Service, Title, Page string
	Query                string // in the search field
	After                string // id of the sample that the parts are from
	Role, RoleHelp       string
	Acts                 bool // the user may change something
	Refresh              int  // seconds until the browser loads the page again; 0: it does not
	Data                 any

	parts map[string]template.HTML
}

// Part returns a part that lives, as it is now.
func (p page) Part(name string) template.HTML { return p.parts[name] }

// queryTimeout is how long a page may wait for the database.
const queryTimeout = 8 * time.Second

// show writes a page.
func (s *Server) show(w http.ResponseWriter, r *http.Request, status int, name, current, title string, data any) {
	s.write(w, r, status, name, page{Page: current, Title: title, Data: data})
}

func (s *Server) write(w http.ResponseWriter, r *http.Request, status int, name string, p page) {
	p.Service, p.Query = s.cfg.Service, r.URL.Query().Get("q")
	p.parts, p.After, _ = s.hub.news("")
	mine := s.privileges(r.Context())
	p.Role, p.RoleHelp, p.Acts = mine.text(), mine.help(), mine.commands.Writes || mine.queries.Writes
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
func (s *Server) fail(w http.ResponseWriter, r *http.Request, status int, err error) {
	if status == 0 {
		status = statusOf(err)
	}
	if status == http.StatusInternalServerError {
		s.log.ErrorContext(r.Context(), "console: request failed", "path", r.URL.Path, "err", err)
	}
	s.show(w, r, status, "error", "", http.StatusText(status), reasonOf(err))
}

func statusOf(err error) int {
	known, ok := errors.AsType[*problem.Error](err)
	if !ok {
		return http.StatusInternalServerError
	}
	switch known.Kind {
	case problem.Invalid:
		return http.StatusBadRequest
	case problem.NotFound:
		return http.StatusNotFound
	case problem.Precondition, problem.Conflict, problem.Exists:
		return http.StatusConflict
	case problem.Unavailable:
		return http.StatusServiceUnavailable
	default:
		return http.StatusInternalServerError
	}
}

// rights are the privileges on both sides.
type rights struct {
	commands, queries Privileges
	err               error // why they are not known; then there are none
}

// privileges reads the privileges from the database, because they may change while the console runs.
func (s *Server) privileges(ctx context.Context) rights {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	commands, err := s.cfg.Commands.CommandPrivileges(ctx)
	if err != nil {
		return rights{err: err}
	}
	queries, err := s.cfg.Queries.QueryPrivileges(ctx)
	if err != nil {
		return rights{commands: commands, err: err}
	}
	return rights{commands: commands, queries: queries}
}

func (r rights) text() string {
	users := r.commands.User
	if r.queries.User != users {
		users += " and " + r.queries.User
	}
	switch {
	case r.err != nil && users == "":
		return "no database"
	case r.commands.Writes || r.queries.Writes:
		return users + " may act"
	}
	return users + " only reads"
}

func (r rights) help() string {
	switch {
	case r.err != nil:
		return reasonOf(r.err)
	case r.commands.Writes && r.queries.Writes:
		return "The database user may act on both sides."
	case r.commands.Writes:
		return "The database user may act on the command side only."
	case r.queries.Writes:
		return "The database user may act on the query side only."
	}
	return "The database user may only read. To act, start the console with a user that has the roles of the service."
}

func (s *Server) overview(w http.ResponseWriter, r *http.Request) {
	s.hub.look(r.Context())
	s.show(w, r, http.StatusOK, "overview", "overview", "Overview", nil)
}

// settings shows what this deployment is.
func (s *Server) settings(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	type data struct {
		Facts, Settings []Setting
		Err             string
	}
	d := data{Settings: s.cfg.Settings}
	var err error
	if d.Facts, err = s.cfg.Facts(ctx); err != nil {
		d.Err = reasonOf(err)
	}
	if last := s.hub.current(); !last.Time.IsZero() {
		d.Facts = append(d.Facts, Setting{Name: "last sample", Value: "took " + duration(last.Took), Help: "of both sides, for the overview"})
	}
	s.show(w, r, http.StatusOK, "settings", "settings", "Settings", d)
}
