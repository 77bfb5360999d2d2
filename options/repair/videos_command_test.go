package repair

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/metric/noop"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/pg/pgtest"
)

// newCatalog is a service with videos, without a running process.
func newCatalog(t *testing.T) *service {
	t.Helper()
	return newService(t, app.Registration{AggregateType: event.AggregateVideo, Subscriptions: []app.Subscription{{ID: "videos", Consumer: "catalog"}}})
}

// fillOwner fills the owner with n videos of ownersVideos.
func (s *service) fillOwner(n int) {
	s.Helper()
	s.exec(strings.ReplaceAll(ownersVideos, "$1", strconv.Itoa(n)))
}

// ownersVideos fills the owner with videos that have no events: every third is a draft, every
// fifth is deleted.
const ownersVideos = `
	INSERT INTO video_catalog.videos (id, title, description, release_year, duration_ms, language_code, tags, state, version, create_time, update_time, publish_time, delete_time)
	SELECT gen_random_uuid(), 'video ' || n, 'of many', 1985, 60000, 'ja', '{drama,war}', CASE WHEN n % 3 = 0 THEN 'draft' ELSE 'published' END, 1 + n % 7,
		now() - n * interval '1 second', now(), CASE WHEN n % 3 > 0 THEN now() END, CASE WHEN n % 5 = 0 THEN now() END
	FROM generate_series(1, $1) n`

// unlike counts the entries of the catalog that differ from the owner.
const unlike = `
	SELECT count(*) FROM video_catalog.videos v FULL JOIN video_catalog_read.video_projection p ON p.video_id = v.id
	WHERE CASE WHEN v.id IS NULL THEN NOT p.deleted OR p.visible ELSE (v.title, v.description, v.release_year, v.duration_ms, v.language_code, v.tags, v.version, v.publish_time, v.update_time)
			IS DISTINCT FROM (p.title, p.description, p.release_year, p.duration_ms, p.language_code, p.tags, p.version, p.publish_time, p.update_time)
		OR (v.state = 'published' AND v.delete_time IS NULL) <> p.visible OR (v.delete_time IS NOT NULL) <> p.deleted END`

// personURL returns the URL of the database for a new user with the role support_ro, which only reads.
func (s *service) personURL() string {
	s.Helper()
	name := "person_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	user := pgx.Identifier{name}.Sanitize()
	s.exec("CREATE USER " + user + " IN ROLE support_ro")
	s.Cleanup(func() {
		if _, err := s.pool.Exec(context.WithoutCancel(s.Context()), "DROP USER "+user); err != nil {
			s.Error(err)
		}
	})
	return s.url + "&user=" + name
}

// compared runs `projection compare` as a person, and returns what it found.
func (s *service) compared(person string, args ...string) (differences []difference, sum summary, exit int) {
	s.Helper()
	out, err := s.runAs(person, append([]string{"projection", "compare", "--json"}, args...)...)
	for line := range strings.Lines(out) {
		var d difference
		if json.Unmarshal([]byte(line), &d) == nil && d.Kind != "" {
			differences = append(differences, d)
		} else if err := json.Unmarshal([]byte(line), &sum); err != nil {
			s.Fatalf("%s: %v", line, err)
		}
	}
	return differences, sum, app.ExitCode(err)
}

// A person who may only read sees a changed entry, an entry of a version that does not exist, and
// an entry without an owner. An operator repairs one, and then all. The audit has the changes.
func TestOperatorRepairsProjection(t *testing.T) {
	t.Parallel()
	s := newCatalog(t)
	s.fillOwner(5)
	if out, err := s.run("projection", "repair", "--all", "--why", "new"); err != nil {
		t.Fatalf("repair = %q, %v", out, err)
	}
	person := s.personURL()
	if differences, sum, exit := s.compared(person); len(differences) > 0 || sum.Compared != 5 || exit != 0 {
		t.Errorf("compare = %+v, %+v, exit code %d, want 5 rows and no difference", differences, sum, exit)
	}
	var ids []string
	rows, _ := s.pool.Query(t.Context(), "SELECT video_id::text FROM video_catalog_read.video_projection WHERE NOT deleted ORDER BY 1")
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(ids) != 4 {
		t.Fatalf("entries = %q, %v, want four", ids, err)
	}
	s.exec("UPDATE video_catalog_read.video_projection SET title = 'Rashomon', version = 1 WHERE video_id = $1", ids[0])
	s.exec("UPDATE video_catalog.videos SET version = 1 WHERE id = $1", ids[0])
	s.exec("UPDATE video_catalog_read.video_projection SET version = 9 WHERE video_id = $1", ids[1])
	s.exec("DELETE FROM video_catalog.videos WHERE id = $1", ids[2])

	differences, sum, exit := s.compared(person, "video")
	var kinds []string
	for _, d := range differences {
		kinds = append(kinds, string(d.Kind)+" "+strings.Join(d.Fields, ","))
	}
	if got := strings.Join(kinds, ";"); got != "different title;ahead ;extra " || sum.Differences != 3 || sum.Kinds[ahead] != 1 || exit != app.ExitDiffers {
		t.Errorf("compare = %s, %+v, exit code %d, want the title, one ahead, one extra, and exit code %d", got, sum, exit, app.ExitDiffers)
	}
	if differences, _, exit := s.compared(person, "video", ids[0], ids[3]); len(differences) != 1 || differences[0].ID.String() != ids[0] || exit != app.ExitDiffers {
		t.Errorf("compare of two = %+v, exit code %d, want the first", differences, exit)
	}
	recorded := func() int {
		return s.count("SELECT coalesce(sum(last_differences), -1) FROM video_catalog_read.comparisons WHERE last_compared = 4 AND next_time <= now()")
	}
	if _, err := s.run("projection", "compare", "video", ids[0]); recorded() != -1 || app.ExitCode(err) != app.ExitDiffers {
		t.Errorf("compare of one = %v, and it was recorded, or that of a person", err)
	}
	if out, err := s.run("projection", "compare"); recorded() != 3 || app.ExitCode(err) != app.ExitDiffers || strings.Contains(out, "not recorded") {
		t.Errorf("compare = %q, %v, want 3 differences recorded, and another comparison soon", out, err)
	}
	if out, err := s.runAs(person, "projection", "compare"); !strings.Contains(out, "not recorded") || app.ExitCode(err) != app.ExitDiffers {
		t.Errorf("compare by a person = %q, %v, want that it is not recorded", out, err)
	}
	if _, err := s.runAs(person, "projection", "repair", "video", ids[0], "--why", "x"); app.ExitCode(err) != app.ExitFailed {
		t.Errorf("repair by a person = %v, want it refused", err)
	}
	if out, err := s.run("projection", "repair", "video", ids[0], "--why", "edited by hand"); !strings.HasPrefix(out, "repaired 1 of 1 entries of video; action ") || err != nil {
		t.Errorf("repair of one = %q, %v, want 1", out, err)
	}
	if out, err := s.run("projection", "repair", "--all", "--dry-run"); out != "video: compared 4 rows: missing 0, behind 0, ahead 1, different 0, extra 1\n2 entries of video match; nothing was changed\n" || err != nil {
		t.Errorf("dry run = %q, %v, want the other two", out, err)
	}
	if out, err := s.run("projection", "repair", "--all", "--why", "a disk was full"); !strings.Contains(out, "repaired 2 of 2 entries of video; action ") || err != nil {
		t.Errorf("repair of all = %q, %v, want both", out, err)
	}
	if out, err := s.run("projection", "compare"); err != nil || s.count("SELECT count(*) FROM video_catalog_read.comparisons WHERE last_differences = 0 AND next_time > now()") != 1 {
		t.Errorf("compare = %q, %v, want no difference recorded, and the next comparison in a day", out, err)
	}
	entries := s.audit(actionRepair)
	if len(entries) != 3 {
		t.Fatalf("the audit has %d repairs, want 3", len(entries))
	}
	s.checkAudit(entries[1], 1, fmt.Sprintf(`{"type": "video", "ids": [%q]}`, ids[0]), "edited by hand",
		fmt.Sprintf(`[{"id": %q, "kind": "different", "owner_version": 1, "version": 1, "fields": ["title"]}]`, ids[0]),
		fmt.Sprintf(`[{"id": %q, "owner_version": 1, "version": 1}]`, ids[0]))
}

// Wrong arguments of a comparison or a repair are refused with the reason, and change nothing.
func TestProjectionMistakesAreRefused(t *testing.T) {
	t.Parallel()
	s := newCatalog(t)
	id := uuid.NewString()
	for _, test := range []struct {
		args []string
		exit int
		want string
	}{
		{nil, app.ExitUsage, "--help"},
		{[]string{"compare", "vidoe"}, app.ExitUsage, `TYPE "vidoe" must be an aggregate type with a projection: video`},
		{[]string{"compare", "video", "7"}, app.ExitUsage, `ID "7" must be a UUID`},
		{[]string{"compare", "video", id}, app.ExitNothing, "neither the projection nor its owner has [" + id + "]"},
		{[]string{"compare", "--all"}, app.ExitUsage, "--help"},
		{[]string{"compare", "--filter", "kind=ahead"}, app.ExitUsage, "-filter"},
		{[]string{"repair", "--why", "x"}, app.ExitUsage, "--help"},
		{[]string{"repair", "video", "--why", "x"}, app.ExitUsage, "--help"},
		{[]string{"repair", "video", id, "--all", "--why", "x"}, app.ExitUsage, "--help"},
		{[]string{"repair", "video", id}, app.ExitUsage, "--why"},
		{[]string{"repair", "--all"}, app.ExitUsage, "--why"},
		{[]string{"repair", "video", id, "--why", "x"}, app.ExitNothing, "differs from its owner"},
	} {
		_, err := s.run(append([]string{"projection"}, test.args...)...)
		if got := app.ExitCode(err); err == nil || got != test.exit || !strings.Contains(err.Error(), test.want) {
			t.Errorf("server projection %s = %d, %v, want exit code %d with %q", strings.Join(test.args, " "), got, err, test.exit, test.want)
		}
	}
}

// A repair fills an empty catalog, while no service runs. A dry run counts the same and changes
// nothing. Only a repair of everything makes the databases known.
func TestRepairFillsAnEmptyCatalog(t *testing.T) {
	t.Parallel()
	s := newCatalog(t)
	s.fillOwner(1500)
	s.replace()
	out, err := s.run("projection", "repair", "--all", "--dry-run")
	if want := "video: compared 1500 rows: missing 1500, behind 0, ahead 0, different 0, extra 0\n1500 entries of video match; nothing was changed\n"; err != nil || out != want || s.unknown() != 2 {
		t.Errorf("dry run = %q, %v, with %d databases unknown, want %q and 2", out, err, s.unknown(), want)
	}
	id := pgtest.Column[string](t, s.pool, "SELECT id::text FROM video_catalog.videos LIMIT 1")[0]
	if out, err := s.run("projection", "repair", "video", id, "--why", "test"); err != nil || s.count(unlike) != 1499 || s.unknown() != 2 {
		t.Errorf("repair of one = %q, %v, with %d entries different and %d databases unknown, want 1499 and 2", out, err, s.count(unlike), s.unknown())
	}
	out, err = s.run("projection", "repair", "--all", "--why", "failover", "--json")
	if want := `"matched":1499,"done":1499,"failures":0,"compared":1500,"kinds":{"missing":1499}`; err != nil || !strings.Contains(out, want) || s.count(unlike) != 0 || s.unknown() != 0 {
		t.Errorf("repair = %q, %v, with %d entries different and %d databases unknown, want %s and none", out, err, s.count(unlike), s.unknown(), want)
	}
	pgtest.WantCount(t, s.pool, 1500, "entries in the audit that were missing", "SELECT sum(jsonb_array_length(after)) FROM video_catalog_read.audit WHERE action = 'projection.repair' AND before = '[]'")
	if known := s.audit(actionAccept); len(known) != 2 || known[0].Reason != "failover" {
		t.Errorf("the audit has %+v, want that both databases are known, and why", known)
	}
}

// A repair that fails in the middle keeps its repaired entries, and leaves the databases unknown. The next
// repair does the rest, and restarts the comparison of the catalog, even if it repairs nothing.
func TestKilledRepairIsRunAgain(t *testing.T) {
	t.Parallel()
	s := newCatalog(t)
	s.fillOwner(1500)
	s.replace()
	s.exec(`INSERT INTO video_catalog.videos SELECT (jsonb_populate_record(v, '{"id": "ffffffff-ffff-4fff-bfff-ffffffffffff"}')).* FROM video_catalog.videos v LIMIT 1`)
	s.exec("ALTER TABLE video_catalog_read.video_projection ADD CONSTRAINT broken CHECK (video_id <> 'ffffffff-ffff-4fff-bfff-ffffffffffff')")
	if out, err := s.run("projection", "repair", "--all", "--why", "test"); app.ExitCode(err) != app.ExitFailed {
		t.Errorf("repair = %q, %v, want it to fail at the last entry", out, err)
	}
	left := s.count(unlike)
	if left == 0 || left > 501 || s.unknown() != 2 {
		t.Errorf("after the failure %d entries differ, and %d databases are unknown, want 1 to 501, and 2", left, s.unknown())
	}
	s.exec("ALTER TABLE video_catalog_read.video_projection DROP CONSTRAINT broken")
	if out, err := s.run("projection", "repair", "--all", "--why", "test"); err != nil || !strings.Contains(out, fmt.Sprintf("missing %d, behind 0", left)) || s.count(unlike) != 0 || s.unknown() != 0 {
		t.Errorf("repair = %q, %v, with %d entries different and %d databases unknown, want none", out, err, s.count(unlike), s.unknown())
	}
	// A pass has found ten differences, and the next one begins in a day.
	s.exec(`INSERT INTO video_catalog_read.comparisons (aggregate_type, claim, next_time, begin_time, after_id, last_time, last_differences)
		VALUES ('video', 7, now() + interval '1 day', now(), '00000000-0000-0000-0000-000000000000', now(), 10)`)
	if _, err := s.run("projection", "repair", "--all", "--why", "test"); err != nil || s.count("SELECT count(*) FROM video_catalog_read.comparisons WHERE claim = 8 AND next_time <= now()") != 1 {
		t.Errorf("repair of what is right = %v, want a comparison that is due", err)
	}
}

// The service finds differences in the background, counts and logs them, and logs what to do.
func TestServiceFindsDifferences(t *testing.T) {
	t.Parallel()
	s := newCatalog(t)
	s.fillOwner(5)
	ctx, stop := context.WithCancel(t.Context())
	var log strings.Builder
	stopAtAdvice := func(_ []string, a slog.Attr) slog.Attr {
		if strings.Contains(a.Value.String(), "server projection compare") {
			stop()
		}
		return a
	}
	l, err := newLoop(config{rate: 1e6, wait: time.Millisecond, interval: 10 * time.Millisecond, slice: 1000, pass: time.Hour},
		[]source{newVideos(s.pool, s.pool).source(false)}, comparisonsIn(s.pool), slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: stopAtAdvice})), noop.Meter{})
	must(t, err)
	if err := l.run(ctx); err != nil || strings.Count(log.String(), "entry differs from its owner") != 5 {
		t.Errorf("run() = %v, with the log %s, want five entries", err, log.String())
	}
	w := newWatch(&app.Process{CommandPool: s.pool, QueryPool: s.pool, Log: slog.New(slog.NewTextHandler(&log, nil))})
	w.check(t.Context())
	if found := *w.differences.Load(); len(found) != 1 || found[0].AggregateType != "video" || found[0].Differences != 5 {
		t.Errorf("measured differences = %+v, want five of videos", found)
	}
	if w.databases[0].state.Load() != 0 || w.databases[1].state.Load() != 0 {
		t.Error("a database counts as replaced")
	}
}
