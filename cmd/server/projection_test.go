package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/reconcile"
)

// summary is what a comparison of a type prints at its end.
type summary struct {
	Compared, Differences int64
}

// compare runs `server projection compare` and returns what it found.
func (s *stack) compare(t *testing.T, extra []string, args ...string) (differences []reconcile.Difference, sum summary, err error) {
	t.Helper()
	out, err := s.commandIn(t, append(extra, "LAB_RECONCILE_WAIT=200ms"), append([]string{"projection", "compare", "--json"}, args...)...)
	for line := range strings.Lines(out) {
		var d reconcile.Difference
		if strings.Contains(line, `"kind"`) {
			if err := json.Unmarshal([]byte(line), &d); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			differences = append(differences, d)
		} else if err := json.Unmarshal([]byte(line), &sum); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	return differences, sum, err
}

// create creates videos, and waits until the catalog has them.
func (s *stack) create(t *testing.T, p *process, n int) (ids []string) {
	t.Helper()
	for i := range n {
		video, err := p.videos.CreateVideo(t.Context(), &videov1.CreateVideoRequest{Video: &videov1.Video{Title: fmt.Sprint("Ran ", i)}})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, strings.TrimPrefix(video.GetName(), "videos/"))
	}
	eventually(t, 20*time.Second, "the catalog has all", func() bool {
		return s.count(t, "SELECT count(*) FROM video_catalog_read.video_projection") == n
	})
	return ids
}

// An entry that was changed, one that was deleted and one of a version that does not exist
// are found by the running service, which counts and logs them. An operator sees them by
// command, as somebody who may only look, repairs one, then those of a kind, then all, and
// nothing differs.
func TestOperatorRepairsProjection(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	p := s.start(t, "LAB_RECONCILE_INTERVAL=200ms", "LAB_RECONCILE_WAIT=50ms", "LAB_RECONCILE_SLICE_ROWS=100", "LAB_RECONCILE_PASS=100ms", "LAB_RECONCILE_RATE=1000")
	ids := s.create(t, p, 5)
	if differences, sum, err := s.compare(t, nil); len(differences) > 0 || sum.Compared != 5 || err != nil {
		t.Errorf("compare = %+v, %+v, %v, want 5 rows and no difference", differences, sum, err)
	}
	for i, sql := range []string{
		"UPDATE video_catalog_read.video_projection SET title = 'Rashomon' WHERE video_id = $1",
		"DELETE FROM video_catalog_read.video_projection WHERE video_id = $1",
		"UPDATE video_catalog_read.video_projection SET version = 7 WHERE video_id = $1",
	} {
		if _, err := s.pool.Exec(t.Context(), sql, ids[i]); err != nil {
			t.Fatal(err)
		}
	}
	passed := func(differences int) func() bool {
		return func() bool {
			return s.count(t, "SELECT count(*) FROM video_catalog_read.comparisons WHERE last_differences = $1 AND last_compared = 5", differences) == 1
		}
	}
	eventually(t, 20*time.Second, "the service finds three differences", passed(3))

	look := "DATABASE_URL=" + s.personURL(t)
	differences, sum, err := s.compare(t, []string{look}, "video")
	var kinds []string
	for _, d := range differences {
		kinds = append(kinds, string(d.Kind)+" "+strings.Join(d.Fields, ","))
	}
	if got := strings.Join(kinds, ";"); got != "different title;missing ;ahead " || sum.Differences != 3 || exitOf(err) != app.ExitDiffers {
		t.Errorf("compare = %s, %+v, %v, want the title, one missing, one ahead, and exit code %d", got, sum, err, app.ExitDiffers)
	}
	if differences, _, err := s.compare(t, []string{look}, "video", ids[0], ids[4]); len(differences) != 1 || differences[0].ID.String() != ids[0] || exitOf(err) != app.ExitDiffers {
		t.Errorf("compare of two = %+v, %v, want the first", differences, err)
	}
	if _, err := s.commandIn(t, []string{look}, "projection", "repair", "video", ids[0], "--reason", "x"); exitOf(err) != app.ExitFailed {
		t.Errorf("repair by a person = %v, want it refused", err)
	}

	if differences, sum, err := s.compare(t, []string{look}, "--filter", "kind=ahead"); len(differences) != 1 || differences[0].ID.String() != ids[2] || sum.Differences != 1 || exitOf(err) != app.ExitDiffers {
		t.Errorf("compare of a kind = %+v, %+v, %v, want the one that is ahead", differences, sum, err)
	}
	if differences, _, err := s.compare(t, []string{look}, "--filter", "type=video,id="+ids[0]); len(differences) != 1 || exitOf(err) != app.ExitDiffers {
		t.Errorf("compare of one by filter = %+v, %v, want it", differences, err)
	}
	if differences, _, err := s.compare(t, []string{look}, "--filter", "kind=extra"); len(differences) != 0 || err != nil {
		t.Errorf("compare of a kind that there is not = %+v, %v, want none", differences, err)
	}

	if out, err := s.command(t, "projection", "repair", "video", ids[0], "--reason", "edited by hand"); !strings.HasPrefix(out, "repaired 1 of 1 entries; action ") || err != nil {
		t.Errorf("repair of one = %q, %v, want 1", out, err)
	}
	wait := []string{"LAB_RECONCILE_WAIT=200ms"}
	if out, err := s.commandIn(t, wait, "projection", "repair", "--all", "--dry-run"); out != "video: compared 5 rows: missing 1, behind 0, ahead 1, different 0, extra 0\n2 entries of video match; nothing was changed\n" || err != nil {
		t.Errorf("dry run = %q, %v, want the other two", out, err)
	}
	if _, err := s.commandIn(t, wait, "projection", "repair", "--filter", "type=video,id="+ids[1]+",kind=ahead", "--reason", "x"); exitOf(err) != app.ExitNothing {
		t.Errorf("repair of one that is of another kind = %v, want exit code %d", err, app.ExitNothing)
	}
	if out, err := s.commandIn(t, wait, "projection", "repair", "--filter", "kind=ahead", "--reason", "restored"); !strings.HasPrefix(out, "video: compared 5 rows: missing 0, behind 0, ahead 1, different 0, extra 0\nrepaired 1 of 1 entries of video; action ") || err != nil {
		t.Errorf("repair of a kind = %q, %v, want 1", out, err)
	}
	if out, err := s.commandIn(t, wait, "projection", "repair", "video", "--all", "--reason", "a disk was full"); !strings.Contains(out, "repaired 1 of 1 entries of video; action ") || err != nil {
		t.Errorf("repair of all = %q, %v, want the last", out, err)
	}
	if differences, sum, err := s.compare(t, []string{look}); len(differences) > 0 || sum.Compared != 5 || err != nil {
		t.Errorf("compare = %+v, %+v, %v, want no difference", differences, sum, err)
	}
	eventually(t, 20*time.Second, "the service finds no difference", passed(0))
	entries := s.audit(t, admin.ActionRepair)
	if len(entries) != 3 {
		t.Fatalf("the audit has %d repairs, want 3", len(entries))
	}
	item := `[{"video_id": %q, "kind": %q, "owner_version": 1, "version": %d%s}]`
	now := `[{"video_id": %q, "owner_version": 1, "version": 1}]`
	checkAudit(t, entries[0], 1, fmt.Sprintf(`{"type": "video", "id": %q}`, ids[0]), "edited by hand",
		fmt.Sprintf(item, ids[0], "different", 1, `, "fields": ["title"]`), fmt.Sprintf(now, ids[0]))
	checkAudit(t, entries[1], 1, `{"type": "video", "kind": "ahead"}`, "restored", fmt.Sprintf(item, ids[2], "ahead", 7, ""), fmt.Sprintf(now, ids[2]))
	checkAudit(t, entries[2], 1, `{"type": "video"}`, "a disk was full", "[]", "[]")
	p.mu.Lock()
	defer p.mu.Unlock()
	if log := strings.Join(p.log, "\n"); !strings.Contains(log, "projection: entry differs from its owner") || !strings.Contains(log, ids[2]) {
		t.Error("the log does not name the entry that differs")
	}
}

// personURL is the database as a new user of the role support_ro sees it, who may only look.
func (s *stack) personURL(t *testing.T) string {
	t.Helper()
	address, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	name := "person_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	user := pgx.Identifier{name}.Sanitize()
	if _, err := s.pool.Exec(t.Context(), "CREATE USER "+user+" IN ROLE support_ro"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := s.pool.Exec(context.WithoutCancel(t.Context()), "DROP USER "+user); err != nil {
			t.Error(err)
		}
	})
	address.User = url.User(name)
	return address.String()
}

// Wrong arguments of a comparison are refused with what is wrong, and change nothing.
func TestProjectionMistakesAreRefused(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	id := uuid.NewString()
	for _, test := range []struct {
		args []string
		exit int
		want string
	}{
		{[]string{"compare", "vidoe"}, app.ExitUsage, `TYPE "vidoe" must be an aggregate type with a projection: video`},
		{[]string{"compare", "video", "7"}, app.ExitUsage, `ID "7" must be a UUID`},
		{[]string{"compare", "--all"}, app.ExitUsage, "server help"},
		{[]string{"compare", "--filter", "cause=x"}, app.ExitUsage, `"cause" must be one of type, id, kind`},
		{[]string{"compare", "--filter", "type=vidoe"}, app.ExitUsage, `TYPE "vidoe" must be`},
		{[]string{"compare", "--filter", "kind=lost"}, app.ExitUsage, `kind "lost" must be one of missing, behind, ahead, different, extra`},
		{[]string{"compare", "--filter", "id=" + id}, app.ExitUsage, "id must be there with its type"},
		{[]string{"compare", "video", "--filter", "type=video"}, app.ExitUsage, "must not be there with the arguments"},
		{[]string{"repair"}, app.ExitUsage, "one of TYPE and at least one ID, --filter, and --all"},
		{[]string{"repair", "video", "--reason", "x"}, app.ExitUsage, "one of TYPE and at least one ID, --filter, and --all"},
		{[]string{"repair", "video", id, "--all", "--reason", "x"}, app.ExitUsage, "one of TYPE and at least one ID, --filter, and --all"},
		{[]string{"repair", "--filter", "kind=ahead", "--all", "--reason", "x"}, app.ExitUsage, "one of TYPE and at least one ID, --filter, and --all"},
		{[]string{"repair", "--filter", "kind=ahead"}, app.ExitUsage, "reason"},
		{[]string{"repair", "--all"}, app.ExitUsage, "reason"},
		{[]string{"repair", id, "--reason", "x"}, app.ExitUsage, "must be an aggregate type"},
		{[]string{"repair", "video", id, "--reason", "x"}, app.ExitNothing, "differs from its owner"},
	} {
		_, err := s.command(t, append([]string{"projection"}, test.args...)...)
		if got := exitOf(err); err == nil || got != test.exit || !strings.Contains(err.Error(), test.want) {
			t.Errorf("server projection %s = %d, %v, want exit code %d with %q", strings.Join(test.args, " "), got, err, test.exit, test.want)
		}
	}
}
