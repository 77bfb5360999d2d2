package console

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"example.com/videocatalog/internal/admin"
)

const (
	auditRead = 1000 // entries that are searched
	auditRows = 100  // entries that are shown
)

// auditPage has what operators did, the newest first.
type auditPage struct {
	Text    string // that each entry has
	Entries []auditEntry
	More    bool // there are more than are shown
}

type auditEntry struct {
	admin.Entry
	Filter, Before, After string
}

func (s *server) audit(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	commands, err := s.outbox.ListAudit(ctx, 0, auditRead)
	queries, queryErr := s.inbox.ListAudit(ctx, 0, auditRead)
	if err := errors.Join(err, queryErr); err != nil {
		s.fail(w, r, err)
		return
	}
	entries := append(commands, queries...)
	slices.SortStableFunc(entries, func(a, b admin.Entry) int { return cmp.Or(b.CreateTime.Compare(a.CreateTime), cmp.Compare(b.ID, a.ID)) })
	p := auditPage{Text: strings.TrimSpace(r.URL.Query().Get("text"))}
	entries = slices.DeleteFunc(entries, func(e admin.Entry) bool { return !mentions(e, p.Text) })
	p.More = len(entries) > auditRows
	for _, e := range entries[:min(len(entries), auditRows)] {
		p.Entries = append(p.Entries, auditEntry{Entry: e, Filter: string(e.Filter), Before: indented(e.Before), After: indented(e.After)})
	}
	s.show(w, r, http.StatusOK, "audit", "audit", "Audit", p)
}

// mentions reports whether an entry has a text in it, in any case.
func mentions(e admin.Entry, text string) bool {
	all := strings.Join([]string{e.Action, e.Reason, e.Actor.Name, e.DatabaseUser, string(e.Filter), e.ActionID.String(), string(e.Before), string(e.After)}, "\n")
	return text == "" || strings.Contains(strings.ToLower(all), strings.ToLower(text))
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
