package console

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/operate"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var must = pgtest.Must

// receive records an event in the inbox of a consumer.
const receive = "INSERT INTO video_catalog_read.inbox (consumer, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING"

// program is a service with this option and the aggregate type thing. A consumer applies events of things.
func program() app.Program {
	handlers := func(b app.Backend) consumer.Handlers {
		decode := func(m envelope.Message) (envelope.Message, error) {
			if string(m.Payload) == "bad" {
				return m, &envelope.DecodeError{Reason: "too new"}
			}
			return m, nil
		}
		apply := func(ctx context.Context, name string, events []envelope.Message) ([]envelope.Outcome, error) {
			for _, m := range events {
				if _, err := b.QueryPool.Exec(ctx, receive, name, m.ID); err != nil {
					return nil, err
				}
			}
			return make([]envelope.Outcome, len(events)), nil
		}
		return consumer.Handlers{"thing": consumer.Handle(decode, apply)}
	}
	return app.Program{Options: []app.Option{Option()}, Registrations: []app.Registration{{
		AggregateType: "thing", Table: "things",
		Subscriptions: []app.Subscription{{ID: "thing.events.shelf", Consumer: "shelf", Handlers: handlers}},
	}}}
}

// running is a running `server console`.
type running struct {
	url  string
	stop func() error // ends it, and returns how it ended
}

// start starts a console over a database, as the user of a URL.
func start(t testing.TB, databaseURL string, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	out, stdout := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := program().Run(ctx, append([]string{"console", "--addr", "127.0.0.1:0"}, args...),
			[]string{"DATABASE_URL=" + databaseURL, "ALLOWED_HOSTS=console.example.com"}, stdout, t.Output())
		_ = stdout.CloseWithError(errors.Join(err, io.EOF))
		ended <- err
	}()
	r := &running{stop: func() error {
		cancel()
		err := <-ended
		ended <- err
		return err
	}}
	t.Cleanup(func() { _ = r.stop() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the console ended: %v", err)
	}
	r.url = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(line), "console: "), "/")
	return r
}

// do sends a request, without following redirects, and returns the status, the header and the body.
func (r *running) do(t testing.TB, method, path string, form url.Values, header ...string) (int, http.Header, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, r.url+path, strings.NewReader(form.Encode()))
	must(t, err)
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
	must(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	must(t, err)
	return response.StatusCode, response.Header, html.UnescapeString(string(body))
}

// get returns a page, which must be there.
func (r *running) get(t testing.TB, path string) string {
	t.Helper()
	status, _, body := r.do(t, http.MethodGet, path, nil)
	if status != http.StatusOK {
		t.Fatalf("GET %s: %d\n%s", path, status, body)
	}
	return body
}

// act confirms an action, and returns the page with its result.
func (r *running) act(t testing.TB, form url.Values) string {
	t.Helper()
	status, header, body := r.do(t, http.MethodPost, "/actions", form)
	if status == http.StatusSeeOther {
		return r.get(t, header.Get("Location"))
	}
	if status != http.StatusOK || !strings.Contains(body, " done.</strong>") {
		t.Fatalf("POST %v: %d\n%s", form, status, body)
	}
	return body
}

// later is a time after every count.
const later = "2100-01-01T00:00:00Z"

// counted returns when a page has counted the items of an action.
func counted(t testing.TB, body string) string {
	t.Helper()
	found := regexp.MustCompile(`name="until" value="([^"]+)"`).FindStringSubmatch(body)
	if found == nil {
		t.Fatalf("the page has counted nothing:\n%s", body)
	}
	return found[1]
}

// command returns the output of a command of the service, which must end with an exit code.
func command(t testing.TB, target string, wantCode int, args ...string) string {
	t.Helper()
	var out strings.Builder
	err := program().Run(t.Context(), args, []string{"DATABASE_URL=" + target}, &out, t.Output())
	if app.ExitCode(err) != wantCode {
		t.Fatalf("%q: %v, want exit code %d\n%s", args, err, wantCode, &out)
	}
	return out.String()
}

// shows fails the test if a page lacks one of the texts.
func shows(t testing.TB, body string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(body, text) {
			t.Errorf("the page lacks %q:\n%s", text, body)
		}
	}
}

func parked(t testing.TB, pool *pgxpool.Pool) int {
	t.Helper()
	return pgtest.Count(t, pool, "SELECT count(*) FROM video_catalog.outbox_blocked WHERE parked_at IS NOT NULL")
}

// oneParked returns the id of a parked aggregate.
func oneParked(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return pgtest.Column[string](t, pool, "SELECT max(aggregate_id) FROM video_catalog.outbox_blocked")[0]
}

// park blocks aggregates as the publisher does after its last attempt.
func park(t testing.TB, pool *pgxpool.Pool, n int, cause string) {
	t.Helper()
	for _, sql := range []string{
		`INSERT INTO video_catalog.outbox_deferred (lane, seq, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
			SELECT 0, nextval('video_catalog.outbox_pending_seq_seq'), gen_random_uuid(), 'thing', md5($2::text || n)::uuid::text, 'ThingChanged', 3, 1, '', now() - interval '2 hours' FROM generate_series(1, $1::int) n`,
		`INSERT INTO video_catalog.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, last_error, parked_at)
			SELECT 'thing', md5($2::text || n)::uuid::text, 0, 10, $2::text || n, now() FROM generate_series(1, $1::int) n`,
	} {
		pgtest.Execute(t, pool, sql, n, cause)
	}
}

// made appends an event of a new thing. Its title is the first text of its table that is no state.
func made(t testing.TB, pool *pgxpool.Pool, title string) envelope.Message {
	t.Helper()
	m := envelope.Message{
		ID: uuid.Must(uuid.NewV7()), AggregateType: "thing", AggregateID: uuid.Must(uuid.NewV7()).String(), Type: "ThingMade", Version: 1, SchemaVersion: 1,
		OccurredAt: time.Now(), Traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
	}
	pgtest.Execute(t, pool, "CREATE TABLE IF NOT EXISTS video_catalog.things (id uuid PRIMARY KEY, version bigint NOT NULL, state text NOT NULL, label text NOT NULL)")
	pgtest.Execute(t, pool, "INSERT INTO video_catalog.things VALUES ($1, 1, 'made', $2)", m.AggregateID, title)
	pgtest.Append(t, pool, m)
	return m
}

// setAside puts a message into quarantine.
func setAside(t testing.TB, pool *pgxpool.Pool, m envelope.Message, reason string) {
	t.Helper()
	must(t, pg.NewInbox(pool).Quarantine(t.Context(), "shelf", envelope.Quarantined{
		MessageID: m.ID.String(), OrderingKey: m.AggregateID, Attributes: m.Attributes(), Payload: m.Payload, Reason: reason, PublishTime: time.Now(),
	}))
}

// user returns the URL of the database for a new user who has the given roles, and nothing else.
func user(t testing.TB, pool *pgxpool.Pool, roles string, settings ...string) string {
	t.Helper()
	direct, err := url.Parse(pgtest.Direct(t, pool.Config().ConnString()))
	must(t, err)
	name := "person_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	for _, sql := range append([]string{"CREATE USER %s IN ROLE " + roles + " CONNECTION LIMIT 3"}, settings...) {
		pgtest.Execute(t, pool, fmt.Sprintf(sql, pgx.Identifier{name}.Sanitize()))
	}
	t.Cleanup(func() {
		if _, err := pool.Exec(context.WithoutCancel(t.Context()), "DROP USER "+pgx.Identifier{name}.Sanitize()); err != nil {
			t.Error(err)
		}
	})
	direct.User = url.User(name)
	return direct.String()
}

func newDatabase(t testing.TB) (*pgxpool.Pool, string) {
	t.Helper()
	pool := pgtest.Pool(t, 4)
	return pool, pool.Config().ConnString()
}

const evil = `<script>alert("x")</script>`

// newEvil returns a database with a script wherever others can write: in a title, in an error of the
// broker, and in a quarantined message.
func newEvil(t testing.TB) (pool *pgxpool.Pool, target string, m envelope.Message) {
	t.Helper()
	pool, target = newDatabase(t)
	m = made(t, pool, evil)
	pgtest.Execute(t, pool, "GRANT SELECT ON video_catalog.things TO support_ro, video_catalog_rw")
	park(t, pool, 2, evil)
	wrong := m
	wrong.ID, wrong.Type = uuid.Must(uuid.NewV7()), evil
	setAside(t, pool, wrong, evil)
	return pool, target, m
}

// inline matches HTML that the content security policy forbids.
var inline = regexp.MustCompile(`(?i)<style|\sstyle\s*=|\son[a-z]+\s*=|javascript:`)

// Text that others wrote is shown as text, and the policy forbids nothing that a page needs.
func TestEscapesTextOfOthers(t *testing.T) {
	t.Parallel()
	pool, target, m := newEvil(t)
	c := start(t, target)
	c.act(t, url.Values{"action": {"retry"}, "type": {"thing"}, "until": {later}, "reason": {evil}})
	park(t, pool, 1, evil+" again ")
	wrong := m
	wrong.Type = evil
	setAside(t, pool, wrong, evil)
	for path, times := range map[string]int{
		"/": 1, "/stuck": 3, "/stuck?id=2": 2, "/audit": 2, "/aggregates?q=" + url.QueryEscape(evil): 1, "/aggregates?q=alert": 1,
		"/aggregates/thing/" + m.AggregateID: 1, "/aggregates/" + url.PathEscape(evil) + "/x": 1,
	} {
		status, header, body := c.do(t, http.MethodGet, path, nil)
		for status == http.StatusSeeOther { // a search with one result
			status, header, body = c.do(t, http.MethodGet, header.Get("Location"), nil)
		}
		if status != http.StatusOK {
			t.Errorf("GET %s: %d", path, status)
		}
		if got := strings.Count(body, "<script>alert"); got < times {
			t.Errorf("GET %s shows the text %d times, want at least %d", path, got, times)
		}
		if got, want := header.Get("Content-Security-Policy"), "default-src 'none'; script-src 'self'; style-src 'self';"; !strings.HasPrefix(got, want) {
			t.Errorf("GET %s has the policy %q, want %q…", path, got, want)
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.url+path, http.NoBody)
		must(t, err)
		response, err := http.DefaultClient.Do(request)
		must(t, err)
		raw, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if found := inline.FindString(string(raw)); err != nil || found != "" || strings.Contains(string(raw), "<script>") {
			t.Errorf("GET %s has %q, or a script of others: %v", path, found, err)
		}
	}
}

// A page of another origin cannot act, not even under a name that resolves to this address.
func TestRefusesOtherOrigins(t *testing.T) {
	t.Parallel()
	pool, target := newDatabase(t)
	park(t, pool, 1, "refused")
	c := start(t, target)
	form := url.Values{"action": {"retry"}, "type": {"thing"}, "until": {later}, "reason": {"none"}}
	for _, header := range [][]string{
		{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example.com"},
		{"Host", "evil.example.com", "Origin", "http://evil.example.com"},
	} {
		if status, _, body := c.do(t, http.MethodPost, "/actions", form, header...); status != http.StatusForbidden {
			t.Errorf("%v: %d, want %d\n%s", header, status, http.StatusForbidden, body)
		}
	}
	if n := parked(t, pool); n != 1 {
		t.Errorf("%d aggregates are parked, want 1", n)
	}
	if status, _, _ := c.do(t, http.MethodPost, "/actions", form, "Host", "console.example.com", "Sec-Fetch-Site", "same-origin"); status != http.StatusSeeOther {
		t.Errorf("its own page: %d, want %d", status, http.StatusSeeOther)
	}
}

// An action is counted first, needs a reason, does exactly what was confirmed, and is in the audit.
func TestActs(t *testing.T) {
	t.Parallel()
	pool, target := newDatabase(t)
	park(t, pool, 2500, "too large: ")
	park(t, pool, 3, "no such field: ")
	c := start(t, target)
	cause := regexp.MustCompile(`\?cause=([0-9a-f]+)`).FindStringSubmatch(c.get(t, "/stuck"))
	if cause == nil {
		t.Fatal("the page has no cause")
	}
	if body := c.get(t, "/stuck?cause="+cause[1]); strings.Contains(body, "no such field") || !strings.Contains(body, "There are more.") {
		t.Errorf("the items of a cause:\n%.5000s", body)
	}
	form := url.Values{"action": {"retry"}, "cause": {cause[1]}}
	refused := func(name, want string) {
		t.Helper()
		status, _, body := c.do(t, http.MethodPost, "/actions", form)
		if status != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("%s: %d, want %d with %q\n%s", name, status, http.StatusBadRequest, want, body)
		}
		if n := parked(t, pool); n != 2503 {
			t.Fatalf("%s: %d are parked, want all", name, n)
		}
	}
	refused("what nobody has counted", "until: must be when")
	count := c.get(t, "/actions?action=retry&cause="+cause[1])
	shows(t, count, "Retry 2\u202f500?")
	form.Set("until", counted(t, count))
	refused("without a reason", "The reason: must say why")
	form.Set("reason", strings.Repeat("因", 501))
	refused("with a reason that is too long", "in 1 to 500 characters")
	form.Set("reason", strings.Repeat("因", 500-len("the limit was raised"))+"the limit was raised")
	park(t, pool, 2502, "too large: 0") // after the count
	shows(t, c.act(t, form), "2\u202f500</td>", "the limit was raised")
	if n := parked(t, pool); n != 2505 {
		t.Errorf("%d are parked, want those that came later, and the 3 of the other cause", n)
	}
	form.Set("until", later)
	c.act(t, form)
	if n := parked(t, pool); n != 3 {
		t.Errorf("%d are parked, want the 3 of the other cause", n)
	}
	shows(t, c.get(t, "/audit"), "the limit was raised", operate.OperatorName(), "by console", "2\u202f500", "2\u202f502")
	shows(t, c.get(t, "/audit?text=RAISED"), "the limit was raised")
	if body := c.get(t, "/audit?text=lowered"); strings.Contains(body, "the limit was raised") {
		t.Errorf("the audit has an entry without the text:\n%s", body)
	}
	park(t, pool, operate.MostItems+1, "many: ")
	pgtest.Execute(t, pool, "INSERT INTO video_catalog.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, last_error, next_retry_at) VALUES ('thing', 'blocked', 0, 3, 'busy', now() + interval '1 hour')")
	shows(t, c.get(t, "/actions?action=retry&cause=busy"), "Retry 1?")
	shows(t, c.get(t, "/actions?action=skip&cause=busy"), "Nothing matches", "by the id of the event: 1")
	shows(t, c.get(t, "/actions?action=retry&type=thing"), "At most 10\u202f000 of each side are done at once")
	const skipsAll = `value="retry">Retry…</button> <button name="action" value="skip">Skip…</button></form>` + "\n" + `<form class="filter">`
	for query, skips := range map[string]bool{"": true, "type=thing": true, "cause=many": true, "aggregate=" + oneParked(t, pool): false} {
		if body := c.get(t, "/stuck?"+query); strings.Contains(body, skipsAll) != skips {
			t.Errorf("with the filter %q the page offers to skip all that match, or does not:\n%.3000s", query, body)
		}
	}
	for query, want := range map[string]string{"action=drop": "action: must be", "action=skip&aggregate=1": "id: must name"} {
		if status, _, body := c.do(t, http.MethodGet, "/actions?"+query, nil); status != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("GET %s: %d, want %d with %q\n%s", query, status, http.StatusBadRequest, want, body)
		}
	}
}

// An action changes nothing that began to wait after the count.
func TestLeavesWhatCameLater(t *testing.T) {
	t.Parallel()
	pool, target := newDatabase(t)
	park(t, pool, 1, "refused")
	setAside(t, pool, made(t, pool, "Good"), "not known yet")
	form := url.Values{"action": {"skip"}, "until": {time.Now().Add(-time.Hour).Format(time.RFC3339Nano)}, "reason": {"test"}}
	status, _, body := start(t, target).do(t, http.MethodPost, "/actions", form)
	if status != http.StatusBadRequest || !strings.Contains(body, "Nothing matches") || parked(t, pool) != 1 || pgtest.Count(t, pool, "SELECT count(*) FROM video_catalog_read.quarantine") != 1 {
		t.Errorf("POST = %d, %d parked, want that nothing matches\n%s", status, parked(t, pool), body)
	}
}

// A console that is closed in the middle of an action changes nothing. The same action succeeds
// when it is run again.
func TestIsClosedInTheMiddle(t *testing.T) {
	t.Parallel()
	pool, target := newDatabase(t)
	park(t, pool, 25, "too large: ")
	hold, err := pool.Begin(t.Context())
	must(t, err)
	defer hold.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it changes nothing
	pgtest.Execute(t, hold, "SELECT FROM video_catalog.outbox_blocked WHERE aggregate_id = (SELECT max(aggregate_id) FROM video_catalog.outbox_blocked) FOR UPDATE")
	form := url.Values{"action": {"retry"}, "type": {"thing"}, "until": {later}, "reason": {"the limit was raised"}}
	c := start(t, target)
	var posting sync.WaitGroup
	posting.Go(func() {
		if response, err := http.PostForm(c.url+"/actions", form); err == nil { // else the console has cut it off
			response.Body.Close()
		}
	})
	const locked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
	pgtest.Eventually(t, time.Minute, "the action waits", func() bool { return pgtest.Count(t, pool, locked) == 1 })
	if err := c.stop(); err != nil {
		t.Errorf("the console ended with %v", err)
	}
	posting.Wait()
	must(t, hold.Rollback(t.Context()))
	pgtest.Eventually(t, time.Minute, "its transaction has ended", func() bool {
		return pgtest.Count(t, pool, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()") == 0
	})
	const audited = "SELECT coalesce(sum(items), 0) FROM video_catalog.audit"
	if left, items := parked(t, pool), pgtest.Count(t, pool, audited); left != 25 || items != 0 {
		t.Errorf("%d are parked, %d items in the audit, want 25 and none", left, items)
	}
	start(t, target).act(t, form)
	if left, items := parked(t, pool), pgtest.Count(t, pool, audited); left != 0 || items != 25 {
		t.Errorf("%d are parked, %d items in the audit, want none and 25", left, items)
	}
}

// A message that cannot be applied stays, and is shown with its cause. The others are applied.
func TestShowsPartialFailure(t *testing.T) {
	t.Parallel()
	pool, target := newDatabase(t)
	good, bad := made(t, pool, "Good"), made(t, pool, "Bad")
	bad.Payload = []byte("bad")
	setAside(t, pool, good, "not known yet")
	setAside(t, pool, bad, "not known yet")
	pgtest.Execute(t, pool, receive, "shelf", bad.ID) // as if another consumer had applied it
	c := start(t, target)
	shows(t, c.get(t, "/stuck"), "Good", "Bad", "quarantine 2")
	shows(t, c.get(t, "/aggregates/thing/"+bad.AggregateID), `<span title="by shelf">after`, `<a class="missing" href="/stuck?id=2">quarantined</a>`)
	body := c.act(t, url.Values{"action": {"retry"}, "type": {"thing"}, "until": {later}, "reason": {"a newer build"}})
	shows(t, body, "1 of 2 is done.", "1 could not be done", "message 2: decode event: too new")
	if n := pgtest.Count(t, pool, "SELECT count(*) FROM video_catalog_read.quarantine WHERE payload = 'bad'"); n != 1 {
		t.Errorf("%d messages are left, want the bad one", n)
	}
	shows(t, c.get(t, "/aggregates/thing/"+good.AggregateID), `<span title="by shelf">after`)
}

// A user of support_ro sees every page. The pages say why this user cannot act.
func TestOnlyReads(t *testing.T) {
	t.Parallel()
	pool, _, m := newEvil(t)
	for name, settings := range map[string][]string{
		"as docs/database.md says":        {"ALTER ROLE %s SET default_transaction_read_only = on"},
		"without its transaction setting": nil,
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, user(t, pool, "support_ro", settings...))
			t.Cleanup(func() { _ = c.stop() }) // before its user is dropped
			for _, path := range []string{"/", "/stuck", "/stuck?id=1", "/audit", "/aggregates", "/aggregates/thing/" + m.AggregateID} {
				body := c.get(t, path)
				if strings.Contains(body, `action="/actions"`) {
					t.Errorf("GET %s has a button that acts", path)
				}
				if strings.Contains(body, "permission denied") || !strings.Contains(body, "only reads") {
					t.Errorf("GET %s:\n%s", path, body)
				}
			}
			for name := range actions {
				form := url.Values{"action": {name}, "type": {"thing"}, "until": {later}, "reason": {"none"}}
				if status, _, body := c.do(t, http.MethodPost, "/actions", form); status != http.StatusForbidden || !strings.Contains(body, "may only read") {
					t.Errorf("%s: %d\n%s", name, status, body)
				}
			}
		})
	}
}

// The console leaves one of the three connections of a person, and gives back the others.
func TestLeavesConnections(t *testing.T) {
	t.Parallel()
	pool, _ := newDatabase(t)
	target := user(t, pool, "support_ro")
	c := start(t, target)
	t.Cleanup(func() { _ = c.stop() })
	var loading sync.WaitGroup
	for range 10 {
		for _, path := range []string{"/", "/stuck", "/audit"} {
			loading.Go(func() {
				if status, _, _ := c.do(t, http.MethodGet, path, nil); status != http.StatusOK {
					t.Errorf("GET %s: %d", path, status)
				}
			})
		}
	}
	loading.Wait()
	conn, err := pgx.Connect(t.Context(), target)
	if err != nil {
		t.Fatalf("the console leaves no connection: %v", err)
	}
	conn.Close(t.Context())
	pgtest.Eventually(t, time.Minute, "it has given back its connections", func() bool {
		return pgtest.Count(t, pool, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename LIKE 'person%'") == 0
	})
}

// A user with the roles of the service acts, as the owner of the schemas does. A skipped event is
// called skipped, and not published.
func TestActsWithTheRolesOfTheService(t *testing.T) {
	t.Parallel()
	pool, _, m := newEvil(t)
	refused := m
	refused.ID, refused.Version = uuid.Must(uuid.NewV7()), 2
	pgtest.Append(t, pool, refused)
	pgtest.Execute(t, pool, "WITH gone AS (DELETE FROM video_catalog.outbox_pending WHERE id = $1 RETURNING *) INSERT INTO video_catalog.outbox_deferred SELECT * FROM gone", refused.ID)
	pgtest.Execute(t, pool, "INSERT INTO video_catalog.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, last_error, parked_at) VALUES ('thing', $1, 0, 10, 'too large', now())", m.AggregateID)
	c := start(t, user(t, pool, "video_catalog_rw, video_catalog_read_rw"))
	t.Cleanup(func() { _ = c.stop() })
	path := "/aggregates/thing/" + m.AggregateID
	shows(t, c.get(t, path), `aside">refused`, "Version 2 was not published", "the broker has refused it 10 times", "too large")
	if body := c.act(t, url.Values{"action": {"skip"}, "type": {"thing"}, "until": {later}, "reason": {"given up"}}); strings.Contains(body, "Stopped") || strings.Count(body, ">given up</td>") != 2 {
		t.Errorf("the action does not have an entry on each side:\n%s", body)
	}
	shows(t, c.get(t, path), `aside">skipped`)
	if n := pgtest.Count(t, pool, "SELECT count(*) FROM video_catalog_read.quarantine"); n != 0 {
		t.Errorf("%d messages are in quarantine, want none", n)
	}
}

// An aggregate is found by its id and by a part of its title. Its page shows where its events are,
// who called each command, and which event led to which.
func TestShowsAnAggregate(t *testing.T) {
	t.Parallel()
	pool, target := newDatabase(t)
	first := made(t, pool, "The Third Man")
	second := first
	second.ID, second.Version, second.Type = uuid.Must(uuid.NewV7()), 2, "ThingChanged"
	pgtest.Append(t, pool, second)
	pgtest.Execute(t, pool, "DELETE FROM video_catalog.outbox_pending WHERE id = $1", first.ID)
	pgtest.Execute(t, pool, "UPDATE video_catalog.outbox SET caller = 'ann\\x00@example.com' WHERE id = $1", first.ID)
	foreign := uuid.Must(uuid.NewV7())
	pgtest.Execute(t, pool, "UPDATE video_catalog.outbox SET causation_id = $2, correlation_id = $3 WHERE id = $1", second.ID, first.ID, foreign)
	for _, m := range []envelope.Message{first, second} {
		pgtest.Execute(t, pool, receive, "shelf", m.ID)
	}
	c := start(t, target, "--traces", "https://traces.example.com/of;id={trace_id}?project=x")
	path := "/aggregates/thing/" + first.AggregateID
	for _, text := range []string{"third m", first.AggregateID} {
		status, header, _ := c.do(t, http.MethodGet, "/aggregates?q="+url.QueryEscape(text), nil)
		if status != http.StatusSeeOther || header.Get("Location") != path {
			t.Errorf("a search for %q: %d %s", text, status, header.Get("Location"))
		}
	}
	body := c.get(t, path)
	shows(t, body, "<h1>The Third Man</h1>", `step">published`, `step pending">waiting`, `<span title="by shelf">after`,
		"<td>ThingMade<br><span class=\"dim\">by ann\ufffd@example.com</span></td>",
		fmt.Sprintf(`after <a href=%q title="event %s of thing %s">ThingMade</a>`, path, first.ID, first.AggregateID),
		fmt.Sprintf(`first <code title="event %s, which is not in this outbox">`, foreign),
		`<a href="https://traces.example.com/of;id=4bf92f3577b34da6a3ce929d0e0e4736?project=x"`)
	if strings.Contains(start(t, target).get(t, path), "traces.example.com") {
		t.Error("the page has a link without a URL")
	}
	// Only a service with the option named reactions has this table.
	pgtest.Execute(t, pool, "CREATE TABLE IF NOT EXISTS video_catalog.inbox (consumer text, event_id uuid, received_at timestamptz DEFAULT now())")
	pgtest.Execute(t, pool, "INSERT INTO video_catalog.inbox (consumer, event_id) VALUES ('shelf', $1)", first.ID)
	const by = `<span title="by shelf">`
	if got, want := strings.Count(c.get(t, path), by), strings.Count(body, by)+1; got != want {
		t.Errorf("the page shows %d effects, want %d: a reaction too", got, want)
	}
	pgtest.Execute(t, pool, "DROP TABLE video_catalog.inbox")
	if got, want := strings.Count(c.get(t, path), by), strings.Count(body, by); got != want {
		t.Errorf("without the option the page shows %d effects, want %d", got, want)
	}
	shows(t, c.get(t, "/aggregates/thing/none"), "The outbox has no event of this aggregate.")
	shows(t, c.get(t, "/"), "The Third Man", "ThingChanged")
}

// The overview has the pending events, the stuck items with their age, and how long events take.
func TestShowsNow(t *testing.T) {
	t.Parallel()
	pool, target := newDatabase(t)
	c := start(t, target)
	shows(t, c.get(t, "/"), "Nothing has been written", "No event has been applied.", "as of <time")
	pgtest.Execute(t, pool, receive, "shelf", uuid.MustParse("00000000-0000-8000-8000-000000000001")) // a snapshot
	m := made(t, pool, "Ran")
	pgtest.Execute(t, pool, receive, "shelf", m.ID)
	park(t, pool, 7, "refused")
	// A snapshot is pending, too. It has no age: its state may be of long ago.
	pgtest.Execute(t, pool, `INSERT INTO video_catalog.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at, repeat)
		SELECT lane, gen_random_uuid(), 'thing', 'old', 'Snapshot', 1, 1, '', '2000-01-01', 'snapshot' FROM video_catalog.outbox_lanes`)
	pgtest.Eventually(t, time.Minute, "the sample is taken again", func() bool { return strings.Contains(c.get(t, "/"), "7 of them parked") })
	body := c.get(t, "/")
	if lag := regexp.MustCompile(`<dt>lag[^<]*</dt><dd>[^<]*(h|d)</dd>`).FindString(body); lag != "" {
		t.Errorf("the page says %q: a snapshot has no time", lag)
	}
	shows(t, body, `bad">7</b>`, "The last event was applied at <time", "<strong>16</strong><span>pending", "The oldest pending event waits since ", "<strong>1</strong><span>applied in five minutes", "lag, 99 %", `<svg class="flow up" viewBox`)
	seek(t, pool)
	pgtest.Eventually(t, time.Minute, "it says that nothing was applied since the seek", func() bool { return strings.Contains(c.get(t, "/"), "No event applied since the seek at <time") })
}

// While another program reads the log, no page says that an event is published.
func TestSaysWhatIsHandedToTheLog(t *testing.T) {
	t.Parallel()
	pool, target := newDatabase(t)
	m := made(t, pool, "The Third Man")
	pgtest.Execute(t, pool, "DELETE FROM video_catalog.outbox_pending")
	c := start(t, target)
	path := "/aggregates/thing/" + m.AggregateID
	shows(t, c.get(t, path), `step">published</span>`)
	pgtest.Execute(t, pool, "UPDATE video_catalog_migrations SET needed = 'events are handed to the log' WHERE version_id = 1") // as an option does
	shows(t, start(t, target).get(t, "/"), "events are handed to the log.")
	shows(t, c.get(t, path), `step pending">published, or handed to the log</span>`, "Now events are handed to the log.")
}

// A published event of more than a minute ago that a consumer of the query side lacks is a problem, unless another line says why.
func TestSaysWhatIsNotApplied(t *testing.T) {
	t.Parallel()
	pool, target := newDatabase(t)
	old := time.Now().Add(-2 * time.Minute)
	m := envelope.Message{ID: uuidFloor(old), AggregateType: "thing", AggregateID: uuid.NewString(), Type: "ThingMade", Version: 1, SchemaVersion: 1, OccurredAt: old}
	pgtest.Append(t, pool, m)
	park(t, pool, 1, "refused") // an older event of another aggregate
	s := &server{sides: sides{commands: pool, queries: pool, projections: map[string][]string{"thing": {"shelf"}}, retention: time.Hour}}
	s.Consumers, s.Outbox, s.Inbox = []string{"shelf", "reaction"}, pg.NewOutbox(pool), pg.NewInbox(pool)
	earlier := uuidFloor(old.Add(-time.Hour)).String()
	for _, step := range []struct{ name, want, sql string }{
		{"it is pending", "", "SELECT"},
		{"it is published, before the subscription was created", "", "DELETE FROM video_catalog.outbox_pending"},
		{"an earlier event was delivered after it", "", "INSERT INTO video_catalog_read.inbox (consumer, event_id) VALUES ('shelf', 'EARLIER')"},
		{"it is published", "shelf", "UPDATE video_catalog_read.inbox SET received_at = now() - interval '3 minutes'"},
		{"it is deferred", "", "INSERT INTO video_catalog.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, last_error, parked_at) VALUES ('thing', 'AGGREGATE', 0, 10, 'too large', now())"},
		{"it is published later", "shelf", "DELETE FROM video_catalog.outbox_blocked WHERE aggregate_id = 'AGGREGATE'"},
		{"it is skipped", "", "INSERT INTO video_catalog.outbox_skipped (event_id, aggregate_type, aggregate_id, seq, actor, reason) VALUES ('EVENT', 'thing', 'AGGREGATE', 1, 'ann', 'test')"},
		{"it is not skipped", "shelf", "DELETE FROM video_catalog.outbox_skipped"},
		{"it is in quarantine", "", `INSERT INTO video_catalog_read.quarantine (consumer, message_id, ordering_key, attributes, payload, reason, publish_time)
			VALUES ('shelf', '1', '1', '{"event_id": "EVENT"}', '', 'too new', now())`},
		{"its message is deleted", "shelf", "DELETE FROM video_catalog_read.quarantine"},
		{"a consumer of the command side has it", "shelf", "INSERT INTO video_catalog_read.inbox (consumer, event_id) VALUES ('reaction', 'EVENT')"},
		{"it is applied", "", "UPDATE video_catalog_read.inbox SET consumer = 'shelf'"},
		{"nothing has it", "shelf", "DELETE FROM video_catalog_read.inbox WHERE event_id = 'EVENT'"},
	} {
		pgtest.Execute(t, pool, strings.NewReplacer("EARLIER", earlier, "EVENT", m.ID.String(), "AGGREGATE", m.AggregateID).Replace(step.sql))
		if got := s.measure(t.Context()); got.Behind != step.want || got.CommandsErr+got.QueriesErr != "" {
			t.Errorf("%s: %q is behind, want %q: %s%s", step.name, got.Behind, step.want, got.CommandsErr, got.QueriesErr)
		}
	}
	c := start(t, target)
	shows(t, c.get(t, "/"), `not applied by shelf: does a process with the role projector run?</span> <a href="/#view">`, `id="view"`)
	s.retention = time.Minute
	if got := s.measure(t.Context()); got.Behind != "" {
		t.Errorf("%q is behind, and its inbox may have forgotten the event", got.Behind)
	}
	s.retention = time.Hour
	seek(t, pool)
	if got := s.measure(t.Context()); got.Behind != "" {
		t.Errorf("after a seek %q is behind", got.Behind)
	}
}

// The bar has what the alerts have, also of options that a service may lack: here their tables are made.
func TestSaysWhatAlertsSay(t *testing.T) {
	t.Parallel()
	pool, target := newDatabase(t)
	c := start(t, target)
	if body := c.get(t, "/"); strings.Contains(body, `class="problems"`) {
		t.Errorf("without a problem the page has some:\n%s", body)
	}
	for _, sql := range []string{
		`CREATE TABLE IF NOT EXISTS video_catalog.timers (aggregate_type text, aggregate_id uuid, name text, due_at timestamptz, attempts int DEFAULT 0, causation_id uuid, correlation_id uuid)`,
		`INSERT INTO video_catalog.timers (aggregate_type, aggregate_id, name, due_at, attempts, causation_id, correlation_id)
			SELECT 'thing', gen_random_uuid(), 'expire', now() + n * interval '2 minutes', greatest(n, 0), gen_random_uuid(), gen_random_uuid() FROM generate_series(-1, 2) n`,
		`CREATE TABLE IF NOT EXISTS video_catalog_read.comparisons (aggregate_type text, claim bigint, next_time timestamptz, begin_time timestamptz, after_id uuid,
			differences bigint DEFAULT 0, last_time timestamptz, last_compared bigint DEFAULT 0, last_differences bigint DEFAULT 0)`,
		`INSERT INTO video_catalog_read.comparisons (aggregate_type, claim, next_time, begin_time, after_id, last_time, last_compared, last_differences, differences)
			VALUES ('thing', 1, now(), now(), gen_random_uuid(), now(), 17000, 410, 3), ('other', 1, now(), now(), gen_random_uuid(), NULL, 0, 0, 0)`,
		`CREATE TABLE IF NOT EXISTS video_catalog_read.known_database (identity text)`,
		`INSERT INTO video_catalog_read.known_database (identity) SELECT '' WHERE NOT EXISTS (SELECT FROM video_catalog_read.known_database)`,
		`UPDATE video_catalog_read.known_database SET identity = 'before'`,
		`GRANT SELECT ON video_catalog.timers, video_catalog_read.comparisons, video_catalog_read.known_database TO support_ro`,
		`GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA video_catalog_read TO support_ro`,
		`DO $$ DECLARE p text; BEGIN
			FOR p IN SELECT relname FROM pg_class WHERE relname ~ '^outbox_p[0-9]{8}$' AND substr(relname, 9)::date > (now() AT TIME ZONE 'UTC')::date + 2 LOOP
				EXECUTE 'DROP TABLE video_catalog.' || p;
			END LOOP;
		END $$`,
	} {
		pgtest.Execute(t, pool, sql)
	}
	pgtest.Eventually(t, time.Minute, "the sample is taken again", func() bool { return strings.Contains(c.get(t, "/"), "A database was replaced") })
	shows(t, c.get(t, "/"), "1 timer is due for more than a minute", "2 timers have failed", "The outbox has partitions for 2 more days",
		"410 entries differ from their owner, of type thing", "thing: 17\u202f000 rows were compared with their owner until <time", ", 410 differ.",
		"other: no comparison with its owner has ended, 0 differ.")
	shows(t, start(t, user(t, pool, "support_ro")).get(t, "/"), "A database was replaced")
}

// The page and the command show say what the projection has of an aggregate, also after an edit by hand and a repair.
func TestSaysWhatTheProjectionHas(t *testing.T) {
	t.Parallel()
	pool, target := newDatabase(t)
	m := made(t, pool, "The Third Man")
	c := start(t, target)
	for _, step := range []struct{ sql, want string }{
		{"CREATE TABLE video_catalog_read.thing_projection (thing_id uuid PRIMARY KEY, event_id uuid, version bigint, label text, updated_at timestamptz)", "The projection lacks it: its owner has version 1."},
		{"INSERT INTO video_catalog_read.thing_projection SELECT id, id, version, label, now() FROM video_catalog.things", "The projection has version 1 of 1."},
		{"UPDATE video_catalog.things SET version = 2", "The projection has version 1 of 2: it lacks version 2."},
		{"UPDATE video_catalog.things SET version = 4", "The projection has version 1 of 4: it lacks versions 2 to 4."},
		{"UPDATE video_catalog_read.thing_projection SET version = 4, label = 'edited'", "The projection has version 4 of 4, and differs from its owner in label."},
		{"UPDATE video_catalog_read.thing_projection SET version = 5", "The projection has version 5 of 4."},
		{"UPDATE video_catalog_read.thing_projection SET version = 4, label = 'The Third Man', event_id = NULL, updated_at = '2026-01-02 03:04:05Z'",
			"The projection has version 4 of 4; a repair wrote it at 2026-01-02 03:04:05 UTC."},
		{"DELETE FROM video_catalog.things", "The projection has version 4, and its owner has no such aggregate; a repair wrote it at"},
	} {
		pgtest.Execute(t, pool, step.sql)
		shows(t, c.get(t, "/aggregates/thing/"+m.AggregateID), "<p>"+step.want)
		shows(t, command(t, target, 0, "show", "thing", m.AggregateID), step.want)
	}
	command(t, target, app.ExitNothing, "show", "bogus", m.AggregateID)
	command(t, target, app.ExitNothing, "show", "thing", uuid.NewString())
}

// seek leaves what a seek leaves: an empty inbox, and an entry in the audit.
func seek(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	pgtest.Execute(t, pool, "DELETE FROM video_catalog_read.inbox")
	pgtest.Execute(t, pool, `INSERT INTO video_catalog_read.audit (action_id, actor, via, action, filter, reason, items, before)
		VALUES (gen_random_uuid(), 'ann', 'command', 'inbox.seek', '{}', 'rows were lost', 1, '[]')`)
}

// With --json every command prints what its text has, in objects whose keys are in snake case.
func TestJSONHasWhatTheTextHas(t *testing.T) {
	t.Parallel()
	pool, target := newDatabase(t)
	m := made(t, pool, "The Third Man")
	pgtest.Execute(t, pool, receive, "shelf", m.ID)
	pgtest.Execute(t, pool, "WITH gone AS (DELETE FROM video_catalog.outbox_pending RETURNING *) INSERT INTO video_catalog.outbox_deferred SELECT * FROM gone")
	pgtest.Execute(t, pool, `INSERT INTO video_catalog.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, last_error, next_retry_at) VALUES ('thing', $1, 0, 3, 'too large', now() + interval '1 hour')`, m.AggregateID)
	setAside(t, pool, made(t, pool, "Good"), "not known yet")
	command(t, target, 0, "skip", "--cause", "not known", "--why", "given up", "--by", "ann")
	setAside(t, pool, m, "too new")
	setAside(t, pool, made(t, pool, "Late"), "too new")
	pgtest.Execute(t, pool, "ALTER TABLE video_catalog.things ADD purge_time timestamptz DEFAULT now()")
	values := regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d|too \w+|not known|given up|ann|The Third Man|It is erased`)
	for args, want := range map[string][]string{
		"find third": {`"title":"The Third Man"`}, "show thing " + m.AggregateID: {`"retry_time":`, `"erasure":`, `"quarantined":[`, `"audit":[`},
		"audit given": {`"before":[{`, `"filter":{"cause":"not known"}`}, "stuck --limit 1": {`"total":3`}, "status": {`"newest_apply_time":"2`}, "pending 9": {`"deferred":true`, `"lane":`}, "retry --all --dry-run": {`"matched":3`},
	} {
		given := strings.Fields(args)
		text, lines := command(t, target, 0, given...), command(t, target, 0, append(given, "--json")...)
		shows(t, lines, want...)
		for _, value := range values.FindAllString(text, -1) {
			if !strings.Contains(lines, value) {
				t.Errorf("%s --json lacks %q:\n%s", args, value, lines)
			}
		}
		for line := range strings.Lines(lines) {
			if strings.Count(line, "{") == 0 || regexp.MustCompile(`[{,]"[^"]*[A-Z][^"]*":`).MatchString(line) {
				t.Errorf("%s --json has a line that is no object in snake case: %s", args, line)
			}
		}
	}
}

// The events that wait longest come first, also events of blocked aggregates. A snapshot waits too, but has no age.
func TestListsWhatWaits(t *testing.T) {
	t.Parallel()
	pool, target := newDatabase(t)
	shows(t, command(t, target, 0, "pending"), "AGE")
	for i, of := range []string{"old", "older", "oldest", "snapshot", "new"} {
		m := made(t, pool, of)
		pgtest.Execute(t, pool, "UPDATE video_catalog.outbox_pending SET occurred_at = now() - $1 * interval '1 hour', event_type = $2 WHERE id = $3", i+1, of, m.ID)
	}
	pgtest.Execute(t, pool, "UPDATE video_catalog.outbox_pending SET occurred_at = now() WHERE event_type = 'new'")
	pgtest.Execute(t, pool, "UPDATE video_catalog.outbox_pending SET repeat = 'snapshot' WHERE event_type = 'snapshot'")
	pgtest.Execute(t, pool, `WITH gone AS (DELETE FROM video_catalog.outbox_pending WHERE event_type = 'older' RETURNING *)
		INSERT INTO video_catalog.outbox_deferred SELECT * FROM gone`)
	columns := regexp.MustCompile(`(?m)^(3h0m|2h0m|1h0m|0|snapshot)\S* +[0-7] +thing +[0-9a-f-]{36} +(\w+) +1 +(pending|deferred)$`)
	for n, want := range map[string]string{
		"50": "3h0m oldest pending, 2h0m older deferred, 1h0m old pending, 0 new pending, snapshot snapshot pending", "2": "3h0m oldest pending, 2h0m older deferred",
	} {
		var got []string
		for _, row := range columns.FindAllStringSubmatch(command(t, target, 0, "pending", n), -1) {
			got = append(got, strings.Join(row[1:], " "))
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("pending %s = %q, want %s", n, got, want)
		}
	}
	for _, n := range []string{"0", "-1", "10001", "all"} {
		command(t, target, app.ExitUsage, "pending", n)
	}
}

// A search that reached a limit says so, and does not say that nothing was found.
func TestSaysWhatASearchDidNotRead(t *testing.T) {
	t.Parallel()
	pool, target := newDatabase(t)
	made(t, pool, "The Third Man")
	c := start(t, target)
	fill := func(n int) {
		pgtest.Execute(t, pool, "INSERT INTO video_catalog.things SELECT ('ffffffff' || substr(gen_random_uuid()::text, 9))::uuid, 1, 'made', 'Other ' || n FROM generate_series(1, $1::int) n", n)
	}
	command(t, target, app.ExitNothing, "find", "fourth")
	command(t, target, app.ExitNothing, "find", "thing") // the outbox has it in every row, and is no table of aggregates
	shows(t, command(t, target, 0, "find", "third"), "thing ", "The Third Man")
	fill(foundTitles + 1)
	shows(t, command(t, target, 0, "find", "other"), cutSearch)
	body := c.get(t, "/aggregates?q=other")
	shows(t, body, cutSearch)
	if got := strings.Count(body, `<td class="wrap">`); got != foundTitles {
		t.Errorf("the page shows %d titles, want %d", got, foundTitles)
	}
	if out := command(t, target, 0, "find", "third"); strings.Contains(out, cutSearch) {
		t.Errorf("a search without a limit says that there may be more:\n%s", out)
	}
	fill(readTitles)
	shows(t, command(t, target, 0, "find", "third"), cutSearch)
	if body = c.get(t, "/aggregates?q=third"); strings.Contains(body, "Nothing has") || !strings.Contains(body, cutSearch) {
		t.Errorf("the page does not say that it has not read all:\n%s", body)
	}
	shows(t, c.get(t, "/aggregates?q=er+20000"), cutSearch) // no redirect to the only one
}

// The page and the command show say what they did not read, and how far an erasure is.
func TestSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	pool, target := newDatabase(t)
	m := made(t, pool, "The Third Man")
	purge := m
	purge.ID, purge.Version, purge.Type = uuid.Must(uuid.NewV7()), 2, "ThingPurged"
	pgtest.Append(t, pool, purge)
	pgtest.Execute(t, pool, "DELETE FROM video_catalog.outbox_pending")
	c := start(t, target)
	says := func(name string, has bool, text string) {
		t.Helper()
		for where, out := range map[string]string{"page": c.get(t, "/aggregates/thing/"+m.AggregateID), "command": command(t, target, 0, "show", "thing", m.AggregateID)} {
			if strings.Contains(out, text) != has {
				t.Errorf("%s: the %s has %q: %t, want %t\n%s", name, where, text, !has, has, out)
			}
		}
	}
	const unsure, cut, refused = "one that is shown as published may still be waiting", "Older events were not read", "was refused"
	says("all was read", false, unsure)
	says("all was read", false, cut)
	pgtest.Execute(t, pool, `INSERT INTO video_catalog.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
		SELECT 0, gen_random_uuid(), 'thing', 'other', 'ThingMade', 1, 1, '', now() FROM generate_series(1, $1::int)`, readPending)
	says("the broker is unavailable", true, unsure)
	pgtest.Execute(t, pool, "INSERT INTO video_catalog.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, last_error, next_retry_at) VALUES ('thing', $1, 0, 0, '', now())", m.AggregateID)
	says("the head was skipped", false, refused)

	// Only a service with the example has this table.
	pgtest.Execute(t, pool, "DROP TABLE IF EXISTS video_catalog.erasures")
	pgtest.Execute(t, pool, "ALTER TABLE video_catalog.things ADD purge_time timestamptz")
	pgtest.Execute(t, pool, "UPDATE video_catalog.things SET label = '', purge_time = now()")
	says("it is purged, without the table", true, "It is erased")
	pgtest.Execute(t, pool, "CREATE TABLE video_catalog.erasures AS SELECT 'thing'::text AS aggregate_type, $1::text AS aggregate_id", m.AggregateID)
	says("it is purged", true, "It is being erased")
	for _, out := range []string{c.get(t, "/aggregates/thing/"+m.AggregateID), command(t, target, 0, "show", "thing", m.AggregateID)} {
		if found := regexp.MustCompile(`(?m)^(1 .* being erased |<tr><td class="n">1</td>.*aside">being erased<)`).FindString(out); found == "" {
			t.Errorf("version 1 is not being erased:\n%s", out)
		}
	}
	says("it is purged", false, "It is erased")
	pgtest.Execute(t, pool, "DELETE FROM video_catalog.outbox WHERE id = $1", m.ID)
	pgtest.Execute(t, pool, "DELETE FROM video_catalog.erasures")
	says("the maintenance has run", true, "It is erased")
	says("the maintenance has run", false, cut)
	pgtest.Execute(t, pool, "UPDATE video_catalog.things SET purge_time = NULL")
	says("there are older events", true, cut)
}

// Without a database every page has status 503 and the reason. Later the console recovers by itself.
func TestWithoutDatabase(t *testing.T) {
	t.Parallel()
	pool, target := newDatabase(t)
	name := pool.Config().ConnConfig.Database
	admin, err := pgx.Connect(t.Context(), strings.Replace(pgtest.Direct(t, target), "/"+name, "/postgres", 1))
	must(t, err)
	defer admin.Close(context.WithoutCancel(t.Context()))
	allow := func(connections bool) {
		pgtest.Execute(t, admin, fmt.Sprintf("ALTER DATABASE %s ALLOW_CONNECTIONS %t", name, connections))
	}
	c := start(t, target)
	c.get(t, "/")
	allow(false)
	pgtest.Execute(t, admin, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name)
	for path, want := range map[string]string{
		"/": "The command side cannot be read", "/stuck": "not available", "/audit": "not available", "/actions?action=retry": "not available",
		"/aggregates/thing/" + uuid.NewString(): "not available", "/aggregates?q=text": "not available",
	} {
		pgtest.Eventually(t, time.Minute, path+" says that the database is unavailable", func() bool {
			status, _, body := c.do(t, http.MethodGet, path, nil)
			return status == http.StatusServiceUnavailable && strings.Contains(body, want) && !strings.Contains(body, "Nothing is stuck")
		})
	}
	allow(true)
	pgtest.Eventually(t, time.Minute, "the page is as before", func() bool {
		status, _, _ := c.do(t, http.MethodGet, "/", nil)
		return status == http.StatusOK
	})
}

// Wrong arguments are refused as wrong usage, before a database is opened.
func TestRefusesWrongArguments(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"now"}, {"--port", "1"}, {"--addr", "here"}, {"--traces", "https://traces.example.com/"}, {"--traces", "javascript:{trace_id}"}} {
		err := program().Run(t.Context(), append([]string{"console"}, args...), []string{"DATABASE_URL=postgres://127.0.0.1:1/none"}, io.Discard, io.Discard)
		if app.ExitCode(err) != app.ExitUsage {
			t.Errorf("console %v = %v, want exit code %d", args, err, app.ExitUsage)
		}
	}
}
