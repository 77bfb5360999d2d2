package repair

import (
	"bytes"
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var must = pgtest.Must

// service is a service with this option, both sides of which are in one database.
type service struct {
	*testing.T

	pool       *pgxpool.Pool
	url        string
	registered []app.Registration
}

func newService(t *testing.T, registered ...app.Registration) *service {
	t.Helper()
	pool := pgtest.Pool(t, 4)
	return &service{T: t, pool: pool, url: pool.Config().ConnString(), registered: registered}
}

// run runs a command to its end.
func (s *service) run(args ...string) (stdout string, err error) { return s.runAs(s.url, args...) }

// runAs runs a command with a database URL.
func (s *service) runAs(url string, args ...string) (stdout string, err error) {
	program := app.Program{Registrations: s.registered, Options: []app.Option{Option()}}
	var out bytes.Buffer
	err = program.Run(s.Context(), args, []string{"DATABASE_URL=" + url}, &out, s.Output())
	return out.String(), err
}

func (s *service) exec(sql string, args ...any) { s.Helper(); pgtest.Execute(s, s.pool, sql, args...) }

func (s *service) count(sql string, args ...any) int {
	s.Helper()
	return pgtest.Count(s, s.pool, sql, args...)
}

// audited is an entry of an audit.
type audited struct {
	pg.Entry

	DatabaseUser  string
	Items         int64
	Before, After json.RawMessage
}

// audit returns the entries of an action in both audits, the oldest first.
func (s *service) audit(action string) []audited {
	s.Helper()
	rows, _ := s.pool.Query(s.Context(), `SELECT action_id, actor, via, database_user, action, filter, reason, items, before, after FROM (
		SELECT action_id, actor, via, database_user, action, filter, reason, items, before, after, create_time FROM video_catalog.audit
		UNION ALL SELECT action_id, actor, via, database_user, action, filter, reason, items, before, after, create_time FROM video_catalog_read.audit) a
		WHERE action = $1 ORDER BY create_time`, action)
	entries, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e audited, err error) {
		return e, row.Scan(&e.ActionID, &e.Name, &e.Via, &e.DatabaseUser, &e.Action, &e.Filter, &e.Reason, &e.Items, &e.Before, &e.After)
	})
	must(s, err)
	return entries
}

// checkAudit checks who did what and why, and the items before and after.
func (s *service) checkAudit(e audited, items int64, filter, reason, before, after string) {
	s.Helper()
	same := func(field string, got json.RawMessage, want string) {
		s.Helper()
		var a, b any
		if json.Unmarshal(got, &a) != nil || json.Unmarshal([]byte(want), &b) != nil || !cmp.Equal(a, b) {
			s.Errorf("audit of %s: %s = %s, want %s", e.Action, field, got, want)
		}
	}
	same("filter", e.Filter, filter)
	same("before", e.Before, before)
	same("after", e.After, after)
	if e.Items != items || e.Reason != reason || !strings.Contains(e.Name, "@") || e.Via != "command" || e.DatabaseUser == "" {
		s.Errorf("audit has %+v, want %d items and the reason %q, by command", e, items, reason)
	}
}

// replace makes the databases of both sides unknown.
func (s *service) replace() {
	s.Helper()
	s.exec("UPDATE video_catalog.known_database SET identity = 'before'")
	s.exec("UPDATE video_catalog_read.known_database SET identity = 'before'")
}

// unknown counts the sides whose database is not known.
func (s *service) unknown() int {
	s.Helper()
	return s.count(`SELECT (SELECT count(*) FROM video_catalog.known_database WHERE identity <> video_catalog.database_identity())
		+ (SELECT count(*) FROM video_catalog_read.known_database WHERE identity <> video_catalog_read.database_identity())`)
}

// After a look at the data, a person accepts the present databases of both sides, with a
// reason. The audit has the previous databases.
func TestAcceptDatabases(t *testing.T) {
	t.Parallel()
	s := newService(t)
	if n := s.unknown(); n != 0 {
		t.Errorf("%d databases are not known after the migrations, want 0", n)
	}
	s.replace()
	out, err := s.run("databases", "accept", "--dry-run")
	if err != nil || strings.Count(out, "is not known, but before; nothing was changed\n") != 2 {
		t.Errorf("dry run = %q, %v, want both databases and that nothing was changed", out, err)
	}
	for _, args := range [][]string{{}, {"accept"}, {"accept", "--why", " "}, {"accept", "--why", "x", "now"}, {"accept", "--all", "--why", "x"}} {
		if _, err := s.run(append([]string{"databases"}, args...)...); app.ExitCode(err) != app.ExitUsage {
			t.Errorf("databases %q = %v, want exit code %d", args, err, app.ExitUsage)
		}
	}
	if n, rows := s.unknown(), len(s.audit(actionAccept)); n != 2 || rows != 0 {
		t.Fatalf("%d databases are not known, with %d entries in the audit, want 2 and none", n, rows)
	}
	if out, err := s.run("databases", "accept", "--why", "compared"); err != nil || s.unknown() != 0 || strings.Count(out, "is known now, before it was before; action ") != 2 {
		t.Errorf("databases accept = %q, %v, and %d databases are not known, want 0", out, err, s.unknown())
	}
	if out, err := s.run("databases", "accept", "--why", "again"); err != nil || strings.Count(out, "is known already; nothing was changed\n") != 2 {
		t.Errorf("databases accept again = %q, %v, want that nothing was changed", out, err)
	}
	entries := s.audit(actionAccept)
	if len(entries) != 2 || entries[0].ActionID != entries[1].ActionID {
		t.Fatalf("audit = %+v, want one action with an entry per side", entries)
	}
	for i, schema := range []string{"video_catalog", "video_catalog_read"} {
		identity := pgtest.Column[string](t, s.pool, "SELECT "+schema+".database_identity()")[0]
		s.checkAudit(entries[i], 1, "{}", "compared", `[{"identity": "before"}]`, `[{"identity": "`+identity+`"}]`)
	}
}

// A service without projections says so: a comparison of nothing would look like a success.
func TestNothingToCompare(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"note"}} {
		if _, _, err := selected(nil, args); err == nil || !strings.HasPrefix(err.Error(), "there is nothing to compare") {
			t.Errorf("selected(%q) = %v, want that there is nothing to compare", args, err)
		}
	}
}

// Several people who accept at once change each side once.
func TestAcceptDatabasesAtOnce(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.replace()
	var people sync.WaitGroup
	for range 3 {
		people.Go(func() {
			if out, err := s.run("databases", "accept", "--why", "compared"); err != nil {
				t.Errorf("databases accept = %q, %v", out, err)
			}
		})
	}
	people.Wait()
	if n, rows := s.unknown(), len(s.audit(actionAccept)); n != 0 || rows != 2 {
		t.Errorf("%d databases are not known, with %d entries in the audit, want 0 and one per side", n, rows)
	}
}
