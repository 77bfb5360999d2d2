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

	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/options/console/internal/sqlcgen"
)

const (
	auditRead = 1000 // entries of each side that are searched
	auditRows = 100  // entries that are shown
)

// entry is a row of the table audit of one side.
type entry = sqlcgen.ListCommandAuditRow

// listAudit returns the entries that contain a text, in upper or lower case, the newest first. It
// searches the last auditRead entries of each side.
func (s *sides) listAudit(ctx context.Context, text string) ([]entry, error) {
	entries, err := sqlcgen.New(s.commands).ListCommandAudit(ctx, auditRead)
	queries, queryErr := sqlcgen.New(s.queries).ListQueryAudit(ctx, auditRead)
	if err := errors.Join(err, queryErr); err != nil {
		return nil, pg.Wrap(err, "list audit")
	}
	for _, row := range queries {
		entries = append(entries, entry(row))
	}
	for i := range entries {
		entries[i].CreateTime = entries[i].CreateTime.UTC()
	}
	slices.SortStableFunc(entries, func(a, b entry) int { return cmp.Or(b.CreateTime.Compare(a.CreateTime), cmp.Compare(b.ID, a.ID)) })
	return slices.DeleteFunc(entries, func(e entry) bool {
		all := strings.Join([]string{e.Action, e.Reason, e.Actor, e.DatabaseUser, string(e.Filter), e.ActionID.String(), string(e.Before), string(e.After)}, "\n")
		return !strings.Contains(strings.ToLower(all), strings.ToLower(text))
	}), nil
}

// auditPage has what operators did, the newest first.
type auditPage struct {
	Text    string // a text that each entry contains
	Entries []auditEntry
	More    bool // there are more than are shown
}

type auditEntry struct {
	entry
	Filter, Before, After string
}

func (s *server) audit(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	p := auditPage{Text: strings.TrimSpace(r.URL.Query().Get("text"))}
	entries, err := s.listAudit(ctx, p.Text)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	p.More = len(entries) > auditRows
	for _, e := range entries[:min(len(entries), auditRows)] {
		p.Entries = append(p.Entries, auditEntry{entry: e, Filter: string(e.Filter), Before: indented(e.Before), After: indented(e.After)})
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
