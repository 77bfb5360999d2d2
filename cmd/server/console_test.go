package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc/metadata"

	"example.com/servicekit/localbroker"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
)

// testConsole is a running `server console`.
type testConsole struct {
	url   string
	cmd   *exec.Cmd
	log   *output
	ended chan error
}

// startConsole starts a console over the database of a stack, as the user of a URL.
func startConsole(t testing.TB, s *stack, databaseURL string, args ...string) *testConsole {
	t.Helper()
	c := &testConsole{cmd: exec.Command(binary, append([]string{"console", "--addr", "127.0.0.1:0"}, args...)...), log: new(output), ended: make(chan error, 1)}
	c.cmd.Env = s.environ("DATABASE_URL="+databaseURL, "ALLOWED_HOSTS=console.example.com")
	c.cmd.Stderr = c.log
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		_ = c.cmd.Wait()
		t.Fatalf("the console ended: %s", c.log)
	}
	go func() { c.ended <- c.cmd.Wait() }()
	t.Cleanup(func() {
		_ = c.cmd.Process.Signal(syscall.SIGTERM)
		err := <-c.ended
		if t.Failed() {
			t.Logf("the console ended with %v:\n%s", err, c.log)
		}
	})
	c.url = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(line), "console: "), "/")
	return c
}

// do sends a request, without following redirects, and returns the status, the header and
// the body.
func (c *testConsole) do(t testing.TB, method, path string, form url.Values, header ...string) (int, http.Header, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, c.url+path, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	if method == http.MethodPost {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			request.Host = header[i+1]
		}
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(body)
}

// get returns a page, which must be there.
func (c *testConsole) get(t testing.TB, path string) string {
	t.Helper()
	status, _, body := c.do(t, http.MethodGet, path, nil)
	if status != http.StatusOK {
		t.Fatalf("GET %s: %d\n%s", path, status, body)
	}
	return body
}

// act confirms an action, and returns the page of its result.
func (c *testConsole) act(t testing.TB, form url.Values) string {
	t.Helper()
	status, header, body := c.do(t, http.MethodPost, "/actions", form)
	if status != http.StatusSeeOther {
		t.Fatalf("POST %v: %d\n%s", form, status, body)
	}
	var result string
	eventually(t, time.Minute, "the action ends", func() bool {
		result = c.get(t, header.Get("Location"))
		return !strings.Contains(result, `http-equiv="refresh"`)
	})
	return result
}

// park blocks aggregates as the publisher does after its last attempt.
func park(t testing.TB, s *stack, n int, cause string) {
	t.Helper()
	for _, sql := range []string{
		`INSERT INTO video_catalog.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
			SELECT -1, gen_random_uuid(), 'video', md5($2::text || n)::uuid::text, 'VideoUpdated', 3, 1, '', now() FROM generate_series(1, $1::int) n`,
		`INSERT INTO video_catalog.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, last_error, parked_at)
			SELECT 'video', md5($2::text || n)::uuid::text, 0, 10, $2::text || n, now() FROM generate_series(1, $1::int) n`,
	} {
		if _, err := s.pool.Exec(t.Context(), sql, n, cause); err != nil {
			t.Fatal(err)
		}
	}
}

// user returns the URL of the database for a new user who has some roles, and nothing else.
func (s *stack) user(t testing.TB, roles string, settings ...string) string {
	t.Helper()
	direct, err := url.Parse(storetest.Direct(t, s.url))
	if err != nil {
		t.Fatal(err)
	}
	name := "person_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	for _, sql := range append([]string{"CREATE USER %s IN ROLE " + roles + " CONNECTION LIMIT 3"}, settings...) {
		if _, err := s.pool.Exec(t.Context(), fmt.Sprintf(sql, pgx.Identifier{name}.Sanitize())); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if _, err := s.pool.Exec(context.WithoutCancel(t.Context()), "DROP USER "+pgx.Identifier{name}.Sanitize()); err != nil {
			t.Error(err)
		}
	})
	direct.User = url.User(name)
	return direct.String()
}

const evil = `<script>alert("x")</script>`

// newEvilStack has a script wherever somebody else can write: in a title that both sides
// have, in what the broker said, and in a quarantined message.
func newEvilStack(t testing.TB) (s *stack, video domain.Video) {
	t.Helper()
	s = newStack(t)
	created, err := domain.Create(uuid.Must(uuid.NewV7()), domain.Details{Title: evil}, domain.Stamp{EventID: uuid.Must(uuid.NewV7()), Time: time.Now().UTC()})
	if err != nil {
		t.Fatal(err)
	}
	if video, err = store.NewVideos(s.pool, nil).CreateVideo(t.Context(), uuid.Nil, nil, created); err != nil {
		t.Fatal(err)
	}
	if _, err := store.NewCatalog(s.pool).Project(t.Context(), "catalog", []domain.Event{*created}); err != nil {
		t.Fatal(err)
	}
	park(t, s, 2, evil)
	if err := store.NewInbox(s.pool).Quarantine(t.Context(), "catalog", envelope.Quarantined{
		MessageID: evil, OrderingKey: evil, Attributes: map[string]string{"event_type": evil}, Payload: []byte(evil), Reason: evil, PublishTime: time.Now(),
	}); err != nil {
		t.Fatal(err)
	}
	return s, video
}

// inline matches what the content security policy forbids.
var inline = regexp.MustCompile(`(?i)<script>|<style|\sstyle\s*=|\son[a-z]+\s*=|javascript:`)

// What somebody else has written is shown as text, and no page needs what its policy forbids.
func TestConsoleEscapesWhatOthersWrote(t *testing.T) {
	t.Parallel()
	s, video := newEvilStack(t)
	c := startConsole(t, s, s.url)
	c.act(t, url.Values{"action": {"outbox.requeue"}, "type": {"video"}, "confirmed": {"2"}, "reason": {evil}})
	park(t, s, 1, evil+" again ")
	for path, shows := range map[string]int{
		"/": 1, "/blocked": 2, "/quarantine": 2, "/quarantine/1": 3, "/audit": 2, "/settings": 0,
		"/aggregates?q=" + url.QueryEscape(evil): 1, "/aggregates?q=alert": 1, "/aggregates/video/" + video.ID.String(): 2,
		"/aggregates/" + url.PathEscape(evil) + "/x": 1,
	} {
		status, header, body := c.do(t, http.MethodGet, path, nil)
		if status == http.StatusSeeOther { // the only one that was found
			status, header, body = c.do(t, http.MethodGet, header.Get("Location"), nil)
		}
		if status != http.StatusOK {
			t.Errorf("GET %s: %d", path, status)
		}
		if got := strings.Count(html.UnescapeString(body), "<script>alert"); got < shows {
			t.Errorf("GET %s shows the text %d times, want at least %d", path, got, shows)
		}
		if found := inline.FindString(body); found != "" {
			t.Errorf("GET %s has %q", path, found)
		}
		if got, want := header.Get("Content-Security-Policy"), "default-src 'none'; script-src 'self'; style-src 'self';"; !strings.HasPrefix(got, want) {
			t.Errorf("GET %s has the policy %q, want %q…", path, got, want)
		}
	}
	if status, _, body := c.do(t, http.MethodGet, "/actions/"+uuid.NewString(), nil); status != http.StatusNotFound || !strings.Contains(body, "the audit has what was done") {
		t.Errorf("an unknown action: %d\n%s", status, body)
	}
}

// A page of another origin cannot act, not even under a name that leads here.
func TestConsoleRefusesOtherOrigins(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	park(t, s, 1, "refused")
	c := startConsole(t, s, s.url)
	form := url.Values{"action": {"outbox.requeue"}, "type": {"video"}, "confirmed": {"1"}, "reason": {"none"}}
	for _, tt := range []struct {
		name   string
		header []string
		want   int
	}{
		{"cross-site", []string{"Sec-Fetch-Site", "cross-site"}, http.StatusForbidden},
		{"same-site", []string{"Sec-Fetch-Site", "same-site"}, http.StatusForbidden},
		{"another origin", []string{"Origin", "https://evil.example.com"}, http.StatusForbidden},
		{"another name", []string{"Host", "evil.example.com", "Origin", "http://evil.example.com"}, http.StatusForbidden},
	} {
		if status, _, body := c.do(t, http.MethodPost, "/actions", form, tt.header...); status != tt.want {
			t.Errorf("%s: %d, want %d\n%s", tt.name, status, tt.want, body)
		}
	}
	if n := s.count(t, "SELECT count(*) FROM video_catalog.outbox_blocked WHERE parked_at IS NOT NULL"); n != 1 {
		t.Errorf("%d aggregates are parked, want 1", n)
	}
	if status, _, _ := c.do(t, http.MethodPost, "/actions", form, "Host", "console.example.com", "Sec-Fetch-Site", "same-origin"); status != http.StatusSeeOther {
		t.Errorf("its own page: %d, want %d", status, http.StatusSeeOther)
	}
}

// An action is counted first, needs a reason, does exactly what was confirmed, and is in the
// audit.
func TestConsoleActs(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	park(t, s, 2500, "too large: ")
	park(t, s, 3, "no such field: ")
	c := startConsole(t, s, s.url)
	cause := regexp.MustCompile(`\?cause=([0-9a-f]+)`).FindStringSubmatch(c.get(t, "/blocked"))
	if cause == nil {
		t.Fatal("the page has no cause")
	}
	form := url.Values{"action": {"outbox.requeue"}, "cause": {cause[1]}}
	parked := func() int {
		return s.count(t, "SELECT count(*) FROM video_catalog.outbox_blocked WHERE parked_at IS NOT NULL")
	}
	refused := func(name string, wantStatus int, want string) {
		t.Helper()
		status, _, body := c.do(t, http.MethodPost, "/actions", form)
		if status != wantStatus || !strings.Contains(html.UnescapeString(body), want) {
			t.Errorf("%s: %d, want %d with %q\n%s", name, status, wantStatus, want, body)
		}
		if n := parked(); n < 2503 {
			t.Fatalf("%s: %d are parked, want all", name, n)
		}
	}
	refused("without an answer", http.StatusOK, "Requeue 2\u202f500 aggregates?")
	form.Set("confirmed", "2500")
	refused("without a reason", http.StatusBadRequest, "A reason is missing")
	form.Set("reason", " ")
	refused("with a blank reason", http.StatusBadRequest, "A reason is missing")
	form.Set("reason", "the limit was raised")
	park(t, s, 2502, "too large: 0")
	refused("when more match", http.StatusBadRequest, "More match now")
	form.Set("confirmed", "5002")
	if body := c.act(t, form); !strings.Contains(body, "5\u202f002 of 5\u202f002 aggregates are done.") {
		t.Errorf("result:\n%s", body)
	}
	if n := parked(); n != 3 {
		t.Errorf("%d are parked, want the 3 of the other cause", n)
	}
	audit := c.get(t, "/audit")
	for _, want := range []string{"the limit was raised", "outbox.requeue", operator(t), "by console", "1\u202f000"} {
		if !strings.Contains(audit, want) {
			t.Errorf("the audit lacks %q:\n%.3000s", want, audit)
		}
	}
	for want, form := range map[string]url.Values{
		"action: must be":   {"action": {"drop.table"}},
		"age: must be":      {"action": {"outbox.skip"}, "age": {"soon"}},
		"event_id: must be": {"action": {"outbox.skip"}, "event_id": {"1"}},
	} {
		if status, _, body := c.do(t, http.MethodPost, "/actions", form); status != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("POST %v: %d, want %d with %q\n%s", form, status, http.StatusBadRequest, want, body)
		}
	}
}

// A console that is closed in the middle of an action, or killed, leaves what is done, with its
// rows in the audit, and the rest as it was. The action run again does the rest.
func TestConsoleIsClosedInTheMiddle(t *testing.T) {
	t.Parallel()
	for _, end := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(end.String(), func(t *testing.T) {
			t.Parallel()
			s := newStack(t)
			park(t, s, 2500, "too large: ")
			hold, err := s.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer hold.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it changes nothing
			// It is in the third transaction.
			if _, err := hold.Exec(t.Context(), "SELECT FROM video_catalog.outbox_blocked WHERE aggregate_id = (SELECT max(aggregate_id) FROM video_catalog.outbox_blocked) FOR UPDATE"); err != nil {
				t.Fatal(err)
			}
			form := url.Values{"action": {"outbox.requeue"}, "type": {"video"}, "confirmed": {"2500"}, "reason": {"the limit was raised"}}
			c := startConsole(t, s, s.url)
			status, header, body := c.do(t, http.MethodPost, "/actions", form)
			if status != http.StatusSeeOther {
				t.Fatalf("POST: %d\n%s", status, body)
			}
			const waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
			eventually(t, time.Minute, "the third transaction waits", func() bool { return s.count(t, waiting) == 1 })
			if body := c.get(t, header.Get("Location")); !strings.Contains(body, "2\u202f000 of 2\u202f500 aggregates are done.") {
				t.Errorf("the action is not in the middle:\n%s", body)
			}
			if err := c.cmd.Process.Signal(end); err != nil {
				t.Fatal(err)
			}
			ended := <-c.ended
			c.ended <- ended
			if (ended == nil) != (end == syscall.SIGTERM) {
				t.Errorf("the console ended with %v", ended)
			}
			if err := hold.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			eventually(t, time.Minute, "its transaction has ended", func() bool {
				return s.count(t, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()") == 0
			})
			if s.parked(t) != 500 || s.audited(t) != 2 {
				t.Errorf("%d are parked, %d in the audit, want 500 and 2", s.parked(t), s.audited(t))
			}
			form.Set("confirmed", "500")
			if body := startConsole(t, s, s.url).act(t, form); !strings.Contains(body, "500 of 500 aggregates are done.") {
				t.Errorf("the action run again:\n%s", body)
			}
			if n := s.count(t, "SELECT sum(items) FROM video_catalog.audit"); s.parked(t) != 0 || s.audited(t) != 3 || n != 2500 {
				t.Errorf("%d are parked, %d rows with %d items in the audit, want none, 3 and 2,500", s.parked(t), s.audited(t), n)
			}
		})
	}
}

// What could not be done is shown with its cause, and what could is done.
func TestConsoleShowsPartialFailure(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	inbox := store.NewInbox(s.pool)
	created, err := domain.Create(uuid.Must(uuid.NewV7()), domain.Details{Title: "Ran"}, domain.Stamp{EventID: uuid.Must(uuid.NewV7()), Time: time.Now().UTC()})
	if err != nil {
		t.Fatal(err)
	}
	message, err := event.Encode(created)
	if err != nil {
		t.Fatal(err)
	}
	for id, payload := range map[string][]byte{"good": message.Payload, "bad": {0xff}} {
		if err := inbox.Quarantine(t.Context(), "catalog", envelope.Quarantined{
			MessageID: id, Attributes: message.Attributes(), Payload: payload, Reason: "not known yet", PublishTime: time.Now(),
		}); err != nil {
			t.Fatal(err)
		}
	}
	c := startConsole(t, s, s.url)
	var good, bad string
	for _, n := range []string{"1", "2"} {
		if body := c.get(t, "/quarantine/"+n); strings.Contains(body, ">good<") {
			good = body
		} else {
			bad = body
		}
	}
	if !strings.Contains(html.UnescapeString(good), `"Title": "Ran"`) {
		t.Errorf("the message is not decoded:\n%s", good)
	}
	if !strings.Contains(bad, "decode event") || !strings.Contains(bad, "no protobuf from byte 0 on") || !strings.Contains(bad, "|.|") {
		t.Errorf("the message is not shown:\n%s", bad)
	}
	body := c.act(t, url.Values{"action": {"quarantine.replay"}, "type": {"video"}, "confirmed": {"2"}, "reason": {"a newer build"}})
	if !strings.Contains(body, "1 of 2 messages is done.") || !strings.Contains(body, "1 could not be done") {
		t.Errorf("result:\n%s", body)
	}
	if n := s.count(t, "SELECT count(*) FROM video_catalog_read.quarantine WHERE message_id = 'bad'"); n != 1 {
		t.Errorf("%d messages are left, want the bad one", n)
	}
	if n := s.count(t, "SELECT count(*) FROM video_catalog_read.video_projection WHERE title = 'Ran'"); n != 1 {
		t.Error("the good message was not applied")
	}
}

// A user of support_ro sees everything but payloads, and is told why it cannot act.
func TestConsoleOnlyReads(t *testing.T) {
	t.Parallel()
	s, video := newEvilStack(t)
	for name, settings := range map[string][]string{
		"as docs/database.md says":        {"ALTER ROLE %s SET default_transaction_read_only = on"},
		"without its transaction setting": nil,
	} {
		t.Run(name, func(t *testing.T) {
			c := startConsole(t, s, s.user(t, "support_ro", settings...))
			for _, path := range []string{"/", "/blocked", "/quarantine", "/quarantine/1", "/audit", "/settings", "/aggregates", "/aggregates/video/" + video.ID.String()} {
				body := c.get(t, path)
				if strings.Contains(body, `action="/actions"`) {
					t.Errorf("GET %s has a button that acts", path)
				}
				if strings.Contains(body, "permission denied") || !strings.Contains(body, "only reads") {
					t.Errorf("GET %s:\n%s", path, body)
				}
			}
			if body := c.get(t, "/quarantine/1"); !strings.Contains(body, "may not read payloads") || strings.Contains(body, "00000000") {
				t.Errorf("the payload is not hidden:\n%s", body)
			}
			for _, action := range []string{"outbox.requeue", "outbox.skip", "quarantine.replay", "quarantine.delete"} {
				form := url.Values{"action": {action}, "type": {"video"}, "confirmed": {"9"}, "reason": {"none"}}
				if status, _, body := c.do(t, http.MethodPost, "/actions", form); status != http.StatusForbidden || !strings.Contains(body, "may only read") {
					t.Errorf("%s: %d\n%s", action, status, body)
				}
			}
		})
	}
}

// A user with the roles of the service acts, as the owner of the schemas does.
func TestConsoleActsWithTheRolesOfTheService(t *testing.T) {
	t.Parallel()
	s, _ := newEvilStack(t)
	c := startConsole(t, s, s.user(t, "video_catalog_rw, video_catalog_read_rw"))
	for _, form := range []url.Values{
		{"action": {"outbox.skip"}, "type": {"video"}, "confirmed": {"2"}, "reason": {"given up"}},
		{"action": {"quarantine.delete"}, "id": {"1"}, "confirmed": {"1"}, "reason": {"given up"}},
	} {
		if body := c.act(t, form); strings.Contains(body, "Stopped") || !strings.Contains(body, "done.") {
			t.Errorf("%v:\n%s", form, body)
		}
	}
	if n := s.count(t, "SELECT count(*) FROM video_catalog_read.quarantine"); n != 0 {
		t.Errorf("%d messages are in quarantine, want none", n)
	}
}

// The page of an aggregate shows where its events are, and which field differs.
func TestConsoleShowsAnAggregate(t *testing.T) {
	t.Parallel()
	s, video := newEvilStack(t)
	c := startConsole(t, s, s.url)
	path := "/aggregates/video/" + video.ID.String()
	body := c.get(t, path)
	for _, want := range []string{"VideoCreated", `class="step pending">pending`, `title="by catalog">after`, ">equal<"} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %q:\n%s", want, body)
		}
	}
	if _, err := s.pool.Exec(t.Context(), "UPDATE video_catalog_read.video_projection SET release_year = 1985"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.pool.Exec(t.Context(), "DELETE FROM video_catalog.outbox_pending WHERE aggregate_id = $1", video.ID.String()); err != nil {
		t.Fatal(err)
	}
	body = c.get(t, path)
	for _, want := range []string{"1 field differs", `<tr class="differs"><td>release_year</td><td class="wrap">0</td><td class="wrap">1985</td>`, `class="step ">published`} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %q:\n%s", want, body)
		}
	}
	if status, header, _ := c.do(t, http.MethodGet, "/aggregates?q="+video.ID.String(), nil); status != http.StatusSeeOther || header.Get("Location") != path {
		t.Errorf("a search by id: %d %s", status, header.Get("Location"))
	}
	if strings.Contains(body, "traces.example.com") || strings.Contains(body, "The request that made it") {
		t.Errorf("the page has a link without a URL, or a request of nobody:\n%s", body)
	}
	request := uuid.NewString()
	for _, sql := range []string{
		"UPDATE video_catalog.outbox SET traceparent = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01', causation_id = $2::uuid, correlation_id = $2::uuid WHERE aggregate_id = $1",
		"INSERT INTO video_catalog.requests (aggregate_type, request_id, aggregate_id, fingerprint, create_time) VALUES ('video', $2::uuid, $1, '', now())",
	} {
		if _, err := s.pool.Exec(t.Context(), sql, video.ID.String(), request); err != nil {
			t.Fatal(err)
		}
	}
	traced := startConsole(t, s, s.url, "--traces", "https://traces.example.com/of;id={trace_id}?project=x").get(t, path)
	for _, want := range []string{`<a href="https://traces.example.com/of;id=4bf92f3577b34da6a3ce929d0e0e4736?project=x"`, request, `after <code title="event ` + request + `, which is not in this outbox">`} {
		if !strings.Contains(traced, want) {
			t.Errorf("the page lacks %q:\n%s", want, traced)
		}
	}
	if status, _, _ := c.do(t, http.MethodGet, "/aggregates/video/none", nil); status != http.StatusOK {
		t.Errorf("an id that is none: %d", status)
	}
}

// The page of an aggregate shows who called a command, and which event led to another one, to
// support, too. Messages do not have the caller, and a purge erases all but its own.
func TestConsoleShowsWhoAndWhy(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.react(t, remind(false, time.Millisecond))
	const editor = "editor@example.com"
	p := s.start(t, "AUTH=iam")
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-serverless-authorization", vouched(t, editor))
	video, err := p.videos.CreateVideo(ctx, &videov1.CreateVideoRequest{Video: &videov1.Video{Title: "Ran"}})
	if err != nil {
		t.Fatal(err)
	}
	id := strings.TrimPrefix(video.GetName(), "videos/")
	messages := func() (of []*localbroker.Message) {
		for _, m := range s.pubsub.Published() {
			if m.OrderingKey == id {
				of = append(of, &m)
			}
		}
		return of
	}
	eventually(t, time.Minute, "the events of the command, the reaction and the timer are published", func() bool { return len(messages()) == 3 })

	for reader, target := range map[string]string{"owner": s.url, "support_ro": s.user(t, "support_ro")} {
		path := "/aggregates/video/" + id
		body := startConsole(t, s, target).get(t, path)
		to := func(event string) string {
			return fmt.Sprintf(`<a href=%q title="event [-0-9a-f]{36} of video %s">%s</a>`, path, id, event)
		}
		line := func(text string) string { return `<br><span class="dim">` + text + "</span>" }
		for _, want := range []string{
			"<td>VideoCreated" + line("by "+editor) + "</td>", "<td>VideoUpdated" + line("after "+to("VideoCreated")) + "</td>",
			"<td>VideoPublished" + line("after "+to("VideoUpdated")) + line("first "+to("VideoCreated")) + "</td>",
		} {
			if !regexp.MustCompile(want).MatchString(body) {
				t.Errorf("to %s the page lacks %s:\n%s", reader, want, body)
			}
		}
	}

	if _, err := p.videos.DeleteVideo(ctx, &videov1.DeleteVideoRequest{Name: video.GetName()}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.videos.PurgeVideo(ctx, &videov1.PurgeVideoRequest{Name: video.GetName()}); err != nil {
		t.Fatal(err)
	}
	const called = "SELECT count(*) FROM video_catalog.outbox WHERE caller = $1 AND "
	if n := s.count(t, called+"event_type = 'VideoPurged'", editor); n != 1 {
		t.Errorf("%d purges by the editor, want 1", n)
	}
	eventually(t, time.Minute, "the purge has erased the caller of all other events", func() bool {
		return s.count(t, called+"event_type <> 'VideoPurged'", editor) == 0
	})
	eventually(t, time.Minute, "the event of the purge is published", func() bool {
		all := messages()
		return all[len(all)-1].Attributes[envelope.AttrEventType] == "VideoPurged"
	})
	for _, m := range messages() {
		if text := fmt.Sprintf("%v %s", m.Attributes, m.Data); strings.Contains(text, "editor") {
			t.Errorf("a message has the caller: %s", text)
		}
	}
}

// liveEvent is an event of the stream of a page.
type liveEvent struct {
	id    string
	parts map[string]string
}

// listen opens a stream, and returns its events, and what is closed when it ends.
func (c *testConsole) listen(t testing.TB, lastID string) (events <-chan liveEvent) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.url+"/live?parts=commands,lanes,blocked,view", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if lastID != "" {
		request.Header.Set("Last-Event-ID", lastID)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	received := make(chan liveEvent, 100)
	go func() {
		defer close(received)
		defer response.Body.Close()
		var e liveEvent
		lines := bufio.NewScanner(response.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if id, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
				e.id = id
			}
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				e.parts = nil
				if err := json.Unmarshal([]byte(data), &e.parts); err != nil {
					t.Error(err)
				}
				received <- e
			}
		}
	}()
	return received
}

// next returns the next event of a stream.
func next(t testing.TB, events <-chan liveEvent) liveEvent {
	t.Helper()
	select {
	case e, ok := <-events:
		if !ok {
			t.Fatal("the stream has ended")
		}
		return e
	case <-time.After(time.Minute):
		t.Fatal("no event in a minute")
	}
	return liveEvent{}
}

// A stream has what changes, goes on where it was, and ends when the console stops.
func TestConsoleStreams(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	c := startConsole(t, s, s.url)
	first, second := c.listen(t, ""), c.listen(t, "")
	all := next(t, first)
	if all.parts["lanes"] == "" || all.parts["view"] == "" || all.parts["projector"] != "" {
		t.Fatalf("the first event has %d parts, want all that the query names: %v", len(all.parts), all)
	}
	next(t, second)
	park(t, s, 7, "refused")
	var last liveEvent
	for last.parts["blocked"] == "" {
		last = next(t, first)
	}
	if !strings.Contains(last.parts["blocked"], ">7<") {
		t.Errorf("blocked = %q, want 7", last.parts["blocked"])
	}
	resumed := next(t, c.listen(t, last.id))
	if resumed.parts["blocked"] != "" {
		t.Errorf("after %s the stream repeats what it had: %q", last.id, resumed.parts["blocked"])
	}
	if again := next(t, c.listen(t, "of-another-process-5")); again.parts["blocked"] == "" || again.parts["lanes"] == "" {
		t.Errorf("with the id of another process there are %d parts, want all", len(again.parts))
	}
	start := time.Now()
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for _, stream := range []<-chan liveEvent{first, second} {
		for range stream { // until it ends
		}
	}
	err := <-c.ended
	c.ended <- nil
	if took := time.Since(start); err != nil || took > 5*time.Second {
		t.Errorf("the console ended after %s with %v", took, err)
	} else {
		t.Logf("with streams the console ended after %s", took)
	}
}

// Without a database the console says so, and comes back by itself.
func TestConsoleWithoutDatabase(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	network := storetest.NewNetwork(t, s.url)
	c := startConsole(t, s, network.URL)
	c.get(t, "/")
	network.Move(t, "postgres://nobody@127.0.0.1:1/none")
	eventually(t, time.Minute, "the page says that the database is unavailable", func() bool {
		return strings.Contains(c.get(t, "/"), "The command side cannot be read")
	})
	network.Move(t, s.url)
	eventually(t, time.Minute, "the page is as before", func() bool {
		return !strings.Contains(c.get(t, "/"), "cannot be read")
	})
}

// The metrics of a process are shown, or why they are not.
func TestConsoleReadsMetrics(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	p := s.start(t, "TELEMETRY_ADDR=127.0.0.1:0")
	if _, err := p.videos.CreateVideo(t.Context(), &videov1.CreateVideoRequest{Video: &videov1.Video{Title: "Ran"}}); err != nil {
		t.Fatal(err)
	}
	c := startConsole(t, s, s.url, "--metrics", "http://"+p.private(t)+"/metrics")
	if body := c.get(t, "/"); !strings.Contains(body, "in hand") || !strings.Contains(body, "<dd>available</dd>") || !regexp.MustCompile(`>paused keys</dt><dd>0</dd>`).MatchString(body) {
		t.Errorf("the page lacks what the process knows:\n%s", body)
	}
	c = startConsole(t, s, s.url, "--metrics", "http://127.0.0.1:1/metrics")
	if body := c.get(t, "/"); !strings.Contains(body, "The metrics of the process cannot be read") {
		t.Errorf("the page does not say that there are no metrics:\n%s", body)
	}
}

// Wrong arguments are named.
func TestConsoleRefusesWrongArguments(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	for _, args := range [][]string{{"now"}, {"--port", "1"}, {"--addr", "here"}, {"--metrics", "9090"}, {"--traces", "https://traces.example.com/"}, {"--traces", "javascript:{trace_id}"}} {
		out, err := s.command(t, append([]string{"console"}, args...)...)
		if err == nil || exitOf(err) != app.ExitUsage {
			t.Errorf("console %v = %q, %v, want exit code %d", args, out, err, app.ExitUsage)
		}
	}
}

// Every page is fast with 10,000 parked aggregates, and 10,000 messages in quarantine.
func BenchmarkConsole(b *testing.B) {
	s := newStack(b)
	park(b, s, 10_000, "too large: ")
	if _, err := s.pool.Exec(b.Context(), `INSERT INTO video_catalog_read.quarantine (consumer, message_id, ordering_key, attributes, payload, reason, publish_time)
		SELECT 'catalog', n, n, '{}', 'x', 'not an event: ' || n, now() FROM generate_series(1, 10000) n`); err != nil {
		b.Fatal(err)
	}
	c := startConsole(b, s, s.url)
	for _, path := range []string{"/", "/blocked", "/blocked?age=1s", "/quarantine", "/audit", "/settings", "/aggregates?q=none"} {
		b.Run(strings.ReplaceAll(path, "/", "_"), func(b *testing.B) {
			for b.Loop() {
				c.get(b, path)
			}
		})
	}
	b.Run("requeue", func(b *testing.B) {
		for n := 0; b.Loop(); n++ {
			c.act(b, url.Values{"action": {"outbox.requeue"}, "type": {"video"}, "confirmed": {"10000"}, "reason": {strconv.Itoa(n)}})
			b.StopTimer()
			if _, err := s.pool.Exec(b.Context(), "UPDATE video_catalog.outbox_blocked SET parked_at = now(), next_retry_at = NULL"); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
}
