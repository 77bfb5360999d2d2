package db_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pressly/goose/v3"

	"example.com/servicekit/migratelint"
	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/pg/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var must = pgtest.Must

var (
	execute   = pgtest.Execute
	discard   = slog.New(slog.DiscardHandler)
	databases atomic.Int64
)

// migrations are the files, also of options, in the order in which they run.
func migrations(t testing.TB) (files []string) {
	t.Helper()
	for _, pattern := range []string{"migrations/*.sql", "../options/*/migrations/*.sql"} {
		found, err := filepath.Glob(pattern)
		must(t, err)
		files = append(files, found...)
	}
	if len(files) == 0 {
		t.Fatal("there are no migrations")
	}
	slices.SortFunc(files, func(a, b string) int { return strings.Compare(filepath.Base(a), filepath.Base(b)) })
	return files
}

// fresh makes a database without any schema and returns its URL.
func fresh(t testing.TB) string {
	t.Helper()
	admin := open(t, pgtest.Direct(t, pgtest.URL(t)))
	name := fmt.Sprintf("fresh_%d", databases.Add(1))
	execute(t, admin, "CREATE DATABASE "+name)
	t.Cleanup(func() {
		if _, err := admin.Exec(context.WithoutCancel(t.Context()), "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	address, err := url.Parse(admin.Config().ConnString())
	must(t, err)
	address.Path = "/" + name
	return address.String()
}

func open(t testing.TB, target string) *pgxpool.Pool { t.Helper(); return pgtest.Open(t, target, 4) }

// schema describes everything that migrations make: schemas, relations with
// their columns, indexes and constraints, functions, and what roles may do with
// them; not the data, not the partitions of the outbox, which depend on the day, and
// not the table of goose's lock, which is there before the first migration.
func schema(t testing.TB, pool *pgxpool.Pool) []string {
	t.Helper()
	return pgtest.Column[string](t, pool, `
		WITH ours AS (
			SELECT oid, nspname, nspacl FROM pg_namespace WHERE nspname IN ('public', 'video_catalog', 'video_catalog_read')
		), relation AS (
			SELECT c.*, c.oid::regclass AS name FROM pg_class c JOIN ours ON ours.oid = c.relnamespace WHERE c.relname NOT LIKE 'outbox\_p2%' AND c.relname !~ 'migration_lock'
		), function AS (
			SELECT p.*, p.oid::regprocedure AS name FROM pg_proc p JOIN ours ON ours.oid = p.pronamespace
		)
		SELECT format('schema %s', nspname) FROM ours
		UNION ALL
		SELECT format('relation %s %s %s', name, relkind, reloptions) FROM relation
		UNION ALL
		SELECT format('column %s %s %s not null: %s, default: %s, comment: %s', name, attname, format_type(atttypid, atttypmod), attnotnull,
			(SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef d WHERE d.adrelid = attrelid AND d.adnum = attnum), col_description(attrelid, attnum))
		FROM relation JOIN pg_attribute ON attrelid = relation.oid WHERE attnum > 0 AND NOT attisdropped
		UNION ALL
		SELECT pg_get_indexdef(indexrelid) FROM relation JOIN pg_index ON indrelid = relation.oid
		UNION ALL
		SELECT format('constraint %s %s', name, pg_get_constraintdef(c.oid)) FROM relation JOIN pg_constraint c ON conrelid = relation.oid
		UNION ALL
		SELECT format('function %s %s', name, md5(pg_get_functiondef(oid))) FROM function
		UNION ALL
		SELECT format('%s may %s %s', grantee::regrole, privilege_type, object)
		FROM (SELECT nspname::text AS object, nspacl AS acl FROM ours UNION ALL SELECT name::text, relacl FROM relation UNION ALL SELECT name::text, proacl FROM function) o
		CROSS JOIN LATERAL aclexplode(acl)
		WHERE grantee <> 0 AND grantee <> grantor AND grantee::regrole::text !~ '^pg_'
		ORDER BY 1`)
}

// No migration stops a running service: see migratelint for the rules.
func TestMigrationsAreSafe(t *testing.T) {
	t.Parallel()
	var files []migratelint.File
	for _, name := range migrations(t) {
		text, err := os.ReadFile(name)
		must(t, err)
		files = append(files, migratelint.File{Name: filepath.Base(name), Text: string(text)})
	}
	findings, err := migratelint.Lint(files)
	must(t, err)
	for _, finding := range findings {
		t.Error(finding)
	}
}

// A number has five digits, so that files are in the order in which they run. An option has its
// own hundred of numbers below 01000, so that its migrations run in order whatever else a service
// has. Goose refuses a number that is there twice.
func TestNumbersOfMigrations(t *testing.T) {
	t.Parallel()
	wellNamed := regexp.MustCompile(`^\d{5}_[a-z0-9_]+\.sql$`)
	owners := make(map[string]string) // folders by hundred
	for _, file := range migrations(t) {
		folder, name := filepath.Split(file)
		if !wellNamed.MatchString(name) {
			t.Errorf("%s: want a name like 01000_orders.sql", file)
			continue
		}
		hundred := name[:3]
		if ofOptions := "000" < hundred && hundred < "010"; ofOptions == (folder == "migrations/") {
			t.Errorf("%s: want numbers of 00100 to 00999 in options, and no others", file)
		}
		if other, ok := owners[hundred]; ok && other != folder {
			t.Errorf("%s: %s has numbers of the same hundred", file, other)
		}
		owners[hundred] = folder
	}
}

// Migrate runs every migration once; on a database that has them it does
// nothing.
func TestMigrateTwiceRunsOnce(t *testing.T) {
	t.Parallel()
	target := fresh(t)
	want := len(migrations(t))
	for _, want := range []int{want, 0, 0} {
		if got, err := db.Migrate(t.Context(), target, discard, pgtest.Options()...); got != want || err != nil {
			t.Errorf("Migrate() = %d, %v, want %d, nil", got, err, want)
		}
	}
}

// option returns the migrations of an option. Each makes the table that its name ends with: 00701_stamps makes stamps.
func option(names ...string) fstest.MapFS {
	files := make(fstest.MapFS)
	for _, name := range names {
		_, table, _ := strings.Cut(name, "_")
		files["migrations/"+name+".sql"] = &fstest.MapFile{Data: []byte("-- +goose Up\nCREATE TABLE video_catalog." + table + " (id int);\n-- +goose Down\nDROP TABLE video_catalog." + table + ";\n")}
	}
	return files
}

// A later version may bring migrations of options with lower numbers than a database has run. They run.
func TestMigrateRunsWhatIsMissing(t *testing.T) {
	t.Parallel()
	target := fresh(t)
	stamps := option("00701_stamps")
	_, err := db.Migrate(t.Context(), target, discard, stamps)
	must(t, err)
	more := []fs.FS{option("00601_envelopes"), option("00700_pens", "00701_stamps")}
	if err := db.Check(t.Context(), more, open(t, target)); err == nil || !strings.Contains(err.Error(), "00601_envelopes") {
		t.Errorf("Check() before they run = %v, want the first that is missing", err)
	}
	if got, err := db.Migrate(t.Context(), target, discard, more...); got != 2 || err != nil {
		t.Errorf("Migrate() = %d, %v, want 2, nil", got, err)
	}
	for _, options := range [][]fs.FS{more, {stamps}} {
		if err := db.Check(t.Context(), options, open(t, target)); err != nil {
			t.Errorf("Check() = %v, want nil", err)
		}
	}
	execute(t, open(t, target), "SELECT FROM video_catalog.stamps, video_catalog.envelopes, video_catalog.pens")
}

// Two branches may give the same number to two files. The one that a database has not run is refused
// by name, by migrate and at the start, also if the other ran before names were recorded.
func TestAnotherFileOfANumberIsRefused(t *testing.T) {
	t.Parallel()
	target := fresh(t)
	pool := open(t, target)
	stamps, pens := option("00701_stamps"), option("00701_pens", "00702_inks")
	_, err := db.Migrate(t.Context(), target, discard, stamps)
	must(t, err)
	refused := func() {
		t.Helper()
		for name, err := range map[string]error{"Check": db.Check(t.Context(), []fs.FS{pens}, pool), "Migrate": func() error {
			_, err := db.Migrate(t.Context(), target, discard, pens)
			return err
		}()} {
			if err == nil || !strings.Contains(err.Error(), "has run 00701_stamps.sql, which is not the migration 00701_pens.sql") {
				t.Errorf("%s() = %v, want both names", name, err)
			}
		}
	}
	refused()
	execute(t, pool, "DELETE FROM video_catalog_migrations WHERE name LIKE '%migration_names.sql'")
	execute(t, pool, "ALTER TABLE video_catalog_migrations DROP COLUMN name")
	if got, err := db.Migrate(t.Context(), target, discard, stamps); got != 1 || err != nil {
		t.Fatalf("Migrate() of an older database = %d, %v, want 1, nil", got, err)
	}
	refused()
	if n := pgtest.Count(t, pool, "SELECT count(*) FROM video_catalog_migrations WHERE version_id > 0 AND name IS NULL"); n != 0 {
		t.Errorf("%d migrations have no name", n)
	}
}

// An index is built beside a transaction that is older than any timeout of the role. If a build ends early, the
// next migrate names the command that removes the rest.
func TestIndexOfATableInUse(t *testing.T) {
	t.Parallel()
	target := fresh(t)
	pool := open(t, target)
	for _, setting := range []string{"lock_timeout = '100ms'", "statement_timeout = '300ms'", "default_transaction_isolation = 'serializable'"} {
		execute(t, pool, "ALTER DATABASE "+pool.Config().ConnConfig.Database+" SET "+setting)
	}
	stamps := option("00701_stamps")
	_, err := db.Migrate(t.Context(), target, discard, stamps)
	must(t, err)
	stamps["migrations/00702_stamps_id.sql"] = &fstest.MapFile{Data: []byte("-- +goose NO TRANSACTION\n-- +goose Up\nCREATE UNIQUE INDEX CONCURRENTLY stamps_id ON video_catalog.stamps (id);\n")}
	execute(t, pool, "INSERT INTO video_catalog.stamps VALUES (1), (1)")
	for _, want := range []string{"23505", "DROP INDEX CONCURRENTLY video_catalog.stamps_id"} {
		if _, err := db.Migrate(t.Context(), target, discard, stamps); err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("Migrate() with the same value twice = %v, want %q", err, want)
		}
	}
	execute(t, pool, "TRUNCATE video_catalog.stamps")
	execute(t, pool, "DROP INDEX CONCURRENTLY video_catalog.stamps_id")

	report, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	must(t, err)
	_, err = report.Exec(t.Context(), "SELECT FROM video_catalog.stamps")
	must(t, err)
	done := make(chan error, 1)
	go func() {
		_, err := db.Migrate(t.Context(), target, discard, stamps)
		done <- err
	}()
	pgtest.Eventually(t, 30*time.Second, "the build waits for the report", func() bool {
		return len(done) > 0 || pgtest.Count(t, pool, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'CREATE UNIQUE%'
			AND wait_event_type = 'Lock' AND clock_timestamp() - query_start > '500ms'`) > 0
	})
	must(t, report.Rollback(t.Context()))
	if err := <-done; err != nil {
		t.Errorf("Migrate() beside an older transaction = %v, want nil", err)
	}
}

// A build refuses only a schema that lacks one of the build's migrations:
// after a roll-back the schema is newer than the build.
func TestCheck(t *testing.T) {
	t.Parallel()
	migrated := func(t *testing.T) *pgxpool.Pool { return open(t, pgtest.URL(t)) }
	after := func(sql string) func(*testing.T) *pgxpool.Pool {
		return func(t *testing.T) *pgxpool.Pool {
			pool := migrated(t)
			execute(t, pool, sql)
			return pool
		}
	}
	all := migrations(t)
	newest := filepath.Base(all[len(all)-1])[:5]
	for _, test := range []struct {
		name   string
		pool   func(*testing.T) *pgxpool.Pool
		tooOld bool
	}{
		{"fresh database", func(t *testing.T) *pgxpool.Pool { return open(t, fresh(t)) }, true},
		{"no migration yet", after("DELETE FROM video_catalog_migrations"), true},
		{"one migration less", after("DELETE FROM video_catalog_migrations WHERE version_id = " + newest), true},
		{"one of the first less", after("DELETE FROM video_catalog_migrations WHERE version_id = 1"), true},
		{"a later one instead", after("UPDATE video_catalog_migrations SET version_id = 99999 WHERE version_id = " + newest), true},
		{"migrated", migrated, false},
		{"newer", after("INSERT INTO video_catalog_migrations (version_id, is_applied) VALUES (" + newest + " + 1, true)"), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if err := db.Check(t.Context(), pgtest.Options(), test.pool(t)); (err != nil) != test.tooOld || err != nil && !strings.Contains(err.Error(), "server migrate") {
				t.Errorf("Check() = %v, want that it is too old: %t", err, test.tooOld)
			}
		})
	}
}

// Every migration can be taken back, on a developer's machine: each Down undoes
// its Up, nothing more and nothing less.
func TestEveryMigrationGoesDownAndUpAgain(t *testing.T) {
	t.Parallel()
	everything := make(fstest.MapFS)
	for _, file := range migrations(t) {
		text, err := os.ReadFile(file)
		must(t, err)
		everything[filepath.Base(file)] = &fstest.MapFile{Data: text}
		for _, part := range []string{"-- +goose Up\n", "-- +goose Down\n"} {
			if strings.Count(string(text), part) != 1 {
				t.Errorf("%s: want one line %q", file, part)
			}
		}
	}

	target := fresh(t)
	pool := open(t, target)
	sqlDB, err := sql.Open("pgx", target)
	must(t, err)
	defer sqlDB.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, sqlDB, everything, goose.WithTableName("video_catalog_migrations"), goose.WithSlog(discard), goose.WithDisableGlobalRegistry(true))
	must(t, err)
	if _, err := provider.GetDBVersion(t.Context()); err != nil { // makes the table of goose, which no Down removes
		t.Fatal(err)
	}
	states := [][]string{schema(t, pool)} // states[n] is the schema after n migrations
	for range migrations(t) {
		_, err := provider.UpByOne(t.Context())
		must(t, err)
		states = append(states, schema(t, pool))
	}
	if _, err := provider.UpByOne(t.Context()); !errors.Is(err, goose.ErrNoNextVersion) {
		t.Errorf("Up() behind the last one = %v, want none", err)
	}
	checkState := func(version int, did string) {
		t.Helper()
		if diff := cmp.Diff(states[version], schema(t, pool)); diff != "" {
			t.Errorf("schema at version %d (-when it went up, +after %s):\n%s", version, did, diff)
		}
	}
	for version := len(states) - 1; version > 0; version-- {
		if _, err := provider.Down(t.Context()); err != nil {
			t.Fatalf("Down from version %d = %v", version, err)
		}
		checkState(version-1, "Down")
		if _, err := provider.UpByOne(t.Context()); err != nil {
			t.Fatalf("Up to version %d again = %v", version, err)
		}
		checkState(version, "Down and Up")
		if _, err := provider.Down(t.Context()); err != nil {
			t.Fatalf("Down from version %d again = %v", version, err)
		}
	}
	if got, err := db.Migrate(t.Context(), target, discard, pgtest.Options()...); got != len(states)-1 || err != nil {
		t.Errorf("Migrate() after all went down = %d, %v, want %d, nil", got, err, len(states)-1)
	}
	checkState(len(states)-1, "all Downs and Migrate")
}

// No migration gives a role more than its side needs. A role reads and writes the tables of its own
// schema, and deletes no rows of aggregates or views: their versions would be forgotten. People read. A
// function that runs as its owner (SECURITY DEFINER) fixes its search_path: else its caller chooses what
// the names in it mean.
func TestGrantsFitTheirSide(t *testing.T) {
	t.Parallel()
	findings := pgtest.Column[string](t, pgtest.Pool(t, 1), `
		WITH grants AS (
			SELECT c.oid, c.relname, n.nspname, coalesce(r.rolname, 'PUBLIC') AS role, a.privilege_type AS privilege
			FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace CROSS JOIN LATERAL aclexplode(c.relacl) a LEFT JOIN pg_roles r ON r.oid = a.grantee
			WHERE n.nspname IN ('public', 'video_catalog', 'video_catalog_read') AND a.grantee <> c.relowner
		)
		SELECT format('%s has %s on %I.%I, which its work does not need', role, privilege, nspname, relname) FROM grants
		WHERE NOT CASE privilege
			WHEN 'SELECT' THEN role IN (nspname || '_rw', nspname || '_calls', 'support_ro') OR relname = 'video_catalog_migrations' AND role <> 'PUBLIC'
			WHEN 'DELETE' THEN role IN (nspname || '_rw', nspname || '_calls')
				AND (SELECT count(*) < 2 FROM pg_attribute WHERE attrelid = grants.oid AND attname IN ('version', 'update_time'))
			ELSE role IN (nspname || '_rw', nspname || '_calls') AND privilege IN ('INSERT', 'UPDATE')
		END
		UNION ALL
		SELECT format('%s lacks SET search_path = pg_catalog, pg_temp', p.oid::regprocedure) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
		WHERE p.prosecdef AND n.nspname IN ('public', 'video_catalog', 'video_catalog_read')
			AND 'search_path=pg_catalog, pg_temp' <> ALL (coalesce(p.proconfig, '{}'))`)
	for _, finding := range findings {
		t.Error(finding)
	}
}
