package main

import (
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"example.com/videocatalog/internal/names"
)

// Events are applied again from a form, also if the inbox is empty already.
func TestConsoleSeeks(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	c := startConsole(t, s, s.url)
	id := names.VideoTopic.Subscription("catalog")
	form := url.Values{"action": {"inbox.seek"}, "id": {id}}
	for want, change := range map[string]url.Values{
		"from: must be a time":                   {},
		"from: must not be in the future":        {"from": {"2999-01-01T00:00:00Z"}},
		"subscription: must be one of the query": {"from": {"2026-01-01T00:00:00Z"}, "id": {"parcels"}},
	} {
		wrong := url.Values{"action": {"inbox.seek"}, "id": {id}}
		maps.Copy(wrong, change)
		if status, _, body := c.do(t, http.MethodPost, "/actions", wrong); status != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("POST %v: %d, want %q\n%s", wrong, status, want, body)
		}
	}
	form.Set("from", "2026-01-01T00:00:00Z")
	if status, _, body := c.do(t, http.MethodPost, "/actions", form); status != http.StatusOK || !strings.Contains(body, "Apply again 0 events?") || !strings.Contains(body, `href="/aggregates">Do nothing`) {
		t.Errorf("the question: %d\n%s", status, body)
	}
	form.Set("confirmed", "0")
	form.Set("reason", "rows were lost")
	if body := c.act(t, form); !strings.Contains(body, "0 of 0 events are done.") {
		t.Errorf("result:\n%s", body)
	}
	if n := s.count(t, "SELECT count(*) FROM video_catalog_read.audit WHERE action = 'inbox.seek' AND via = 'console'"); n != 1 {
		t.Errorf("%d rows in the audit, want 1", n)
	}
}
