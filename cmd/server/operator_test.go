package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/pg/pgtest"
)

// parkMany makes parked aggregates without any event, one half for each of two causes.
func (s *stack) parkMany(t *testing.T, n int) {
	t.Helper()
	pgtest.Execute(t, s.pool, `
		INSERT INTO video_catalog.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, last_error, parked_at)
		SELECT 'video', 'v' || n, 0, 8, CASE WHEN n % 2 = 0 THEN 'quota of project ' || n || ' is used up' ELSE 'message too large' END, now() - interval '2 hours'
		FROM generate_series(1, $1) n`, n)
}

// parked counts the aggregates that wait for a person.
func (s *stack) parked(t *testing.T) int {
	t.Helper()
	return s.count(t, "SELECT count(*) FROM video_catalog.outbox_blocked WHERE parked_at IS NOT NULL")
}

// blockEvent makes a parked aggregate with one event, and returns the id of the event.
func (s *stack) blockEvent(t *testing.T, id string) (eventID string) {
	t.Helper()
	eventID = uuid.NewString()
	pgtest.Execute(t, s.pool, `
		WITH event AS (
			INSERT INTO video_catalog.outbox_deferred (lane, seq, id, aggregate_type, aggregate_id, event_type, schema_version, version, payload, occurred_at)
			VALUES (0, nextval('video_catalog.outbox_pending_seq_seq'), $2, 'video', $1, 'VideoCreated', 1, 1, '\x00', now())
		)
		INSERT INTO video_catalog.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, last_error, parked_at)
		VALUES ('video', $1, 0, 8, 'refused', now())`, id, eventID)
	return eventID
}

// quarantineMany puts messages into quarantine that this build cannot decode, with ids from 1.
func (s *stack) quarantineMany(t *testing.T, n int) {
	t.Helper()
	pgtest.Execute(t, s.pool, `
		INSERT INTO video_catalog_read.quarantine (consumer, message_id, ordering_key, attributes, payload, reason, publish_time, received_at)
		SELECT 'catalog', 'm' || n, 'k' || n, jsonb_build_object('aggregate_type', 'video'), '\x00', CASE WHEN n = 1 THEN E'not \\xff text' ELSE 'version ' || n || ' is unknown' END, now(), now() - interval '2 hours'
		FROM generate_series(1, $1) n`, n)
}

// The status shows what is stuck and why. A retry of all aggregates makes them due in one transaction,
// which records who did it and why. A second retry finds nothing to do.
func TestStatusAndRetryOfAll(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.parkMany(t, 3000)
	s.quarantineMany(t, 7)
	out, err := s.command(t, "status")
	for _, want := range []string{
		`pending events +0; the oldest that is not blocked: -\n`, `blocked aggregates +3000, of them parked 3000\n`, `messages in quarantine +7\n`, `consumer catalog +its newest event was applied at -\n`,
		`\ncause \w{12} +1500: message too large\n`, `\ncause \w{12} +1500: quota of project \d+ is used up\n`, `\ncause \w{12} +6: version \d is unknown\ncause \w{12} +1: not . text\n`,
	} {
		if !regexp.MustCompile(want).MatchString(out) || err != nil {
			t.Errorf("status = %v, want %s in\n%s", err, want, out)
		}
	}
	if out, err := s.command(t, "status", "--json"); err != nil || !strings.Contains(out, `"blocked":3000,"parked":3000`) || !strings.Contains(out, `{"quarantined":7}`) {
		t.Errorf("status --json = %v, want its numbers in\n%s", err, out)
	}
	pgtest.Execute(t, s.pool, "DELETE FROM video_catalog_read.quarantine")
	retry := []string{"retry", "--all", "--why", "the quota is higher", "--by", "ann"}
	for i, want := range []string{"3000 match; nothing was changed\n", "retry: 3000 of 3000; action ", "0 match; nothing was changed\n"} {
		args := retry
		if i == 0 {
			args = append(args, "--dry-run")
		}
		if out, err := s.command(t, args...); !strings.HasPrefix(out, want) || err != nil {
			t.Errorf("server %s = %q, %v, want %q", strings.Join(args, " "), out, err, want)
		}
		if parked := s.parked(t); parked != []int{3000, 0, 0}[i] {
			t.Errorf("%d aggregates are parked after run %d", parked, i)
		}
	}
	const right = "SELECT count(*) FROM video_catalog.audit WHERE action = 'retry' AND items = 3000 AND jsonb_array_length(before) = 3000 AND actor = 'ann' AND via = 'command' AND reason = 'the quota is higher'"
	if s.audited(t) != 1 || s.count(t, right) != 1 {
		t.Errorf("the audit has %d entries, and not one with 3,000 items, who did it and why", s.audited(t))
	}
}

// Wrong input is refused, and changes nothing. The error names the mistake. No other failure has
// the same exit code.
func TestOperatorMistakesAreRefused(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.blockEvent(t, "v1")
	for _, test := range []struct {
		args []string
		exit int
		want string
	}{
		{[]string{"status", "now"}, app.ExitUsage, `unknown argument "now"`},
		{[]string{"status", "--id", "1"}, app.ExitUsage, "-id"},
		{[]string{"stuck", "video"}, app.ExitUsage, `unknown argument "video"`},
		{[]string{"stuck", "--id", "video"}, app.ExitNothing, "video is not stuck"},
		{[]string{"stuck", "--aggregate", "v3"}, app.ExitNothing, "v3 is not stuck"},
		{[]string{"stuck", "--reason", "x"}, app.ExitUsage, "-reason"},
		{[]string{"stuck", "--limit", "0"}, app.ExitUsage, "--limit must be at least 1"},
		{[]string{"retry", "--why", "x"}, app.ExitUsage, "--id, --type, --aggregate or --cause is required, or --all"},
		{[]string{"retry", "--all"}, app.ExitUsage, "--why: must say why"},
		{[]string{"retry", "--all", "--why", strings.Repeat("因", 501)}, app.ExitUsage, "--why: must say why, in 1 to 500 characters"},
		{[]string{"retry", "--all", "--why", "x", "--by", ""}, app.ExitUsage, "--by: must say who"},
		{[]string{"retry", "--all", "--type", "video", "--why", "x"}, app.ExitUsage, "--all without them"},
		{[]string{"retry", "--all", "--limit", "-1", "--why", "x"}, app.ExitUsage, "-limit"},
		{[]string{"retry", "--reason", "x", "--all"}, app.ExitUsage, "-reason"},
		{[]string{"retry", "--aggregate", "v3", "--why", "x"}, app.ExitNothing, "v3 is not stuck"},
		{[]string{"retry", "--id", "7", "--why", "x"}, app.ExitNothing, "7 is not stuck"},
		{[]string{"skip", "--why", "x"}, app.ExitUsage, "is required, or --all"},
		{[]string{"skip", "--aggregate", "v1", "--why", "x"}, app.ExitUsage, "id: must name what to skip"},
		{[]string{"skip", "--aggregate", "v1", "--dry-run"}, app.ExitUsage, "id: must name what to skip"},
		{[]string{"skip", "--id", "v1", "--why", "x"}, app.ExitNothing, "v1 is not stuck"},
		{[]string{"skip", "--id", uuid.NewString(), "--aggregate", "v1", "--why", "x"}, app.ExitNothing, "is not stuck"},
		{[]string{"serv"}, app.ExitUsage, "server help"},
		{[]string{"outbox"}, app.ExitUsage, "server help"},
		{[]string{"quarantine", "list"}, app.ExitUsage, "server help"},
		{[]string{"drain", "now"}, app.ExitUsage, "server help"},
	} {
		_, err := s.command(t, test.args...)
		if got := exitOf(err); got != test.exit || !strings.Contains(err.Error(), test.want) {
			t.Errorf("server %s = %d, %v, want exit code %d with %q", strings.Join(test.args, " "), got, err, test.exit, test.want)
		}
	}
	if s.parked(t) != 1 || s.audited(t) != 0 {
		t.Errorf("%d are parked, with %d entries in the audit, want one and none", s.parked(t), s.audited(t))
	}
}

// A user who may only read can count what an action would change. The action itself is refused,
// and the message says that the permission is missing.
func TestOperatorWithoutRightsIsRefused(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	eventID := s.blockEvent(t, "v1")
	s.quarantineMany(t, 1)
	look := []string{"DATABASE_URL=" + s.personURL(t)}
	if out, err := s.commandIn(t, look, "status"); err != nil {
		t.Errorf("status = %q, %v", out, err)
	}
	for _, test := range []struct {
		args []string
		exit int
	}{
		{[]string{"retry", "--aggregate", "v1"}, app.ExitFailed},
		{[]string{"retry", "--id", "1"}, app.ExitPartly}, // it has no right to read the payload
		{[]string{"skip", "--id", eventID}, app.ExitFailed},
		{[]string{"skip", "--id", "1"}, app.ExitFailed},
	} {
		command := strings.Join(test.args, " ")
		if out, err := s.commandIn(t, look, append(test.args, "--dry-run")...); err != nil {
			t.Errorf("server %s --dry-run = %q, %v, want that it may", command, out, err)
		}
		out, err := s.commandIn(t, look, append(test.args, "--why", "x")...)
		if exitOf(err) != test.exit || !strings.Contains(out+err.Error(), "permission denied") {
			t.Errorf("server %s = %q, %v, want exit code %d and permission denied", command, out, err, test.exit)
		}
	}
	if s.parked(t) != 1 || s.audited(t) != 0 {
		t.Errorf("%d parked, %d in the audit, want 1 and none", s.parked(t), s.audited(t))
	}
	for sql, want := range map[string]int{
		"SELECT count(*) FROM video_catalog.outbox_deferred": 1,
		"SELECT count(*) FROM video_catalog_read.quarantine": 1,
	} {
		pgtest.WantCount(t, s.pool, want, sql, sql)
	}
}

// A skip names its event. If a colleague has skipped that event before, the next event stays.
func TestOperatorSkipsWhatAColleagueHasSkipped(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	eventID := s.blockEvent(t, "v1")
	pgtest.Execute(t, s.pool, `INSERT INTO video_catalog.outbox_deferred (lane, seq, id, aggregate_type, aggregate_id, event_type, schema_version, version, payload, occurred_at)
		VALUES (0, nextval('video_catalog.outbox_pending_seq_seq'), gen_random_uuid(), 'video', 'v1', 'VideoUpdated', 1, 2, '\x00', now())`)
	skip := []string{"skip", "--id", eventID, "--why", "too large"}
	if out, err := s.command(t, skip...); err != nil || !strings.HasPrefix(out, "skip: 1 of 1; action ") {
		t.Errorf("skip = %q, %v, want one", out, err)
	}
	if out, err := s.command(t, skip...); exitOf(err) != app.ExitNothing || !strings.Contains(err.Error(), eventID+" is not stuck") {
		t.Errorf("the same skip again = %q, %v, want exit code %d about its event", out, err, app.ExitNothing)
	}
	if n, rows := s.count(t, "SELECT count(*) FROM video_catalog.outbox_deferred"), s.audited(t); n != 1 || rows != 1 {
		t.Errorf("%d events are deferred, with %d entries in the audit, want the second event, and one", n, rows)
	}
}

// Filters select on the command and the query side. A filter may have commas: with ^;^ before the
// arguments of a job, gcloud splits them at semicolons instead.
func TestFilters(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.parkMany(t, 10)
	s.quarantineMany(t, 7)
	first := s.blockEvent(t, "w1")
	pgtest.Execute(t, s.pool, "UPDATE video_catalog.outbox_blocked SET last_error = 'quota, of project 5, is used up' WHERE aggregate_id = 'v4'")
	list, err := s.command(t, "stuck", "--cause", "too large")
	cause := regexp.MustCompile(`(?m)^(\w{12}) +0{8}-\S+ +video +v1 `).FindStringSubmatch(list)
	if cause == nil || err != nil {
		t.Fatalf("stuck = %v, %s, want the causes", err, list)
	}
	for args, want := range map[string]int{
		"--all": 18, "--type;video": 18, "--type;parcel": 0, "--aggregate;v7": 1, "--id;" + first: 1, "--id;3": 1, "--cause;" + cause[1]: 5, "--cause;unknown": 6,
		"--cause;quota, of project": 1, "--cause;is;--type;video;--limit;1": 11,
	} {
		given := strings.Split(strings.TrimPrefix("^;^retry;"+args+";--dry-run", "^;^"), ";")
		out, err := s.command(t, given...)
		if exitOf(err) != 0 || out != fmt.Sprintf("%d match; nothing was changed\n", want) {
			t.Errorf("%q = %q, %v, want that %d match", given, out, err, want)
		}
	}
	if out, err := s.command(t, "skip", "--type", "video", "--limit", "3", "--why", "some", "--json"); err != nil || !strings.Contains(out, `"matched":18,"done":3}`) {
		t.Errorf("skip of 3 = %q, %v, want 3 messages: only one aggregate has an event, and it is not among the first three", out, err)
	}
	pgtest.Execute(t, s.pool, "UPDATE video_catalog.outbox_blocked SET parked_at = NULL, next_retry_at = now() + interval '1 hour'")
	for _, test := range [][]string{
		{"skip", "0 match; nothing was changed\ntried again by themselves, so a skip takes them only by the id of the event: 5\n"},
		{"retry", "retry: 5 of 5; action "},
		{"retry", "0 match; nothing was changed\ndue already, so a publisher tries them next: 5\n"},
	} {
		if out, err := s.command(t, test[0], "--cause", cause[1], "--why", "quota is up"); err != nil || !strings.HasPrefix(out, test[1]) {
			t.Errorf("%s of what is tried again by itself = %q, %v, want %q", test[0], out, err, test[1])
		}
	}
}

// An action that is interrupted changes nothing. Running the same command again completes it.
func TestInterruptedCommandRunsAgain(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.parkMany(t, 2500)
	hold, err := s.pool.Begin(t.Context())
	must(t, err)
	defer hold.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it changes nothing
	pgtest.Execute(t, hold, "SELECT FROM video_catalog.outbox_blocked WHERE aggregate_id = 'v999' FOR UPDATE")
	retry := []string{"retry", "--all", "--why", "quota is up"}
	cmd, stdout := exec.CommandContext(t.Context(), os.Args[0], retry...), new(strings.Builder)
	cmd.Env, cmd.Stdout = s.environ(), stdout
	must(t, cmd.Start())
	eventually(t, 20*time.Second, "the command waits", func() bool {
		return s.count(t, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == 1
	})
	must(t, cmd.Process.Signal(os.Interrupt))
	if err := cmd.Wait(); exitOf(err) != app.ExitFailed || stdout.String() != "" {
		t.Errorf("retry that is interrupted = %q, %v, want exit code %d and no action", stdout, err, app.ExitFailed)
	}
	must(t, hold.Rollback(t.Context()))
	if s.parked(t) != 2500 || s.audited(t) != 0 {
		t.Errorf("%d are parked, with %d entries in the audit, want all and none", s.parked(t), s.audited(t))
	}
	if out, err := s.command(t, retry...); err != nil || !strings.HasPrefix(out, "retry: 2500 of 2500; action ") {
		t.Errorf("the same again = %q, %v, want all", out, err)
	}
}
