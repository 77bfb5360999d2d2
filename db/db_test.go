package db_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pressly/goose/v3"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/store/storetest"
)

// migrateVariable makes the test binary migrate a database and exit: a process
// of its own.
const migrateVariable = "DB_TEST_MIGRATE"

func TestMain(m *testing.M) {
	if target := os.Getenv(migrateVariable); target != "" {
		n, err := db.Migrate(context.Background(), target, slog.New(slog.DiscardHandler))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(n)
		return
	}
	storetest.Main(m)
}

var discard = slog.New(slog.DiscardHandler)

// migrations are the files, in order.
func migrations(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("migrations/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatal("there are no migrations")
	}
	return files
}

var databases atomic.Int64

// fresh makes a database without any schema and returns its URL.
func fresh(t testing.TB) string {
	t.Helper()
	admin := open(t, storetest.Direct(t, storetest.URL(t)))
	name := fmt.Sprintf("fresh_%d", databases.Add(1))
	execute(t, admin, "CREATE DATABASE "+name)
	t.Cleanup(func() {
		if _, err := admin.Exec(context.WithoutCancel(t.Context()), "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	address, err := url.Parse(admin.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	address.Path = "/" + name
	return address.String()
}

func open(t testing.TB, target string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func execute(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// schema describes everything that migrations make: schemas, relations with
// their columns, indexes and constraints, functions, and what roles may do with
// them; not the data, not the partitions of the outbox, which depend on the day, and
// not the table of goose's lock, which is there before the first migration.
func schema(t testing.TB, pool *pgxpool.Pool) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `
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
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// The version of a build is the number of its last migration. A number has five digits, so
// that files are in the order in which they run, and is there once: two branches that both
// added one must notice.
func TestVersionIsTheLastMigration(t *testing.T) {
	t.Parallel()
	number := regexp.MustCompile(`^(\d{5})_[a-z0-9_]+\.sql$`)
	last, before := "", ""
	for _, file := range migrations(t) {
		found := number.FindStringSubmatch(filepath.Base(file))
		if found == nil {
			t.Errorf("%s: want a name like 01000_orders.sql", file)
			continue
		}
		if found[1] == last {
			t.Errorf("%s and %s have the same number", before, file)
		}
		last, before = found[1], file
	}
	if got := fmt.Sprintf("%05d", db.Version()); got != last {
		t.Errorf("Version() = %s, want %s", got, last)
	}
}

// Migrate runs every migration once; on a database that has them it does
// nothing.
func TestMigrateTwiceRunsOnce(t *testing.T) {
	t.Parallel()
	target := fresh(t)
	want := len(migrations(t))
	for _, want := range []int{want, 0, 0} {
		if got, err := db.Migrate(t.Context(), target, discard); got != want || err != nil {
			t.Errorf("Migrate() = %d, %v, want %d, nil", got, err, want)
		}
	}
}

// build returns the files of a build: the migrations of the template, and more that make a
// table of their name, such as 01000_orders.
func build(t testing.TB, more ...string) fstest.MapFS {
	t.Helper()
	files := make(fstest.MapFS)
	for _, name := range migrations(t) {
		if filepath.Base(name) >= "01000" {
			break
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files[filepath.Base(name)] = &fstest.MapFile{Data: text}
	}
	for _, name := range more {
		_, table, _ := strings.Cut(name, "_")
		files[name+".sql"] = &fstest.MapFile{Data: []byte("-- +goose Up\nCREATE TABLE video_catalog." + table + " (id int);\n-- +goose Down\nDROP TABLE video_catalog." + table + ";\n")}
	}
	return files
}

// A service has run its own migrations, which begin at 01000, when a later version of the
// template brings more of its own. They run, and make the schema that a new database gets
// from all of them in order.
func TestMigrateRunsLaterMigrationsOfTheTemplate(t *testing.T) {
	t.Parallel()
	target := fresh(t)
	before := build(t, "01000_orders", "01001_invoices")
	after := build(t, "00901_notes", "00902_letters", "01000_orders", "01001_invoices", "01002_bills")
	for _, step := range []struct {
		name  string
		files fstest.MapFS
		want  int
	}{
		{"a new database", before, len(before)}, {"again", before, 0}, {"the later version", after, 3}, {"again", after, 0}, {"the build before", before, 0},
	} {
		if got, err := db.MigrateFS(t.Context(), target, step.files, discard); got != step.want || err != nil {
			t.Fatalf("%s: Migrate() = %d, %v, want %d, nil", step.name, got, err, step.want)
		}
	}
	inOrder := fresh(t)
	if _, err := db.MigrateFS(t.Context(), inOrder, after, discard); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(schema(t, open(t, inOrder)), schema(t, open(t, target))); diff != "" {
		t.Errorf("schema (-of a new database +of one that was upgraded):\n%s", diff)
	}
}

// A migration whose place in its sequence has passed does not run, nor does any other: a
// new database would get them in another order.
func TestMigrateRefusesAMigrationThatComesTooLate(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name          string
		before, after []string
		want          string
	}{
		{"of the template", []string{"00902_letters"}, []string{"00901_notes", "00902_letters", "01000_orders"}, "00901"},
		{"of the service", []string{"01001_invoices"}, []string{"00901_notes", "01000_orders", "01001_invoices"}, "01000"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			target := fresh(t)
			if _, err := db.MigrateFS(t.Context(), target, build(t, test.before...), discard); err != nil {
				t.Fatal(err)
			}
			pool := open(t, target)
			before := schema(t, pool)
			got, err := db.MigrateFS(t.Context(), target, build(t, test.after...), discard)
			if got != 0 || !errors.Is(err, db.ErrUnfit) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Migrate() = %d, %v, want ErrUnfit with %s", got, err, test.want)
			}
			if diff := cmp.Diff(before, schema(t, pool)); diff != "" {
				t.Errorf("schema (-before +after it was refused):\n%s", diff)
			}
		})
	}
}

// Several processes may migrate at the same time, as instances that start
// together do: each migration runs in one of them, and all of them succeed.
func TestMigrateFromSeveralProcesses(t *testing.T) {
	t.Parallel()
	const processes = 4
	target := fresh(t)
	ran := make([]int, processes)
	var wg sync.WaitGroup
	for i := range ran {
		wg.Go(func() {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), migrateVariable+"="+target)
			cmd.Stderr = t.Output()
			out, err := cmd.Output()
			if err != nil {
				t.Errorf("process %d: %v", i, err)
				return
			}
			if ran[i], err = strconv.Atoi(strings.TrimSpace(string(out))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	total := 0
	for _, n := range ran {
		total += n
	}
	if total != len(migrations(t)) {
		t.Errorf("migrations run by each process = %v, want %d together", ran, len(migrations(t)))
	}
	if err := db.Check(t.Context(), open(t, target)); err != nil {
		t.Errorf("Check() = %v", err)
	}
}

// A build refuses a schema that lacks a migration of its own, and nothing
// else: after a roll-back the schema is newer.
func TestCheck(t *testing.T) {
	t.Parallel()
	migrated := func(t *testing.T) *pgxpool.Pool { return open(t, storetest.URL(t)) }
	after := func(sql string) func(*testing.T) *pgxpool.Pool {
		return func(t *testing.T) *pgxpool.Pool {
			pool := migrated(t)
			execute(t, pool, sql)
			return pool
		}
	}
	newest := strconv.FormatInt(db.Version(), 10)
	for _, test := range []struct {
		name string
		pool func(*testing.T) *pgxpool.Pool
		want error
	}{
		{"fresh database", func(t *testing.T) *pgxpool.Pool { return open(t, fresh(t)) }, db.ErrSchemaTooOld},
		{"no migration yet", after("DELETE FROM video_catalog_migrations"), db.ErrSchemaTooOld},
		{"one migration less", after("DELETE FROM video_catalog_migrations WHERE version_id = " + newest), db.ErrSchemaTooOld},
		{"one of the first less", after("DELETE FROM video_catalog_migrations WHERE version_id = 1"), db.ErrSchemaTooOld},
		{"a later one instead", after("UPDATE video_catalog_migrations SET version_id = 99999 WHERE version_id = " + newest), db.ErrSchemaTooOld},
		{"migrated", migrated, nil},
		{"newer", after("INSERT INTO video_catalog_migrations (version_id, is_applied) VALUES (" + newest + " + 1, true)"), nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if err := db.Check(t.Context(), test.pool(t)); !errors.Is(err, test.want) {
				t.Errorf("Check() = %v, want %v", err, test.want)
			}
		})
	}
	t.Run("no database", func(t *testing.T) {
		t.Parallel()
		pool := migrated(t)
		pool.Close()
		if err := db.Check(t.Context(), pool); err == nil || errors.Is(err, db.ErrSchemaTooOld) {
			t.Errorf("Check() = %v, want an error, but not that the schema is too old", err)
		}
	})
}

// The users of the service may ask for the version too.
func TestCheckNeedsNoMoreThanARole(t *testing.T) {
	t.Parallel()
	target := storetest.Direct(t, storetest.URL(t)) // SET ROLE below is of the session
	for _, role := range []string{"video_catalog_rw", "video_catalog_read_rw", "support_ro"} {
		cfg, err := pgxpool.ParseConfig(target)
		if err != nil {
			t.Fatal(err)
		}
		cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "SET ROLE "+role)
			return err
		}
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		if err := db.Check(t.Context(), pool); err != nil {
			t.Errorf("Check() as %s = %v", role, err)
		}
	}
}

// Every migration can be taken back, on a developer's machine: each Down undoes
// its Up, nothing more and nothing less.
func TestEveryMigrationGoesDownAndUpAgain(t *testing.T) {
	t.Parallel()
	for _, file := range migrations(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"-- +goose Up\n", "-- +goose Down\n"} {
			if strings.Count(string(text), part) != 1 {
				t.Errorf("%s: want one line %q", file, part)
			}
		}
	}

	target := fresh(t)
	pool := open(t, target)
	sqlDB, err := sql.Open("pgx", target)
	if err != nil {
		t.Fatal(err)
	}
	defer sqlDB.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, sqlDB, os.DirFS("migrations"), goose.WithTableName("video_catalog_migrations"), goose.WithSlog(discard), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := provider.GetDBVersion(t.Context()); err != nil { // makes its table, which no Down removes
		t.Fatal(err)
	}
	states := [][]string{schema(t, pool)} // after so many migrations
	for range migrations(t) {
		if _, err := provider.UpByOne(t.Context()); err != nil {
			t.Fatal(err)
		}
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
	if got, err := db.Migrate(t.Context(), target, discard); got != len(states)-1 || err != nil {
		t.Errorf("Migrate() after all went down = %d, %v, want %d, nil", got, err, len(states)-1)
	}
	checkState(len(states)-1, "all Downs and Migrate")
}
