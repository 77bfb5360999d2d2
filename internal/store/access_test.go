package store_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/pg/pgtest"
)

// documented returns the SQL that a page of docs tells the administrator to run, by statement.
func documented(t testing.TB, page string) (statements []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + page)
	must(t, err)
	for _, block := range regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllSubmatch(text, -1) {
		for statement := range strings.SplitSeq(string(block[1]), ";") {
			if statement = strings.TrimSpace(statement); statement != "" {
				statements = append(statements, statement)
			}
		}
	}
	if len(statements) == 0 {
		t.Fatalf("docs/%s has no SQL", page)
	}
	return statements
}

// setting matches ALTER ROLE user SET setting.
var setting = regexp.MustCompile(`^ALTER ROLE (\w+) SET (.+)$`)

// userSettings returns the settings that the documentation gives to the users of a role.
func userSettings(t testing.TB, role string) (settings []string) {
	t.Helper()
	user := map[string]string{videoRole: "video_catalog_app", catalogRole: "video_catalog_read_app", supportRole: "support_person"}[role]
	for _, statement := range documented(t, "database.md") {
		if parts := setting.FindStringSubmatch(statement); parts != nil && parts[1] == user {
			settings = append(settings, parts[2])
		}
	}
	for _, name := range []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "search_path"} {
		if !slices.ContainsFunc(settings, func(s string) bool { return strings.HasPrefix(s, name+" = ") }) {
			t.Errorf("docs/database.md does not set %s for %s", name, user)
		}
	}
	return settings
}

// as returns the URL of a database for another user.
func as(target, user string) string { return target + "&user=" + user }

// emptyDatabase makes a database without a schema, and returns a pool of its
// administrator.
func emptyDatabase(t testing.TB) *pgxpool.Pool {
	t.Helper()
	other := pgtest.Open(t, pgtest.Direct(t, pgtest.URL(t)), 2)
	name := other.Config().ConnConfig.Database + "_empty"
	execute(t, other, "CREATE DATABASE "+name)
	t.Cleanup(func() {
		if _, err := other.Exec(context.WithoutCancel(t.Context()), "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	address, err := url.Parse(other.Config().ConnString())
	must(t, err)
	address.Path = "/" + name
	return pgtest.Open(t, address.String(), 2)
}

// The users of docs/database.md: the user migrator can run the migrations, and
// each user has the settings that are documented there.
func TestDocumentedUsers(t *testing.T) {
	t.Parallel()
	admin := emptyDatabase(t)
	database := admin.Config().ConnConfig.Database
	// Users belong to the server, and another test run may have the same names.
	rename := strings.NewReplacer("DATABASE "+names.Service, "DATABASE "+database, "migrator", "migrator_"+database,
		"video_catalog_app", "video_catalog_app_"+database, "video_catalog_read_app", "video_catalog_read_app_"+database, "support_person", "support_person_"+database)
	want, got := make(map[string][]string), make(map[string][]string)
	for _, statement := range documented(t, "database.md") {
		statement = rename.Replace(statement)
		const duplicateObject = "42710" // the roles of the migrations may exist: roles belong to the server
		var pgErr *pgconn.PgError
		if _, err := admin.Exec(t.Context(), statement); err != nil && (!errors.As(err, &pgErr) || pgErr.Code != duplicateObject || !strings.HasSuffix(statement, "NOLOGIN")) {
			t.Fatalf("%s: %v", statement, err)
		}
		if parts := setting.FindStringSubmatch(statement); parts != nil {
			want[parts[1]] = append(want[parts[1]], strings.ReplaceAll(parts[2], "'", ""))
		}
	}
	if len(want) != 4 {
		t.Errorf("users with settings = %d, want 4", len(want))
	}
	t.Cleanup(func() {
		for user := range want {
			for _, sql := range []string{"REASSIGN OWNED BY %s TO postgres", "DROP OWNED BY %s", "DROP ROLE %s"} {
				if _, err := admin.Exec(context.WithoutCancel(t.Context()), fmt.Sprintf(sql, user)); err != nil {
					t.Error(err)
				}
			}
		}
	})

	migrator := as(admin.Config().ConnString(), "migrator_"+database)
	if _, err := db.Migrate(t.Context(), migrator, slog.New(slog.DiscardHandler), pgtest.Options()...); err != nil {
		t.Errorf("Migrate() as the migrator = %v", err)
	}
	for user, settings := range want {
		conn := pgtest.Open(t, as(admin.Config().ConnString(), user), 2)
		if err := db.Check(t.Context(), pgtest.Options(), conn); err != nil {
			t.Errorf("Check() as %s = %v", user, err)
		}
		for _, s := range settings {
			name, _, _ := strings.Cut(s, " = ")
			got[user] = append(got[user], name+" = "+column(t, conn, "SHOW "+name)[0])
		}
	}
	same(t, "settings", want, got)
}

// A person with the role support_ro reads everything but the bytes of events and messages, and
// changes nothing, even in a transaction that is not read-only.
func TestSupportRoleLooks(t *testing.T) {
	t.Parallel()
	admin := pgtest.Pool(t, 2)
	support := userPool(t, admin, supportRole)
	const all = `
		SELECT format('%s.%s', c.oid::regclass, a.attname)
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
		WHERE n.nspname IN ('video_catalog', 'video_catalog_read') AND c.relkind IN ('r', 'p') AND NOT c.relispartition` // nobody reads a partition
	columns, hidden := column(t, admin, all+" ORDER BY 1"), column(t, admin, all+" AND a.atttypid = 'bytea'::regtype ORDER BY 1")
	if len(columns) < 50 || len(hidden) < 4 {
		t.Errorf("columns = %d, of bytes %q, want all", len(columns), hidden)
	}
	var denied []string
	for _, name := range columns {
		i := strings.LastIndex(name, ".")
		_, err := support.Exec(t.Context(), fmt.Sprintf("SELECT %s FROM %s", name[i+1:], name[:i]))
		if isDenied(err) {
			denied = append(denied, name)
		} else if err != nil {
			t.Errorf("SELECT %s = %v", name, err)
		}
	}
	same(t, "columns that people may not read", hidden, denied)
	for _, sql := range []string{
		"DELETE FROM video_catalog_read.quarantine", "UPDATE video_catalog.videos SET title = ''", "INSERT INTO video_catalog_read.inbox VALUES ('c', gen_random_uuid())",
		"SELECT video_catalog.outbox_maintain(1, '1 day')", "SELECT nextval('video_catalog_read.quarantine_id_seq')",
	} {
		err := pgx.BeginTxFunc(t.Context(), support, pgx.TxOptions{AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), sql)
			return err
		})
		if !isDenied(err) {
			t.Errorf("%s = %v, want permission denied", sql, err)
		}
	}
}

// privileges returns the privileges of users other than the owner on all schemas and their
// objects: as grantee, object. The schema public itself is open, and has goose's tables only.
// The columns of support_ro are in TestSupportRoleLooks.
const privileges = `
	WITH ours AS (SELECT * FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema')
	SELECT DISTINCT format('%s: %s', CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END, o.name)
	FROM (
		SELECT nspname::text AS name, coalesce(nspacl, acldefault('n', nspowner)) AS acl, nspowner AS owner FROM ours WHERE nspname <> 'public'
		UNION ALL
		SELECT c.oid::regclass::text, coalesce(relacl, acldefault(CASE WHEN relkind = 'S' THEN 's' ELSE 'r' END::"char", relowner)), relowner
		FROM pg_class c WHERE relkind IN ('r', 'p', 'S', 'v', 'm', 'f') AND relnamespace IN (SELECT oid FROM ours)
		UNION ALL
		SELECT p.oid::regprocedure::text, coalesce(proacl, acldefault('f', proowner)), proowner FROM pg_proc p WHERE pronamespace IN (SELECT oid FROM ours)
	) o CROSS JOIN LATERAL aclexplode(o.acl) a
	WHERE a.grantee <> o.owner
	ORDER BY 1`

// Supabase's Data API reaches nothing of ours: not in our schemas, not in the
// schema that it shows, and not what a later migration makes.
func TestDataAPISeesNothing(t *testing.T) {
	t.Parallel()
	admin := emptyDatabase(t)
	// As Supabase sets up a database.
	for _, role := range []string{"anon NOLOGIN", "authenticated NOLOGIN", "service_role NOLOGIN BYPASSRLS"} {
		name, _, _ := strings.Cut(role, " ")
		execute(t, admin, fmt.Sprintf("DO $$ BEGIN CREATE ROLE %s; EXCEPTION WHEN duplicate_object THEN ALTER ROLE %s; END $$", role, strings.ReplaceAll(role, " NOLOGIN", " WITH NOLOGIN")))
		for _, sql := range []string{
			"GRANT USAGE ON SCHEMA public TO %s",
			"ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON TABLES TO %s",
			"ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON SEQUENCES TO %s",
			"ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON FUNCTIONS TO %s",
		} {
			execute(t, admin, fmt.Sprintf(sql, name))
		}
	}
	_, err := db.Migrate(t.Context(), admin.Config().ConnString(), slog.New(slog.DiscardHandler), pgtest.Options()...)
	must(t, err)
	before := column(t, admin, privileges)
	if len(before) < 20 {
		t.Errorf("privileges = %q, want those of our roles", before)
	}
	ours := regexp.MustCompile(`^(video_catalog(_read)?_(rw|calls)|support_ro): `)
	for _, privilege := range before {
		if !ours.MatchString(privilege) {
			t.Errorf("%s, want nothing for anybody but our roles", privilege)
		}
	}

	// Tables, views and functions that come later are closed as well, partitions too.
	for _, sql := range []string{
		"CREATE TABLE video_catalog.later (id bigint GENERATED ALWAYS AS IDENTITY)", "CREATE TABLE video_catalog_read.later ()",
		"CREATE VIEW video_catalog.later_view AS SELECT 1 AS one", "CREATE MATERIALIZED VIEW video_catalog_read.later_view AS SELECT 1 AS one",
		"CREATE FUNCTION video_catalog.later() RETURNS int LANGUAGE sql RETURN 1", "CREATE FUNCTION video_catalog_read.later() RETURNS int LANGUAGE sql RETURN 1",
		"SELECT video_catalog.outbox_maintain(20, '7 days')",
	} {
		execute(t, admin, sql)
	}
	same(t, "privileges", before, column(t, admin, privileges))

	// An administrator opens public again, as a recipe on the web says: goose's table looks empty, and stays closed.
	execute(t, admin, "GRANT ALL ON ALL TABLES IN SCHEMA public TO anon, authenticated")
	for _, role := range []string{"anon", "authenticated"} {
		err := pgx.BeginFunc(t.Context(), admin, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), "SET LOCAL ROLE "+role); err != nil {
				return err
			}
			var n int
			if err := tx.QueryRow(t.Context(), "SELECT count(*) FROM public.video_catalog_migrations").Scan(&n); err != nil || n != 0 {
				t.Errorf("%s: rows of video_catalog_migrations = %d, %v, want none", role, n, err)
			}
			_, err := tx.Exec(t.Context(), "INSERT INTO public.video_catalog_migrations (version_id, is_applied) VALUES (99, true)")
			return err
		})
		if !isDenied(err) {
			t.Errorf("%s: INSERT INTO video_catalog_migrations = %v, want denied", role, err)
		}
	}
	for _, role := range []string{"anon", "authenticated", "service_role"} {
		may := column(t, admin, "SELECT nspname FROM pg_namespace WHERE has_schema_privilege('"+role+"', oid, 'USAGE') AND nspname !~ '^(pg_|information_schema)'")
		if !slices.Equal(may, []string{"public"}) {
			t.Errorf("%s may use the schemas %q, want public only", role, may)
		}
	}
}
