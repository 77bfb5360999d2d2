package main

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/store"
)

// audit returns what both audits have of an action, the oldest first.
func (s *stack) audit(t *testing.T, action string) (entries []admin.Entry) {
	t.Helper()
	for _, side := range []admin.Auditor{store.NewOutbox(s.pool), store.NewInbox(s.pool)} {
		all, err := side.ListAudit(t.Context(), 0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, all...)
	}
	entries = slices.DeleteFunc(entries, func(e admin.Entry) bool { return e.Action != action })
	slices.SortStableFunc(entries, func(a, b admin.Entry) int { return a.CreateTime.Compare(b.CreateTime) })
	return entries
}

// checkAudit checks who did what and why, and the items before and after.
func checkAudit(t *testing.T, e admin.Entry, items int64, filter, reason, before, after string) {
	t.Helper()
	same := func(field string, got json.RawMessage, want string) {
		t.Helper()
		var a, b any
		if json.Unmarshal(got, &a) != nil || json.Unmarshal([]byte(want), &b) != nil || !cmp.Equal(a, b) {
			t.Errorf("audit of %s: %s = %s, want %s", e.Action, field, got, want)
		}
	}
	same("filter", e.Filter, filter)
	same("before", e.Before, before)
	same("after", e.After, after)
	if e.Items != items || e.Reason != reason || e.Name != operator(t) || e.Via != "command" || e.DatabaseUser == "" {
		t.Errorf("audit has %+v, want %d items and the reason %q, by command", e, items, reason)
	}
}

// replace makes the databases of both sides unknown.
func (s *stack) replace(t *testing.T) {
	t.Helper()
	for _, schema := range []string{"video_catalog", "video_catalog_read"} {
		if _, err := s.pool.Exec(t.Context(), "UPDATE "+schema+".known_database SET identity = 'before'"); err != nil {
			t.Fatal(err)
		}
	}
}

// unknown counts the sides whose database is not known.
func (s *stack) unknown(t *testing.T) int {
	t.Helper()
	return s.count(t, `SELECT (SELECT count(*) FROM video_catalog.known_database WHERE identity <> video_catalog.database_identity())
		+ (SELECT count(*) FROM video_catalog_read.known_database WHERE identity <> video_catalog_read.database_identity())`)
}

// A person who has looked at the data records the present databases of both sides, and says
// why. The audit has the databases of before.
func TestAcceptDatabases(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.replace(t)
	out, err := s.command(t, "databases", "accept", "--dry-run")
	if err != nil || strings.Count(out, "is not known, but before; nothing was changed\n") != 2 {
		t.Errorf("dry run = %q, %v, want both databases and that nothing was changed", out, err)
	}
	for _, args := range [][]string{{}, {"--reason", " "}, {"--reason", "x", "now"}, {"--all", "--reason", "x"}} {
		if _, err := s.command(t, append([]string{"databases", "accept"}, args...)...); exitOf(err) != app.ExitUsage {
			t.Errorf("databases accept %q = %v, want exit code %d", args, err, app.ExitUsage)
		}
	}
	if n, rows := s.unknown(t), s.audited(t); n != 2 || rows != 0 {
		t.Fatalf("%d databases are not known, with %d entries in the audit, want 2 and none", n, rows)
	}
	if out, err := s.command(t, "databases", "accept", "--reason", "compared"); err != nil || s.unknown(t) != 0 || strings.Count(out, "is known now, before it was before; action ") != 2 {
		t.Errorf("databases accept = %q, %v, and %d databases are not known, want 0", out, err, s.unknown(t))
	}
	if out, err := s.command(t, "databases", "accept", "--reason", "again"); err != nil || strings.Count(out, "is known already; nothing was changed\n") != 2 {
		t.Errorf("databases accept again = %q, %v, want that nothing was changed", out, err)
	}
	entries := s.audit(t, admin.ActionAccept)
	if len(entries) != 2 || entries[0].ActionID != entries[1].ActionID {
		t.Fatalf("audit = %+v, want one action with an entry per side", entries)
	}
	for i, schema := range []string{"video_catalog", "video_catalog_read"} {
		var identity string
		if err := s.pool.QueryRow(t.Context(), "SELECT "+schema+".database_identity()").Scan(&identity); err != nil {
			t.Fatal(err)
		}
		checkAudit(t, entries[i], 1, "{}", "compared", `[{"identity": "before"}]`, `[{"identity": "`+identity+`"}]`)
	}
}

// Several people who accept at once change each side once.
func TestAcceptDatabasesAtOnce(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.replace(t)
	var people sync.WaitGroup
	for range 3 {
		people.Go(func() {
			if out, err := s.command(t, "databases", "accept", "--reason", "compared"); err != nil {
				t.Errorf("databases accept = %q, %v", out, err)
			}
		})
	}
	people.Wait()
	if n, rows := s.unknown(t), s.audited(t); n != 0 || rows != 2 {
		t.Errorf("%d databases are not known, with %d entries in the audit, want 0 and one per side", n, rows)
	}
}
