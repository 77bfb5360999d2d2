package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/envelope"
)

// found is the result of a search.
type found struct {
	Text   string
	Groups []foundGroup
	Types  []Type
	Acts   bool
}

type foundGroup struct {
	Type   string
	Titled bool // it has titles
	Found  []Found
	Err    string
}

// find searches all types. One result is shown at once.
func (s *Server) find(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	mine := s.privileges(ctx)
	result := found{
		Text: strings.TrimSpace(r.URL.Query().Get("q")), Types: s.cfg.Types, Acts: mine.commands.Writes,
	}
	n := 0
	for _, t := range s.cfg.Types {
		if result.Text == "" {
			break
		}
		group := foundGroup{Type: t.Name, Titled: t.Source != nil}
		var err error
		if group.Found, err = t.find(ctx, result.Text); err != nil {
			group.Err = reasonOf(err)
		}
		n += len(group.Found)
		result.Groups = append(result.Groups, group)
	}
	if n == 1 {
		for _, group := range result.Groups {
			for _, f := range group.Found {
				http.Redirect(w, r, "/aggregates/"+url.PathEscape(group.Type)+"/"+url.PathEscape(f.ID), http.StatusSeeOther)
				return
			}
		}
	}
	s.show(w, r, http.StatusOK, "find", "aggregates", "Aggregates", result)
}

// aggregatePage is one aggregate with its way.
type aggregatePage struct {
	envelope.Aggregate
	Title string
	View  string
	History
	EventsErr  string
	Comparison Comparison
	CompareErr string
	Known      bool // both sides were compared
	Fields     []field
	Acts       bool
	Repairable bool // the entry can be repaired
	Repairs    bool // the user may repair it

	traceURL string
}

// TraceURL returns where a trace is shown; empty: nowhere.
func (p aggregatePage) TraceURL(id string) string { return strings.ReplaceAll(p.traceURL, TraceID, id) }

// field is a field of an aggregate on both sides.
type field struct {
	Name, Source, Projection string
	Differs                  bool
}

func (s *Server) aggregate(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	t := s.cfg.typeNamed(r.PathValue("type"))
	compareSides := t.comparer()
	p := aggregatePage{
		Aggregate: envelope.Aggregate{Type: t.Name, ID: r.PathValue("id")}, View: t.View, Known: compareSides != nil, traceURL: s.cfg.TraceURL,
	}
	from, until := time.Unix(0, 0), time.Now().Add(24*time.Hour)
	if p.Known {
		var err error
		if p.Comparison, err = compareSides(ctx, p.ID); err != nil {
			p.CompareErr = reasonOf(err)
		}
		p.Fields = compare(p.Comparison)
		p.Title, _ = p.Comparison.Source["title"].(string)
		// The clocks of two processes may differ a little.
		const slack = time.Minute
		if !p.Comparison.Created.IsZero() {
			from, until = p.Comparison.Created.Add(-slack), p.Comparison.Updated.Add(slack)
		}
	}
	var err error
	if p.History, err = s.cfg.Commands.Events(ctx, p.Aggregate, from, until); err != nil {
		p.EventsErr = reasonOf(err)
	} else if err := errors.Join(s.cfg.Queries.Applied(ctx, s.cfg.Consumers, p.Events), s.cfg.Commands.Reacted(ctx, s.cfg.Consumers, p.Events)); err != nil {
		p.EventsErr = reasonOf(err)
	}
	mine := s.privileges(ctx)
	p.Acts = mine.commands.Writes
	title := p.Title
	if title == "" {
		title = p.Aggregate.Type + " " + p.ID
	}
	s.show(w, r, http.StatusOK, "aggregate", "aggregates", title, p)
}

// CreateRequest is the id of the request that made it; empty: not known.
func (p aggregatePage) CreateRequest() string {
	if p.RequestID == uuid.Nil {
		return ""
	}
	return p.RequestID.String()
}

// compare returns the fields of both sides, those that differ first.
func compare(c Comparison) []field {
	names := make(map[string]bool)
	for name := range c.Source {
		names[name] = true
	}
	for name := range c.Projection {
		names[name] = true
	}
	var fields []field
	for _, name := range slices.Sorted(maps.Keys(names)) {
		f := field{Name: name, Source: text(c.Source, name), Projection: text(c.Projection, name)}
		f.Differs = f.Source != f.Projection && c.Alone == ""
		if c.Source == nil && c.Alone != "" {
			f.Source = f.Projection // the only one
		}
		fields = append(fields, f)
	}
	slices.SortStableFunc(fields, func(a, b field) int {
		switch {
		case a.Differs == b.Differs:
			return 0
		case a.Differs:
			return -1
		}
		return 1
	})
	return fields
}

// text returns a value as a person reads it.
func text(of map[string]any, name string) string {
	value, ok := of[name]
	if !ok {
		return "–"
	}
	switch value := value.(type) {
	case string:
		return value
	case time.Time:
		return value.UTC().Format(time.RFC3339Nano)
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return string(encoded)
}

// Differ returns how many fields differ.
func (p aggregatePage) Differ() (n int) {
	for _, f := range p.Fields {
		if f.Differs {
			n++
		}
	}
	return n
}

// Behind returns how many versions the projection is behind.
func (p aggregatePage) Behind() int64 {
	return p.Comparison.SourceVersion - p.Comparison.ProjectionVersion
}
