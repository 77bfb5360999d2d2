package store_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/store"
)

// The roles of the two sides, made by the migrations.
const (
	videoRole   = "video_catalog_rw"
	catalogRole = "video_catalog_read_rw"
	supportRole = "support_ro" // for people
)

// userPool is a pool for a new user who has one role, the settings that
// docs/database.md gives to such users, and nothing else.
func userPool(t testing.TB, owner *pgxpool.Pool, role string) *pgxpool.Pool {
	t.Helper()
	cfg := owner.Config()
	// Users belong to the whole server, and tests run side by side.
	user := pgx.Identifier{role + "_" + cfg.ConnConfig.Database}
	execute(t, owner, fmt.Sprintf("CREATE USER %s IN ROLE %s", user.Sanitize(), role))
	for _, setting := range userSettings(t, role) {
		execute(t, owner, fmt.Sprintf("ALTER ROLE %s SET %s", user.Sanitize(), setting))
	}
	t.Cleanup(func() {
		if _, err := owner.Exec(context.WithoutCancel(t.Context()), "DROP USER "+user.Sanitize()); err != nil {
			t.Error(err)
		}
	})
	return pgtest.Open(t, as(cfg.ConnString(), user[0]), 2)
}

// check fails the test if a step failed.
func check(t testing.TB, step string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s = %v", step, err)
	}
}

// Every method of a side works with the role of that side.
func TestRolesDoTheirWholeJob(t *testing.T) {
	t.Parallel()
	owner := pgtest.Pool(t, 2)
	commands, queries := userPool(t, owner, videoRole), userPool(t, owner, catalogRole)
	for _, pool := range []*pgxpool.Pool{commands, queries} {
		check(t, "Check()", db.Check(t.Context(), pgtest.Options(), pool))
	}
	videos, events, catalog, inbox := store.NewVideos(commands, nil), pg.NewOutbox(commands), store.NewCatalog(queries), pg.NewInbox(queries)
	for pool, table := range map[*pgxpool.Pool]string{commands: "video_catalog.audit", queries: "video_catalog_read.audit"} {
		execute(t, pool, "INSERT INTO "+table+` (action_id, actor, via, action, filter, reason, items, before)
			SELECT gen_random_uuid(), 'ann@desk', 'command', 'test', '{}', 'test', 1, '[{"different": 1}]'`)
	}
	checkAudit(t, events, commands, "video_catalog.audit", 1)
	checkAudit(t, inbox, queries, "video_catalog_read.audit", 1)
	for name, call := range everyMethod(t, videos, events, catalog, inbox) {
		if err := call(t.Context()); err != nil && kindOf(err) == 0 {
			t.Errorf("%s() = %v", name, err)
		}
	}
}

// The user of the service may not create or drop tables. The function that
// maintains the partitions does it for that user, who may append to the new
// partitions.
func TestVideoRoleMaintainsTheOutbox(t *testing.T) {
	t.Parallel()
	owner := pgtest.Pool(t, 2)
	pool := userPool(t, owner, videoRole)
	videos, events := store.NewVideos(pool, nil), pg.NewOutbox(pool)
	const partitions = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'video_catalog.outbox'::regclass"
	before := count(t, owner, partitions)
	if err := events.Maintain(t.Context(), 9, 7*24*time.Hour); err != nil {
		t.Errorf("Maintain() = %v", err)
	}
	wantCount(t, owner, before+2, "partitions", partitions)
	e := created(t, "Ran")
	ms := time.Now().Add(8 * 24 * time.Hour).UnixMilli()
	for i := range 6 {
		e.ID[i] = byte(ms >> (40 - 8*i))
	}
	if _, err := videos.CreateVideo(t.Context(), uuid.Nil, nil, e); err != nil {
		t.Errorf("CreateVideo() in a new partition = %v", err)
	}
	if err := events.Maintain(t.Context(), 9, 0); err != nil {
		t.Errorf("Maintain() = %v", err)
	}
	wantCount(t, owner, before+1, "partitions, after yesterday was dropped", partitions)
}

// checkAudit checks that a side has want entries, and that its role can neither change them,
// nor hide who wrote them, nor delete entries of the last 30 days.
func checkAudit(t *testing.T, side interface {
	PruneAudit(ctx context.Context, olderThan time.Duration, maxRows int) (int64, error)
}, pool *pgxpool.Pool, table string, want int,
) {
	t.Helper()
	if got := count(t, pool, "SELECT count(*) FROM "+table); got != want {
		t.Fatalf("audit has %d entries, want %d", got, want)
	}
	const right = " WHERE actor = 'ann@desk' AND reason = 'test' AND items = 1 AND jsonb_array_length(before) = 1 AND database_user <> ''"
	wantCount(t, pool, want, "entries of "+table+" that say who did what to one item, and why", "SELECT count(*) FROM "+table+right)
	if n, err := side.PruneAudit(t.Context(), 0, 10); n != 0 || err != nil {
		t.Errorf("PruneAudit() = %d, %v, want 0: nothing is 30 days old", n, err)
	}
	for _, sql := range []string{
		"UPDATE " + table + " SET reason = ''", "DELETE FROM " + table, "TRUNCATE " + table,
		"INSERT INTO " + table + " (action_id, actor, via, action, filter, reason, items, before, database_user) SELECT gen_random_uuid(), '', '', '', '{}', '', 1, '[]', 'other'",
	} {
		if _, err := pool.Exec(t.Context(), sql); !isDenied(err) {
			t.Errorf("%s = %v, want permission denied", sql, err)
		}
	}
}

// isDenied reports whether the database refused because a privilege is missing.
func isDenied(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "42501"
}

// A role may do what its side does and no more: no role edits or deletes events, deletes
// rows with a version, or creates tables.
func TestRolesHaveLeastPrivilege(t *testing.T) {
	t.Parallel()
	owner := pgtest.Pool(t, 2)
	want := map[string]string{
		"video_catalog_rw video_catalog.videos":                     "INSERT SELECT UPDATE",
		"video_catalog_rw video_catalog.requests":                   "DELETE INSERT SELECT",
		"video_catalog_rw video_catalog.erasures":                   "DELETE INSERT SELECT",
		"video_catalog_rw video_catalog.inbox":                      "DELETE INSERT SELECT",
		"video_catalog_rw video_catalog.timers":                     "DELETE INSERT SELECT UPDATE",
		"video_catalog_rw video_catalog.outbox":                     "INSERT SELECT",
		"video_catalog_rw video_catalog.outbox_pending":             "DELETE INSERT SELECT",
		"video_catalog_rw video_catalog.outbox_deferred":            "DELETE INSERT SELECT",
		"video_catalog_rw video_catalog.outbox_skipped":             "INSERT SELECT",
		"video_catalog_rw video_catalog.outbox_blocked":             "DELETE INSERT SELECT UPDATE",
		"video_catalog_rw video_catalog.outbox_lanes":               "SELECT UPDATE",
		"video_catalog_rw video_catalog.known_database":             "SELECT", // and UPDATE of identity and updated_at
		"video_catalog_rw video_catalog.audit":                      "SELECT", // and INSERT, except of the columns that PostgreSQL fills
		"video_catalog_read_rw video_catalog_read.audit":            "SELECT", // the same
		"video_catalog_rw video_catalog_migrations":                 "SELECT",
		"video_catalog_read_rw video_catalog_migrations":            "SELECT",
		"video_catalog_read_rw video_catalog_read.inbox":            "DELETE INSERT SELECT",
		"video_catalog_read_rw video_catalog_read.quarantine":       "DELETE INSERT SELECT",
		"video_catalog_read_rw video_catalog_read.known_database":   "SELECT",
		"video_catalog_read_rw video_catalog_read.quarantine_size":  "INSERT SELECT UPDATE",
		"video_catalog_read_rw video_catalog_read.video_projection": "INSERT SELECT UPDATE",
		// People see no bytes: TestSupportRoleLooks has the columns of the other tables.
		"support_ro video_catalog.videos":                "SELECT",
		"support_ro video_catalog.erasures":              "SELECT",
		"support_ro video_catalog.inbox":                 "SELECT",
		"support_ro video_catalog.timers":                "SELECT",
		"support_ro video_catalog.outbox_blocked":        "SELECT",
		"support_ro video_catalog.outbox_skipped":        "SELECT",
		"support_ro video_catalog.outbox_lanes":          "SELECT",
		"support_ro video_catalog.audit":                 "SELECT",
		"support_ro video_catalog.known_database":        "SELECT",
		"support_ro video_catalog_read.audit":            "SELECT",
		"support_ro video_catalog_read.video_projection": "SELECT",
		"support_ro video_catalog_read.inbox":            "SELECT",
		"support_ro video_catalog_read.known_database":   "SELECT",
		"support_ro video_catalog_read.quarantine_size":  "SELECT",
		"support_ro video_catalog_migrations":            "SELECT",
	}
	rows, err := owner.Query(t.Context(), `
		SELECT format('%s %s', coalesce(r.rolname, 'PUBLIC'), c.oid::regclass), string_agg(a.privilege_type, ' ' ORDER BY a.privilege_type)
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace CROSS JOIN LATERAL aclexplode(c.relacl) a LEFT JOIN pg_roles r ON r.oid = a.grantee
		WHERE n.nspname IN ('public', 'video_catalog', 'video_catalog_read') AND a.grantee <> c.relowner
		GROUP BY r.rolname, c.oid`)
	must(t, err)
	got := make(map[string]string)
	var who, what string
	if _, err := pgx.ForEachRow(rows, []any{&who, &what}, func() error {
		got[who] = what
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	maps.DeleteFunc(got, func(who, _ string) bool { // db.TestGrantsFitTheirSide has the tables of other aggregates
		_, listed := want[who]
		return !listed
	})
	same(t, "privileges", want, got)
	columns := column(t, owner, `
		SELECT format('%s %s.%s', a.privilege_type, c.attrelid::regclass, c.attname)
		FROM pg_attribute c CROSS JOIN LATERAL aclexplode(c.attacl) a WHERE a.grantee IN ('video_catalog_rw'::regrole, 'video_catalog_read_rw'::regrole) ORDER BY 1`)
	var wantColumns []string
	for _, table := range []string{"video_catalog.audit", "video_catalog_read.audit"} {
		for _, name := range []string{"action", "action_id", "actor", "after", "before", "filter", "items", "reason", "via"} {
			wantColumns = append(wantColumns, "INSERT "+table+"."+name)
		}
	}
	if diff := cmp.Diff(append(wantColumns,
		"UPDATE video_catalog.known_database.identity", "UPDATE video_catalog.known_database.updated_at",
		"UPDATE video_catalog_read.known_database.identity", "UPDATE video_catalog_read.known_database.updated_at",
	), columns); diff != "" {
		t.Errorf("privileges of the service on columns (-want +got):\n%s", diff)
	}

	pools := make(map[string]*pgxpool.Pool)
	for _, role := range []string{videoRole, catalogRole, supportRole} {
		pools[role] = userPool(t, owner, role)
	}
	partition := "video_catalog.outbox_p" + time.Now().UTC().Format("20060102")
	for _, sql := range []string{
		"UPDATE video_catalog.outbox SET payload = ''",
		"UPDATE video_catalog.outbox_pending SET payload = ''",
		"DELETE FROM video_catalog.outbox",
		"SELECT FROM " + partition,
		"DROP TABLE " + partition,
		"DELETE FROM video_catalog.videos",
		"DELETE FROM video_catalog_read.video_projection",
		"UPDATE video_catalog_read.inbox SET received_at = now()",
		"CREATE TABLE video_catalog.mine ()",
		"CREATE TABLE video_catalog_read.mine ()",
		"CREATE TABLE public.mine ()",
		"CREATE SCHEMA mine",
		"UPDATE video_catalog_migrations SET version_id = 0",
		"ALTER TABLE video_catalog.videos ADD COLUMN mine int",
		"CREATE OR REPLACE FUNCTION video_catalog.uuid7_floor(t timestamptz) RETURNS uuid LANGUAGE sql RETURN NULL",
	} {
		for role, pool := range pools {
			err := pgx.BeginTxFunc(t.Context(), pool, pgx.TxOptions{AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error { // support_ro is read-only
				_, err := tx.Exec(t.Context(), sql)
				return err
			})
			if !isDenied(err) {
				t.Errorf("%s: %s = %v, want permission denied", role, sql, err)
			}
		}
	}
	wantCount(t, owner, 3, "roles without attributes", `SELECT count(*) FROM pg_roles WHERE rolname = ANY ($1)
		AND NOT (rolcanlogin OR rolsuper OR rolcreatedb OR rolcreaterole OR rolreplication OR rolbypassrls)`, []string{videoRole, catalogRole, supportRole})
}
