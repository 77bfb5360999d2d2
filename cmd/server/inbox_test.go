package main

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/store"
)

// An operator who may only look sees what a consumer of either side has applied, by generation,
// and when the events of one aggregate were applied.
func TestOperatorSeesTheInbox(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	p := s.start(t)
	ids := s.create(t, p, 3)
	p.rename(t, "videos/"+ids[0], "again")
	s.settled(t, s.url)
	if _, err := p.stop(t); err != nil {
		t.Fatal(err)
	}
	look := []string{"DATABASE_URL=" + s.personURL(t)}
	list := func(args ...string) string {
		t.Helper()
		out, err := s.commandIn(t, look, append([]string{"inbox", "list"}, args...)...)
		if err != nil {
			t.Errorf("inbox list %q = %v", args, err)
		}
		return out
	}
	if out := list(); !regexp.MustCompile(`(?m)^query +catalog +0 +true +4 +20\S+Z +20\S+Z$`).MatchString(out) {
		t.Errorf("inbox list = %q, want 4 events of the query side, of the generation 0", out)
	}
	// As a reaction has it, which this service has none of.
	if _, err := s.pool.Exec(t.Context(), "INSERT INTO video_catalog.inbox (consumer, event_id) SELECT name, id FROM video_catalog.outbox, unnest('{reminders,reviews}'::text[]) name WHERE version = 1"); err != nil {
		t.Fatal(err)
	}
	for name, rows := range map[string]int{"reminders": 3, "reviews": 3, "catalog": 0} {
		if out := list(); len(regexp.MustCompile(`(?m)^command +`+name+` +0 +true +`+strconv.Itoa(rows)+` +20\S+Z +20\S+Z$`).FindAllString(out, -1)) != min(rows, 1) {
			t.Errorf("inbox list = %q, want %d events of %s on the command side", out, rows, name)
		}
	}
	if out := list("--filter", "consumer=reminders,id="+ids[0]); strings.Count(out, "\n") != 2 || !regexp.MustCompile(`(?m)^command +reminders +0 +true +\S{36} +20\S+Z$`).MatchString(out) {
		t.Errorf("inbox list of a reaction = %q, want one event of %s", out, ids[0])
	}
	if out := list("--filter", "consumer=another"); strings.Count(out, "\n") != 1 {
		t.Errorf("inbox list of another consumer = %q, want the header", out)
	}
	if _, err := s.command(t, "seek", names.TopicOf(event.AggregateVideo).Subscription("catalog"), "2026-01-01T00:00:00Z", "--reason", "test"); err != nil {
		t.Fatal(err)
	}
	var parts []store.InboxRows
	for line := range strings.Lines(list("--json", "--filter", "consumer=catalog")) {
		var rows store.InboxRows
		if err := json.Unmarshal([]byte(line), &rows); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		parts = append(parts, rows)
	}
	if len(parts) != 2 || parts[0].Rows != 4 || parts[0].Present || parts[0].Oldest.IsZero() || parts[1].Rows != 0 || !parts[1].Present || parts[1].Generation != 1 {
		t.Errorf("inbox list after a seek = %+v, want 4 rows that do not count, and a new generation", parts)
	}
	events := 0
	for line := range strings.Lines(list("--json", "--filter", "consumer=catalog,id="+ids[0])) {
		var e store.InboxEvent
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if e.Consumer != "catalog" || e.Present || e.Time.IsZero() || s.count(t, "SELECT count(*) FROM video_catalog.outbox WHERE id = $1 AND aggregate_id = $2", e.EventID, ids[0]) != 1 {
			t.Errorf("applied = %+v, want an event of %s, before the seek", e, ids[0])
		}
		events++
	}
	if events != 2 {
		t.Errorf("applied events = %d, want 2", events)
	}
	for _, test := range []struct {
		args []string
		exit int
		want string
	}{
		{[]string{"inbox"}, app.ExitUsage, "server help"},
		{[]string{"inbox", "prune"}, app.ExitUsage, "server help"},
		{[]string{"inbox", "list", "catalog"}, app.ExitUsage, "server help"},
		{[]string{"inbox", "list", "--all"}, app.ExitUsage, "server help"},
		{[]string{"inbox", "list", "--filter", "type=video"}, app.ExitUsage, `"type" must be one of consumer, id`},
		{[]string{"inbox", "list", "--filter", "id=" + uuid.NewString()}, app.ExitNothing, "no event of"},
	} {
		if _, err := s.command(t, test.args...); exitOf(err) != test.exit || !strings.Contains(err.Error(), test.want) {
			t.Errorf("server %s = %v, want exit code %d with %q", strings.Join(test.args, " "), err, test.exit, test.want)
		}
	}
}
