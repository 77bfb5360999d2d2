package main

import (
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/admin"
)

// exitOf returns the exit code of a command that a test has run.
func exitOf(err error) int {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return exitCode(err)
}

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
		if e.Items > 1000 || int(e.Items) != len(before) || e.Name != operatorName() || e.Via != "command" || e.Reason != "the quota is higher" || e.Action != admin.ActionRequeue {
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
		{[]string{"outbox", "requeue"}, exitUsage, "filter"},
		{[]string{"outbox", "requeue", "--all"}, exitUsage, "reason"},
		{[]string{"outbox", "requeue", "--all", "--reason", " "}, exitUsage, "reason"},
		{[]string{"outbox", "requeue", "--all", "--reason", strings.Repeat("x", 501)}, exitUsage, "reason"},
		{[]string{"outbox", "requeue", "--all", "--filter", "type=video", "--reason", "x"}, exitUsage, "all"},
		{[]string{"outbox", "requeue", "--filter", "typ=video", "--reason", "x"}, exitUsage, "typ"},
		{[]string{"outbox", "requeue", "--filter", "type", "--reason", "x"}, exitUsage, "key=value"},
		{[]string{"outbox", "requeue", "--filter", "age=yesterday", "--reason", "x"}, exitUsage, "duration"},
		{[]string{"outbox", "requeue", "--filter", "age=-1h", "--reason", "x"}, exitUsage, "duration"},
		{[]string{"outbox", "requeue", "--why", "x", "--all"}, exitUsage, "-why"},
		{[]string{"outbox", "requeue", "video", "--reason", "x"}, exitUsage, "server help"},
		{[]string{"outbox", "requeue", "video", "v1", "--filter", "type=video", "--reason", "x"}, exitUsage, "server help"},
		{[]string{"outbox", "requeue", "video", "v3", "--reason", "x"}, exitNothing, "not blocked"},
		{[]string{"outbox", "skip", "video", "v1", "--reason", "x"}, exitUsage, "server help"},
		{[]string{"outbox", "skip", "video", "v1", "v1", "--reason", "x"}, exitUsage, "server help"},
		{[]string{"outbox", "skip", "video", "v1", uuid.NewString(), "--reason", "x"}, exitNothing, "not blocked"},
		{[]string{"quarantine", "replay"}, exitUsage, "filter"},
		{[]string{"quarantine", "delete", "abc", "--reason", "x"}, exitUsage, "number"},
		{[]string{"quarantine", "delete", "7", "--reason", "x"}, exitNothing, "not in quarantine"},
		{[]string{"audit", "list", "--filter", "type=video"}, exitUsage, "server help"},
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
