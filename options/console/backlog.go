package console

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/problem"
)

const (
	groupRows = 100 // causes on a page
	pageRows  = 100 // items on a page; an action by filter has no such limit
	auditRows = 100
)

// backlogPage has what waits for a person: groups by cause, and the items that match a filter.
type backlogPage struct {
	Filter   filter
	Grouped  bool // Groups were read: on the first page of all
	Groups   []admin.Group
	Blocked  []admin.Blocked
	Messages []admin.Quarantined
	Next     string // link to the next items; empty: there are none
	Err      string
	Acts     bool // the user may act on this side
}

// filter is a filter as a form has it.
type filter struct{ Type, ID, Cause, Age string }

// readFilter reads a filter from a form or a query. Its error names the field.
func readFilter(values url.Values) (filter, admin.Filter, error) {
	f := filter{Type: values.Get("type"), ID: values.Get("id"), Cause: values.Get("cause"), Age: values.Get("age")}
	parsed := admin.Filter{Type: f.Type, ID: f.ID, Cause: f.Cause}
	if f.Age != "" {
		var err error
		if parsed.Age, err = time.ParseDuration(f.Age); err != nil || parsed.Age < 0 {
			return f, parsed, problem.InvalidField("age", "must be a duration, such as 10m or 24h")
		}
	}
	return f, parsed, nil
}

// Empty reports whether the filter matches everything.
func (f filter) Empty() bool { return f == filter{} }

// query returns the query of a page with this filter.
func (f filter) query() url.Values {
	values := make(url.Values)
	for name, value := range map[string]string{"type": f.Type, "id": f.ID, "cause": f.Cause, "age": f.Age} {
		if value != "" {
			values.Set(name, value)
		}
	}
	return values
}

// blocked shows the aggregates with an event that the broker refused.
func (s *Server) blocked(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	var p backlogPage
	var parsed admin.Filter
	var err error
	if p.Filter, parsed, err = readFilter(r.URL.Query()); err != nil {
		s.fail(w, r, 0, err)
		return
	}
	p.Acts = s.privileges(ctx).commands.Writes
	after := envelope.Aggregate{Type: r.URL.Query().Get("after_type"), ID: r.URL.Query().Get("after_id")}
	if p.Grouped = p.Filter.Empty() && after.ID == ""; p.Grouped {
		p.Groups, err = s.cfg.Outbox.GroupBlocked(ctx, groupRows)
	}
	if err == nil {
		p.Blocked, err = s.cfg.Outbox.ListBlocked(ctx, parsed, after, pageRows)
	}
	if err != nil {
		p.Err = reasonOf(err)
	}
	if len(p.Blocked) == pageRows {
		query, last := p.Filter.query(), p.Blocked[pageRows-1]
		query.Set("after_type", last.Type)
		query.Set("after_id", last.ID)
		p.Next = "/blocked?" + query.Encode()
	}
	s.show(w, r, http.StatusOK, "blocked", "blocked", "Blocked and parked", p)
}

// quarantine shows the messages that nobody could apply.
func (s *Server) quarantine(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	var p backlogPage
	var parsed admin.Filter
	var err error
	if p.Filter, parsed, err = readFilter(r.URL.Query()); err != nil {
		s.fail(w, r, 0, err)
		return
	}
	p.Acts = s.privileges(ctx).queries.Writes
	after, _ := strconv.ParseInt(r.URL.Query().Get("after"), 10, 64) // 0: from the first one
	if p.Grouped = p.Filter.Empty() && after == 0; p.Grouped {
		p.Groups, err = s.cfg.Quarantine.GroupQuarantine(ctx, groupRows)
	}
	if err == nil {
		p.Messages, err = s.cfg.Quarantine.ListQuarantine(ctx, parsed, after, pageRows)
	}
	if err != nil {
		p.Err = reasonOf(err)
	}
	if len(p.Messages) == pageRows {
		query := p.Filter.query()
		query.Set("after", strconv.FormatInt(p.Messages[pageRows-1].ID, 10))
		p.Next = "/quarantine?" + query.Encode()
	}
	s.show(w, r, http.StatusOK, "quarantine", "quarantine", "Quarantine", p)
}

// messagePage is one message in quarantine.
type messagePage struct {
	Message
	Names     []string // of the attributes
	Hex       string
	Cut       bool   // Hex has only the first bytes
	Decoded   string // as this build reads it
	DecodeErr string
	Fields    string // of the payload, as protobuf without a schema
	Acts      bool
}

// hexBytes is how many bytes of a payload are shown.
const hexBytes = 4096

func (s *Server) quarantined(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		s.fail(w, r, 0, problem.InvalidField("id", "must be a whole number"))
		return
	}
	p := messagePage{Acts: s.privileges(ctx).queries.Writes}
	if p.Message, err = s.cfg.Queries.Quarantined(ctx, id); err != nil {
		s.fail(w, r, 0, err)
		return
	}
	for name := range p.Attributes {
		p.Names = append(p.Names, name)
	}
	slices.Sort(p.Names)
	if !p.Hidden && p.SHA256 == "" {
		p.Size = int64(len(p.Payload))
		p.Hex, p.Cut = hexDump(p.Payload)
		p.Fields = rawFields(p.Payload)
		if p.Decoded, err = s.cfg.Decode(p.Message); err != nil {
			p.DecodeErr = reasonOf(err)
		}
	}
	s.show(w, r, http.StatusOK, "message", "quarantine", "Message "+r.PathValue("id"), p)
}

// auditPage has what operators did, the newest first.
type auditPage struct {
	Entries []auditEntry
	Next    string
	Err     string
}

type auditEntry struct {
	admin.Entry
	Side                  string
	Filter, Before, After string
}

func (s *Server) audit(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	var p auditPage
	before := map[string]int64{"commands": math.MaxInt64, "queries": math.MaxInt64}
	sides := []struct {
		name string
		list func(context.Context, int64, int) ([]admin.Entry, error)
	}{{"commands", s.cfg.Outbox.ListAudit}, {"queries", s.cfg.Quarantine.ListAudit}}
	for _, side := range sides {
		if id, err := strconv.ParseInt(r.URL.Query().Get(side.name), 10, 64); err == nil {
			before[side.name] = id
		}
		entries, err := side.list(ctx, before[side.name], auditRows+1)
		if err != nil {
			p.Err = reasonOf(err)
		}
		for _, e := range entries {
			p.Entries = append(p.Entries, auditEntry{Entry: e, Side: side.name, Filter: string(e.Filter), Before: indented(e.Before), After: indented(e.After)})
		}
	}
	slices.SortStableFunc(p.Entries, func(a, b auditEntry) int { return cmp.Compare(b.CreateTime.UnixNano(), a.CreateTime.UnixNano()) })
	if len(p.Entries) > auditRows {
		p.Entries = p.Entries[:auditRows]
		for _, e := range p.Entries {
			before[e.Side] = e.ID
		}
		query := url.Values{"commands": {strconv.FormatInt(before["commands"], 10)}, "queries": {strconv.FormatInt(before["queries"], 10)}}
		p.Next = "/audit?" + query.Encode()
	}
	s.show(w, r, http.StatusOK, "audit", "audit", "Audit", p)
}

// indented returns JSON for people, shortened.
func indented(text []byte) string {
	const most = 20_000
	var out bytes.Buffer
	if err := json.Indent(&out, text, "", "  "); err != nil {
		return string(text)
	}
	if out.Len() > most {
		return string(bytes.ToValidUTF8(out.Bytes()[:most], nil)) + "\n… the table audit has the rest"
	}
	return out.String()
}
