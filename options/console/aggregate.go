package console

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/envelope"
)

// findPage is the result of a search.
type findPage struct {
	Text  string
	Found []title
	Cut   string // what the search may have missed; empty: nothing
}

// find finds aggregates by their id, or by a part of their title. It redirects to a single result.
func (s *server) find(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	p := findPage{Text: strings.TrimSpace(r.URL.Query().Get("q"))}
	var err error
	switch {
	case uuid.Validate(p.Text) == nil:
		p.Found, err = s.titles(ctx, titlesByID, []string{p.Text})
	case p.Text != "":
		p.Found, p.Cut, err = s.findTitles(ctx, p.Text)
	}
	switch {
	case err != nil:
		s.fail(w, r, err)
	case len(p.Found) == 1 && (p.Cut == "" || strings.EqualFold(p.Found[0].Title, p.Text)):
		http.Redirect(w, r, "/aggregates/"+url.PathEscape(p.Found[0].Type)+"/"+p.Found[0].ID, http.StatusSeeOther)
	default:
		s.show(w, r, http.StatusOK, "find", "aggregates", "Aggregates", p)
	}
}

// aggregatePage is one aggregate with its history.
type aggregatePage struct {
	envelope.Aggregate
	history
	Acts bool

	traceURL string
}

// TraceURL returns where a trace is shown; empty: nowhere.
func (p aggregatePage) TraceURL(id string) string { return strings.ReplaceAll(p.traceURL, traceID, id) }

func (s *server) aggregate(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	p := aggregatePage{Aggregate: envelope.Aggregate{Type: r.PathValue("type"), ID: r.PathValue("id")}, traceURL: s.traceURL}
	var err error
	if p.history, err = s.history(ctx, p.Aggregate); err != nil {
		s.fail(w, r, err)
		return
	}
	p.Acts = s.sample(ctx).Rights.Commands
	s.show(w, r, http.StatusOK, "aggregate", "aggregates", cmp.Or(p.Title.Title, p.Type+" "+p.ID), p)
}
