package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/names"
)

// parkMany makes parked aggregates without any event, half of them for one cause.
func (s *stack) parkMany(t *testing.T, n int) {
	t.Helper()
	if _, err := s.pool.Exec(t.Context(), `
		INSERT INTO video_catalog.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, last_error, parked_at)
		SELECT 'video', 'v' || n, 0, 8, CASE WHEN n % 2 = 0 THEN 'quota of project ' || n || ' is used up' ELSE 'message too large' END, now() - interval '2 hours'
		FROM generate_series(1, $1) n`, n); err != nil {
		t.Fatal(err)
	}
}

// parked counts the aggregates that wait for a person.
func (s *stack) parked(t *testing.T) int {
	t.Helper()
	return s.count(t, "SELECT count(*) FROM video_catalog.outbox_blocked WHERE parked_at IS NOT NULL")
}

// blockEvent makes a parked aggregate with one event.
func (s *stack) blockEvent(t *testing.T, id string) {
	t.Helper()
	if _, err := s.pool.Exec(t.Context(), `
		WITH event AS (
			INSERT INTO video_catalog.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, schema_version, version, payload, occurred_at)
			VALUES (-1, gen_random_uuid(), 'video', $1, 'VideoCreated', 1, 1, '\x00', now())
		)
		INSERT INTO video_catalog.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, last_error, parked_at)
		VALUES ('video', $1, 0, 8, 'refused', now())`, id); err != nil {
		t.Fatal(err)
	}
}

// quarantineMany sets messages aside, which this build cannot decode, with ids from 1.
func (s *stack) quarantineMany(t *testing.T, n int) {
	t.Helper()
	if _, err := s.pool.Exec(t.Context(), `
		INSERT INTO video_catalog_read.quarantine (consumer, message_id, ordering_key, attributes, payload, reason, publish_time, received_at)
		SELECT 'catalog', 'm' || n, 'k' || n, jsonb_build_object('aggregate_type', 'video'), '\x00', CASE WHEN n = 1 THEN E'not \\xff text' ELSE 'version ' || n || ' is unknown' END, now(), now() - interval '2 hours'
		FROM generate_series(1, $1) n`, n); err != nil {
		t.Fatal(err)
	}
}

// An operator finds a cause, counts what it has stopped, requeues that and nothing else,
// and the audit says so, in a form that programs can read.
func TestOperatorRequeuesByCause(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.parkMany(t, 3000)
	out, err := s.command(t, "outbox", "causes", "--json")
	var groups []admin.Group
	for line := range strings.Lines(out) {
		var group admin.Group
		if err := json.Unmarshal([]byte(line), &group); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		groups = append(groups, group)
	}
	if err != nil || len(groups) != 2 || groups[0].Items != 1500 || groups[1].Waiting != 1500 || groups[0].First.IsZero() {
		t.Fatalf("outbox causes = %+v, %v, want two of 1,500", groups, err)
	}
	filter := "age=1h,type=video,cause=" + groups[0].Cause
	if out, err := s.command(t, "outbox", "requeue", "--filter", filter, "--dry-run"); out != "1500 aggregates match; nothing was changed\n" || err != nil {
		t.Errorf("dry run = %q, %v, want 1,500", out, err)
	}
	if got := s.count(t, "SELECT count(*) FROM video_catalog.outbox_blocked WHERE parked_at IS NULL"); got != 0 {
		t.Errorf("%d aggregates are requeued by a dry run, want none", got)
	}
	if out, err := s.command(t, "outbox", "requeue", "--filter", filter, "--reason", "the quota is higher"); !strings.HasPrefix(out, "requeued 1500 of 1500 aggregates; action ") || err != nil {
		t.Errorf("requeue = %q, %v, want 1,500", out, err)
	}
	if got := s.count(t, "SELECT count(*) FROM video_catalog.outbox_blocked WHERE parked_at IS NOT NULL AND last_error = $1", groups[1].Sample); got != 1500 {
		t.Errorf("%d aggregates of the other cause are parked, want 1,500", got)
	}
	out, err = s.command(t, "audit", "list", "--json")
	items := 0
	var actions []uuid.UUID
	for line := range strings.Lines(out) {
		var e admin.Entry
		var before []map[string]any
		if err := errors.Join(json.Unmarshal([]byte(line), &e), json.Unmarshal(e.Before, &before)); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if e.Items > 1000 || int(e.Items) != len(before) || e.Name != operator(t) || e.Via != "command" || e.Reason != "the quota is higher" || e.Action != admin.ActionRequeue {
			t.Errorf("audit has %d items, %+v, want at most 1,000, and who did it and why", len(before), e)
		}
		items += len(before)
		actions = append(actions, e.ActionID)
	}
	if err != nil || items != 1500 || len(actions) != 2 || actions[0] != actions[1] {
		t.Errorf("audit list has %d items in %d entries, %v, want 1,500 of one action in 2", items, len(actions), err)
	}
}

// Wrong input is refused with the name of the flag, by a code that scripts can tell from
// other failures, and changes nothing.
func TestOperatorMistakesAreRefused(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.parkMany(t, 2)
	for _, test := range []struct {
		args []string
		exit int
		want string
	}{
		{[]string{"outbox", "requeue"}, app.ExitUsage, "filter"},
		{[]string{"outbox", "requeue", "--all"}, app.ExitUsage, "reason"},
		{[]string{"outbox", "requeue", "--all", "--reason", " "}, app.ExitUsage, "reason"},
		{[]string{"outbox", "requeue", "--all", "--reason", strings.Repeat("x", 501)}, app.ExitUsage, "reason"},
		{[]string{"outbox", "requeue", "--all", "--filter", "type=video", "--reason", "x"}, app.ExitUsage, "all"},
		{[]string{"outbox", "requeue", "--filter", "typ=video", "--reason", "x"}, app.ExitUsage, "typ"},
		{[]string{"outbox", "requeue", "--filter", "type", "--reason", "x"}, app.ExitUsage, "key=value"},
		{[]string{"outbox", "requeue", "--filter", "age=yesterday", "--reason", "x"}, app.ExitUsage, "duration"},
		{[]string{"outbox", "requeue", "--filter", "age=-1h", "--reason", "x"}, app.ExitUsage, "duration"},
		{[]string{"outbox", "requeue", "--why", "x", "--all"}, app.ExitUsage, "-why"},
		{[]string{"outbox", "requeue", "video", "--reason", "x"}, app.ExitUsage, "server help"},
		{[]string{"outbox", "requeue", "video", "v1", "--filter", "type=video", "--reason", "x"}, app.ExitUsage, "server help"},
		{[]string{"outbox", "requeue", "video", "v3", "--reason", "x"}, app.ExitNothing, "not blocked"},
		{[]string{"outbox", "skip", "video", "v1", "--reason", "x"}, app.ExitUsage, "server help"},
		{[]string{"outbox", "skip", "video", "v1", "v1", "--reason", "x"}, app.ExitUsage, "server help"},
		{[]string{"outbox", "skip", "video", "v1", uuid.NewString(), "--reason", "x"}, app.ExitNothing, "not blocked"},
		{[]string{"quarantine", "replay"}, app.ExitUsage, "filter"},
		{[]string{"quarantine", "delete", "abc", "--reason", "x"}, app.ExitUsage, "number"},
		{[]string{"quarantine", "delete", "7", "--reason", "x"}, app.ExitNothing, "not in quarantine"},
		{[]string{"audit", "list", "--filter", "type=video"}, app.ExitUsage, "server help"},
		{[]string{"serv"}, app.ExitUsage, "server help"},
		{[]string{"outbox"}, app.ExitUsage, "server help"},
		{[]string{"outbox", "skip", "video"}, app.ExitUsage, "server help"},
		{[]string{"quarantine", "purge"}, app.ExitUsage, "server help"},
		{[]string{"audit"}, app.ExitUsage, "server help"},
		{[]string{"drain", "now"}, app.ExitUsage, "server help"},
	} {
		_, err := s.command(t, test.args...)
		if got := exitOf(err); got != test.exit || !strings.Contains(err.Error(), test.want) {
			t.Errorf("server %s = %d, %v, want exit code %d with %q", strings.Join(test.args, " "), got, err, test.exit, test.want)
		}
	}
	if got := s.count(t, "SELECT count(*) FROM video_catalog.outbox_blocked WHERE parked_at IS NOT NULL"); got != 2 {
		t.Errorf("parked aggregates = %d, want 2", got)
	}
	if got := s.count(t, "SELECT (SELECT count(*) FROM video_catalog.audit) + (SELECT count(*) FROM video_catalog_read.audit)"); got != 0 {
		t.Errorf("audit has %d entries, want none", got)
	}
}

// Somebody who may only look can count what an action would change. The action is refused, and
// the message says that it is for want of a privilege.
func TestOperatorWithoutRightsIsRefused(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.blockEvent(t, "v1")
	s.quarantineMany(t, 1)
	s.fillOwner(t, 1)
	s.replace(t)
	var id string
	if err := s.pool.QueryRow(t.Context(), "SELECT id::text FROM video_catalog.videos").Scan(&id); err != nil {
		t.Fatal(err)
	}
	look := []string{"DATABASE_URL=" + s.personURL(t)}
	for _, test := range []struct {
		args []string
		exit int
	}{
		{[]string{"outbox", "requeue", "--all"}, app.ExitFailed},
		{[]string{"outbox", "skip", "--all"}, app.ExitFailed},
		{[]string{"outbox", "backfill", "video"}, app.ExitFailed},
		{[]string{"quarantine", "delete", "--all"}, app.ExitFailed},
		{[]string{"quarantine", "replay", "--all"}, app.ExitPartly}, // it may not read the payload of each
		{[]string{"projection", "repair", "video", id}, app.ExitFailed},
		{[]string{"projection", "repair", "--all"}, app.ExitFailed},
		{[]string{"seek", names.TopicOf(event.AggregateVideo).Subscription("catalog"), "2026-01-01T00:00:00Z"}, app.ExitFailed},
		{[]string{"databases", "accept"}, app.ExitFailed},
	} {
		command := strings.Join(test.args, " ")
		if out, err := s.commandIn(t, look, append(test.args, "--dry-run")...); err != nil && command != "databases accept" { // it may not identify them
			t.Errorf("server %s --dry-run = %q, %v, want that it may", command, out, err)
		}
		out, err := s.commandIn(t, look, append(test.args, "--reason", "x")...)
		if exitOf(err) != test.exit || !strings.Contains(out+err.Error(), "permission denied") {
			t.Errorf("server %s = %q, %v, want exit code %d and permission denied", command, out, err, test.exit)
		}
	}
	if s.parked(t) != 1 || s.audited(t) != 0 || s.unknown(t) != 2 {
		t.Errorf("%d parked, %d in the audit, %d databases unknown, want 1, none and 2", s.parked(t), s.audited(t), s.unknown(t))
	}
	for sql, want := range map[string]int{
		"SELECT count(*) FROM video_catalog.outbox_pending":        1,
		"SELECT count(*) FROM video_catalog_read.quarantine":       1,
		"SELECT count(*) FROM video_catalog_read.video_projection": 0,
	} {
		if got := s.count(t, sql); got != want {
			t.Errorf("%s = %d, want %d", sql, got, want)
		}
	}
}

// A command that is interrupted says what it has done, which stays done. The same command
// again does the rest.
func TestInterruptedCommandRunsAgain(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.parkMany(t, 2500)
	hold, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it changes nothing
	// The last key is in the third transaction.
	if _, err := hold.Exec(t.Context(), "SELECT FROM video_catalog.outbox_blocked WHERE aggregate_id = 'v999' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	requeue := []string{"outbox", "requeue", "--all", "--reason", "quota is up"}
	cmd, stdout := exec.CommandContext(t.Context(), binary, requeue...), new(output)
	cmd.Env, cmd.Stdout = s.environ(), stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "the command waits", func() bool {
		return s.count(t, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == 1
	})
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); exitOf(err) != app.ExitFailed || !strings.HasPrefix(stdout.String(), "requeued 2000 of 2500 aggregates; action ") {
		t.Errorf("requeue that is interrupted = %q, %v, want exit code %d after 2,000", stdout, err, app.ExitFailed)
	}
	if err := hold.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.parked(t) != 500 || s.audited(t) != 2 {
		t.Errorf("%d are parked, with %d entries in the audit, want 500 and 2", s.parked(t), s.audited(t))
	}
	if out, err := s.command(t, requeue...); err != nil || !strings.HasPrefix(out, "requeued 500 of 500 aggregates; action ") {
		t.Errorf("the same again = %q, %v, want the rest", out, err)
	}
	if s.parked(t) != 0 || s.audited(t) != 3 {
		t.Errorf("%d are parked, with %d entries in the audit, want none and 3", s.parked(t), s.audited(t))
	}
}
