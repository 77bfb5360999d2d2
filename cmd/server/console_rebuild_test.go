package main

import (
	"maps"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/names"
)

// A projection is rebuilt from a form: counted, or rebuilt, or counted first and then rebuilt.
// Its row in the audit says who did it.
func TestConsoleRebuilds(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.fillOwner(t, 12)
	c := startConsole(t, s, s.url)
	if body := c.get(t, "/aggregates"); !strings.Contains(body, `value="projection.rebuild"`) || !strings.Contains(body, `value="inbox.seek"`) {
		t.Errorf("the page has no buttons:\n%s", body)
	}
	form := url.Values{"action": {"projection.rebuild"}, "type": {"video"}}
	if status, _, body := c.do(t, http.MethodPost, "/actions", form); status != http.StatusOK || !strings.Contains(body, "Rebuild all entries of video?") || !strings.Contains(body, "Only count") {
		t.Errorf("the question: %d\n%s", status, body)
	}
	form.Set("dry_run", "1")
	form.Set("confirmed", "0")
	if body := c.act(t, form); !strings.Contains(body, "12 entries differ. Nothing was changed.") || !strings.Contains(body, "Rebuild…") {
		t.Errorf("the count:\n%s", body)
	}
	if got := s.count(t, "SELECT count(*) FROM video_catalog_read.video_projection"); got != 0 || s.audited(t) != 0 {
		t.Errorf("after the count: %d entries, %d in the audit, want none", got, s.audited(t))
	}
	form.Del("dry_run")
	if status, _, body := c.do(t, http.MethodPost, "/actions", form); status != http.StatusBadRequest || !strings.Contains(body, "A reason is missing") {
		t.Errorf("without a reason: %d\n%s", status, body)
	}
	form.Set("reason", "rows were lost")
	if body := c.act(t, form); !strings.Contains(body, "12 of 12 entries are done.") {
		t.Errorf("result:\n%s", body)
	}
	if n := s.count(t, "SELECT count(*) FROM video_catalog_read.audit WHERE action = 'projection.rebuild' AND via = 'console' AND reason = 'rows were lost' AND items = 12"); n != 1 || s.count(t, unlike) != 0 {
		t.Errorf("%d rows in the audit, %d entries differ, want 1 and none", n, s.count(t, unlike))
	}
	form.Set("type", "parcel")
	if status, _, body := c.do(t, http.MethodPost, "/actions", form); status != http.StatusBadRequest || !strings.Contains(body, "that can be rebuilt: video") {
		t.Errorf("another type: %d\n%s", status, body)
	}
}

// A console that is closed in the middle of a rebuild, or killed, loses nothing: another goes
// on, and says so. While one runs, another is refused.
func TestConsoleRebuildGoesOn(t *testing.T) {
	t.Parallel()
	for _, end := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(end.String(), func(t *testing.T) {
			t.Parallel()
			s := newStack(t)
			s.fillOwner(t, 1200)
			release := s.holdCatalog(t)
			defer release()
			question := url.Values{"action": {"projection.rebuild"}, "type": {"video"}}
			form := url.Values{"action": {"projection.rebuild"}, "type": {"video"}, "confirmed": {"0"}, "reason": {"rows were lost"}}
			c, other := startConsole(t, s, s.url), startConsole(t, s, s.url)
			status, header, body := c.do(t, http.MethodPost, "/actions", form)
			if status != http.StatusSeeOther {
				t.Fatalf("POST: %d\n%s", status, body)
			}
			eventually(t, time.Minute, "the swap waits", func() bool { return s.swapWaits(t) })
			if body := c.get(t, header.Get("Location")); !strings.Contains(body, "1\u202f200 of 1\u202f200 entries are done.") {
				t.Errorf("the rebuild is not in the middle:\n%s", body)
			}
			if _, _, body := other.do(t, http.MethodPost, "/actions", question); !strings.Contains(body, "One is running since") {
				t.Errorf("the question while one runs:\n%s", body)
			}
			if body := other.act(t, form); !strings.Contains(body, "has been running since") || !strings.Contains(body, "Go on…") {
				t.Errorf("a second rebuild:\n%s", body)
			}
			if err := c.cmd.Process.Signal(end); err != nil {
				t.Fatal(err)
			}
			ended := <-c.ended
			c.ended <- ended
			release()
			if end == syscall.SIGKILL {
				eventually(t, time.Minute, "its transaction has ended", func() bool {
					return s.count(t, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()") == 0
				})
				if _, err := s.pool.Exec(t.Context(), "UPDATE video_catalog_read.rebuilds SET leased_until = now()"); err != nil {
					t.Fatal(err)
				}
			}
			if _, _, body := other.do(t, http.MethodPost, "/actions", question); s.audited(t) == 0 && !strings.Contains(body, "after the owner had listed 1\u202f200 entries") {
				t.Errorf("the question after the end:\n%s", body)
			}
			if body := other.act(t, form); strings.Contains(body, "Stopped") {
				t.Errorf("another rebuild:\n%s", body)
			}
			if log := other.log.String(); !strings.Contains(log, `"rebuild: note"`) || !strings.Contains(log, "rebuild 1 is resumed") {
				t.Errorf("the log does not say that the rebuild is resumed:\n%s", log)
			}
			if n := s.count(t, "SELECT count(*) FROM video_catalog_read.rebuilds WHERE phase = 'done' AND generation = 1"); n != 1 || s.count(t, unlike) != 0 || s.audited(t) != 1 {
				t.Errorf("%d rebuilds are done, %d entries differ, %d in the audit, want 1, none and 1", n, s.count(t, unlike), s.audited(t))
			}
		})
	}
}

// Events are applied again from a form, also if the inbox is empty already.
func TestConsoleSeeks(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	c := startConsole(t, s, s.url)
	id := names.TopicOf(event.AggregateVideo).Subscription("catalog")
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
	if n := s.count(t, "SELECT count(*) FROM video_catalog_read.audit WHERE action = 'inbox.seek' AND via = 'console'"); n != 1 || s.count(t, "SELECT generation FROM video_catalog_read.inbox_generations") != 1 {
		t.Errorf("%d rows in the audit, want 1, and a new generation", n)
	}
}
