package migratelint

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const timeout = "SET LOCAL lock_timeout = '2s';\n"

// migration returns a file with this forward part.
func migration(number int, sql string) File {
	return File{Name: fmt.Sprintf("%05d.sql", number), Text: "-- +goose Up\n" + sql + "\n-- +goose Down\nDROP TABLE everything;\n"}
}

// withoutTransaction returns a file that goose runs without a transaction.
func withoutTransaction(number int, sql string) File {
	file := migration(number, sql)
	file.Text = "-- +goose NO TRANSACTION\n" + file.Text
	return file
}

// rules returns the rules that Lint reports.
func rules(t *testing.T, files ...File) (names string) {
	t.Helper()
	findings, err := Lint(files)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		names += f.Rule + " "
	}
	return strings.TrimSpace(names)
}

// Each rule refuses what it should, and accepts the safe way.
func TestRules(t *testing.T) {
	t.Parallel()
	tried := make(map[string]bool)
	for _, test := range []struct {
		sql  string // after SET LOCAL lock_timeout
		want string
	}{
		{"ALTER TABLE v ADD COLUMN c int NOT NULL", "add-not-null"},
		{"ALTER TABLE v ADD COLUMN c int NOT NULL DEFAULT 0", ""},
		{"ALTER TABLE v ADD COLUMN c int", ""},
		{"ALTER TABLE v ADD COLUMN c text NULL DEFAULT 'x'::text", ""},
		{"ALTER TABLE v ADD COLUMN c uuid DEFAULT gen_random_uuid()", "volatile-default"},
		{"ALTER TABLE v ADD COLUMN c timestamptz DEFAULT clock_timestamp()", "volatile-default"},
		{"ALTER TABLE v ADD COLUMN c bigint DEFAULT 1 + random()", "volatile-default"},
		{"ALTER TABLE v ADD COLUMN c text[] DEFAULT ARRAY[f()]", "volatile-default"},
		{"ALTER TABLE v ADD COLUMN c bigserial", "volatile-default"},
		{"ALTER TABLE v ADD COLUMN c bigint GENERATED ALWAYS AS IDENTITY", "volatile-default"},
		{"ALTER TABLE v ADD COLUMN c int GENERATED ALWAYS AS (d + 1) STORED", "volatile-default"},
		{"-- small: a row per lane\nALTER TABLE v ADD COLUMN c int GENERATED ALWAYS AS (d + 1) STORED", ""},
		{"-- small: a row per lane\nALTER TABLE v ADD COLUMN c uuid DEFAULT gen_random_uuid()", "volatile-default"},
		{"ALTER TABLE v ADD COLUMN c timestamptz NOT NULL DEFAULT now()", ""},
		{"ALTER TABLE v ADD COLUMN c timestamptz DEFAULT CURRENT_TIMESTAMP", ""},
		{"ALTER TABLE v ADD COLUMN c text[] DEFAULT ARRAY['a']", ""},
		{"ALTER TABLE v ADD COLUMN c int UNIQUE", "add-constraint"},
		{"ALTER TABLE v ADD COLUMN c int REFERENCES w", "add-constraint"},
		{"ALTER TABLE v ADD COLUMN c int CHECK (c > 0)", "add-constraint"},
		{"ALTER TABLE v ADD CONSTRAINT k UNIQUE (c)", "add-constraint"},
		{"ALTER TABLE v ADD CONSTRAINT k PRIMARY KEY (c)", "add-constraint"},
		{"ALTER TABLE v ADD CONSTRAINT k EXCLUDE USING gist (c WITH &&)", "add-constraint"},
		{"ALTER TABLE v ADD CONSTRAINT k UNIQUE USING INDEX i", ""},
		{"ALTER TABLE v ADD CONSTRAINT k CHECK (c > 0)", "validate"},
		{"ALTER TABLE v ADD CONSTRAINT k FOREIGN KEY (c) REFERENCES w", "validate"},
		{"ALTER TABLE v ADD CONSTRAINT k CHECK (c > 0) NOT VALID", ""},
		{"ALTER TABLE v ADD CONSTRAINT k CHECK (c > 0) NOT VALID; ALTER TABLE v VALIDATE CONSTRAINT k", "validate"},
		{"ALTER TABLE v ALTER COLUMN c SET NOT NULL", "set-not-null"},
		{"ALTER TABLE v ALTER COLUMN c DROP NOT NULL", ""},
		{"ALTER TABLE v ALTER COLUMN c SET DEFAULT f()", ""},
		{"ALTER TABLE v ALTER COLUMN c TYPE bigint", "alter-type"},
		{"ALTER TABLE v RENAME COLUMN c TO d", "rename"},
		{"ALTER TABLE v RENAME TO w", "rename"},
		{"ALTER FUNCTION f() RENAME TO g", "rename"},
		{"ALTER TABLE v SET SCHEMA s", "rename"},
		{"ALTER TABLE v DROP COLUMN c", "contract"},
		{"-- a comment\nALTER TABLE v DROP COLUMN c", "contract"},
		{"ALTER TABLE v DROP COLUMN c -- contract: too late", "contract"},
		{"-- contract:\nALTER TABLE v DROP COLUMN c", "contract"},
		{"-- contract: read by no build since 1.4\nALTER TABLE v DROP COLUMN c", ""},
		{"ALTER TABLE v DROP CONSTRAINT k", "contract"},
		{"DROP TABLE v", "contract"},
		{"DROP FUNCTION f(int)", "contract"},
		{"DROP SCHEMA s CASCADE", "contract"},
		{"TRUNCATE v", "contract"},
		{"-- contract: moved to w in 00007\nDROP TABLE v", ""},
		{"CREATE INDEX i ON v (c)", "index"},
		{"CREATE INDEX CONCURRENTLY i ON v (c)", "index"},
		{"DROP INDEX i", "index"},
		{"SET LOCAL lock_timeout = '100us'; ALTER TABLE v ADD COLUMN d int", "lock-timeout"},
		{"-- not CONCURRENTLY\nREINDEX TABLE v", "index"},
		{"UPDATE v SET c = 1", "whole-table"},
		{"DELETE FROM v", "whole-table"},
		{"UPDATE v SET c = 1 WHERE id = 7", ""},
		{"DO $$ BEGIN ALTER  TABLE v ADD COLUMN c int; END $$", "opaque"},
		{"DO $$ BEGIN UPDATE v SET c = 1; END $$", "opaque"},
		{"DO $$ BEGIN CREATE ROLE r; END $$", ""},
		{"LOCK TABLE v", "unknown"},
		{"ALTER TABLE v SET UNLOGGED", "unknown"},
		{"ALTER TABLE v ATTACH PARTITION w DEFAULT", "unknown"},
		{"CLUSTER v USING i", "unknown"},
		{"ALTER TABLE v ENABLE ROW LEVEL SECURITY", "contract"},
		{"ALTER TABLE v FORCE ROW LEVEL SECURITY", "contract"},
		{"-- contract: the policy p shows all\nALTER TABLE v ENABLE ROW LEVEL SECURITY", ""},
		{"ALTER TABLE v DISABLE ROW LEVEL SECURITY", ""},
		{"ALTER TABLE v ALTER COLUMN c DROP DEFAULT", "contract"},
		{"ALTER TABLE v OWNER TO r", "contract"},
		{"ALTER TABLE v DISABLE TRIGGER t", "contract"},
		{"ALTER TABLE v DISABLE TRIGGER ALL", "contract"},
		{"ALTER TABLE v DISABLE TRIGGER USER", "contract"},
		{"ALTER TABLE v ENABLE TRIGGER t", ""},
		{"ALTER TYPE e RENAME VALUE 'a' TO 'b'", "rename"},
		{"ALTER TYPE e ADD VALUE 'b'", ""},
		{"REVOKE ALL ON v FROM r", "contract"},
		{"REVOKE ALL ON v FROM PUBLIC", ""},
		{"REVOKE r FROM s", "contract"},
		{"-- contract: s is gone\nREVOKE r FROM s", ""},
		{"GRANT r TO s", ""},
		{"UPDATE v SET c = 1 WHERE true", "whole-table"},
		{"WITH d AS (DELETE FROM v RETURNING 1) SELECT count(*) FROM d", "whole-table"},
		{"WITH d AS (DELETE FROM v WHERE id = 7 RETURNING 1) SELECT count(*) FROM d", ""},
		{"WITH d AS (UPDATE v SET c = 1 RETURNING id), e AS (DELETE FROM w RETURNING 1) INSERT INTO x SELECT id FROM d", "whole-table whole-table"},
		{"WITH d AS (DELETE FROM w) DELETE FROM v WHERE id = 7", "whole-table"},
		{"CREATE TABLE x AS WITH d AS (DELETE FROM v RETURNING id) SELECT id FROM d", "whole-table"},
		{"INSERT INTO v VALUES (1)", ""},
		{"DO $$ BEGIN LOCK v; END $$", "opaque"},
		{"CREATE TABLE n (v uuid REFERENCES v, w uuid, FOREIGN KEY (w) REFERENCES w)", ""},
		{"CREATE TABLE n PARTITION OF v DEFAULT", ""},
		{"CREATE TABLE n (); ALTER TABLE n ATTACH PARTITION v DEFAULT", "unknown"},
		{"CREATE TABLE IF NOT EXISTS v (); ALTER TABLE v ALTER COLUMN c TYPE bigint", "alter-type"},
		{"CREATE TABLE IF NOT EXISTS v AS SELECT 1; DELETE FROM v", "whole-table"},
		{"CREATE SCHEMA IF NOT EXISTS s; DELETE FROM s.v", "whole-table"},
		{"COMMENT ON TABLE v IS 'x'; GRANT SELECT ON v TO r; CREATE OR REPLACE FUNCTION f() RETURNS int LANGUAGE sql RETURN 1", ""},
	} {
		if got := rules(t, migration(1, timeout+test.sql+";")); got != test.want {
			t.Errorf("%s: %q, want %q", test.sql, got, test.want)
		}
		tried[test.want] = true
	}
	for _, test := range []struct{ sql, want string }{
		{"ALTER TABLE v ADD COLUMN c int;", "lock-timeout"},
		{"ALTER TABLE v ADD COLUMN c int; SET LOCAL lock_timeout = '2s';", "lock-timeout"},
		{"SET LOCAL lock_timeout = DEFAULT; ALTER TABLE v ADD COLUMN c int;", "lock-timeout"},
		{"SET LOCAL statement_timeout = '2s'; ALTER TABLE v ADD COLUMN c int;", "lock-timeout"},
		{"CREATE TRIGGER t AFTER INSERT ON v FOR EACH ROW EXECUTE FUNCTION f();", "lock-timeout"},
		{"CREATE POLICY p ON v USING (true);", "lock-timeout"},
		{"-- contract: gone\nDROP TABLE v;", "lock-timeout"},
		{"SET LOCAL lock_timeout = 0; ALTER TABLE v ADD COLUMN c int;", "lock-timeout"},
		{"SET LOCAL lock_timeout = '0'; ALTER TABLE v ADD COLUMN c int;", "lock-timeout"},
		{"SET LOCAL lock_timeout = 2000; ALTER TABLE v ADD COLUMN c int;", ""},
		{"SET LOCAL lock_timeout = '2000'; ALTER TABLE v ADD COLUMN c int;", ""},
		{"SET lock_timeout TO '500 ms'; ALTER TABLE v ADD COLUMN c int;", ""},
		{"SET LOCAL lock_timeout = '10s'; ALTER TABLE v ADD COLUMN c int;", ""},
		{"SET LOCAL lock_timeout = '11s'; ALTER TABLE v ADD COLUMN c int;", "lock-timeout"},
		{"SET LOCAL lock_timeout = 10001; ALTER TABLE v ADD COLUMN c int;", "lock-timeout"},
		{"SET LOCAL lock_timeout = '1min'; ALTER TABLE v ADD COLUMN c int;", "lock-timeout"},
		{"SET LOCAL lock_timeout = '99999999999999999999'; ALTER TABLE v ADD COLUMN c int;", "lock-timeout"},
		{"SET LOCAL lock_timeout = '2s'; RESET lock_timeout; ALTER TABLE v ADD COLUMN c int;", "lock-timeout"},
		{"SET LOCAL lock_timeout = '2s'; RESET ALL; ALTER TABLE v ADD COLUMN c int;", "lock-timeout"},
		{"SET LOCAL lock_timeout = '2s'; SET LOCAL lock_timeout = 0; ALTER TABLE v ADD COLUMN c int;", "lock-timeout"},
		{"CREATE TABLE n (v uuid REFERENCES v);", "lock-timeout"},
		{"CREATE TABLE n (v uuid, FOREIGN KEY (v) REFERENCES s.v);", "lock-timeout"},
		{"CREATE TABLE n (v uuid); ALTER TABLE n ADD FOREIGN KEY (v) REFERENCES v;", "lock-timeout"},
		{"CREATE TABLE n (); ALTER TABLE n ADD COLUMN v uuid REFERENCES v;", "lock-timeout"},
		{"CREATE TABLE n (id uuid PRIMARY KEY, parent uuid REFERENCES n); CREATE TABLE m (n uuid REFERENCES n);", ""},
		{"CREATE TABLE n PARTITION OF v DEFAULT;", "lock-timeout"},
		{"CREATE TABLE n () INHERITS (v);", "lock-timeout"},
		{"CREATE TABLE n (id int) PARTITION BY LIST (id); CREATE TABLE m PARTITION OF n DEFAULT;", ""},
		{"CREATE OR REPLACE VIEW v AS SELECT 1;\n-- contract: gone\nDROP VIEW v;", "lock-timeout"},
	} {
		if got := rules(t, migration(1, test.sql)); got != test.want {
			t.Errorf("%s: %q, want %q", test.sql, got, test.want)
		}
		tried[test.want] = true
	}

	// Every rule in the package comment has a test.
	source, err := os.ReadFile("migratelint.go")
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^//   - ([a-z, -]+): `).FindAllStringSubmatch(string(source), -1)
	if len(lines) < 8 {
		t.Fatalf("%d lines of rules in the package comment, want all", len(lines))
	}
	for _, line := range lines {
		for name := range strings.SplitSeq(line[1], ", ") {
			if !tried[name] {
				t.Errorf("no test of the rule %q", name)
			}
		}
	}
}

// A migration may alter, index and empty the tables that it creates, also those in schemas that it creates.
func TestFirstCreationIsFree(t *testing.T) {
	t.Parallel()
	all := `
		ALTER TABLE %[1]s ADD COLUMN c int NOT NULL;
		ALTER TABLE %[1]s ALTER COLUMN c TYPE bigint;
		CREATE INDEX ON %[1]s (c);
		CREATE POLICY p ON %[1]s USING (true);
		DELETE FROM %[1]s;`
	for _, made := range []string{"CREATE TABLE v ();", "CREATE TABLE v AS SELECT 1;", "CREATE TABLE s.v ();", "CREATE SCHEMA s; CREATE TABLE s.v ();"} {
		table := "v"
		if strings.Contains(made, "s.v") {
			table = "s.v"
		}
		if got := rules(t, migration(1, made+fmt.Sprintf(all, table))); got != "" {
			t.Errorf("%s, then changes: %q, want none", made, got)
		}
		// For the next migration, the tables are in use.
		want := "lock-timeout add-not-null lock-timeout alter-type index lock-timeout whole-table"
		if got := rules(t, migration(1, made), migration(2, fmt.Sprintf(all, table))); got != want {
			t.Errorf("%s, then changes in the next migration: %q, want %q", made, got, want)
		}
		if got := rules(t, migration(1, made+fmt.Sprintf(all, "other.v"))); got != want {
			t.Errorf("%s, then changes of other.v: %q, want %q", made, got, want)
		}
	}
}

// NOT NULL needs three steps: CHECK NOT VALID, then, in a later migration, VALIDATE and SET NOT NULL.
func TestSetNotNullBehindACheck(t *testing.T) {
	t.Parallel()
	check := timeout + "ALTER TABLE v ADD CONSTRAINT k CHECK (c IS NOT NULL) NOT VALID;"
	validate := timeout + "ALTER TABLE v VALIDATE CONSTRAINT k;"
	set := timeout + "ALTER TABLE v ALTER COLUMN c SET NOT NULL;"
	for _, test := range []struct {
		name  string
		files []File
		want  string
	}{
		{"in order", []File{migration(1, check), migration(2, validate), migration(3, set)}, ""},
		{"validated together with it", []File{migration(1, check), migration(2, validate+set)}, ""},
		{"not validated", []File{migration(1, check), migration(2, set)}, "set-not-null"},
		{"another column", []File{migration(1, strings.ReplaceAll(check, "c IS", "d IS")), migration(2, validate), migration(3, set)}, "set-not-null"},
		{"another table", []File{migration(1, strings.ReplaceAll(check, "v ADD", "w ADD")), migration(2, validate), migration(3, set)}, "set-not-null"},
		{"another check", []File{migration(1, strings.ReplaceAll(check, "IS NOT NULL", "> 0")), migration(2, validate), migration(3, set)}, "set-not-null"},
		{"the check is gone", []File{
			migration(1, check), migration(2, validate), migration(3, timeout+"-- contract: c is never null\nALTER TABLE v DROP CONSTRAINT k;"), migration(4, set),
		}, "set-not-null"},
		{"all at once", []File{migration(1, check+validate+set)}, "validate"},
	} {
		if got := rules(t, test.files...); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

// In a migration without transaction, SET LOCAL has no effect.
func TestLockTimeoutHoldsWithoutTransaction(t *testing.T) {
	t.Parallel()
	const alter = "ALTER TABLE v ADD COLUMN c int;"
	for _, test := range []struct{ sql, want string }{
		{"SET lock_timeout = '2s';" + alter, ""},
		{"SET LOCAL lock_timeout = '2s';" + alter, "lock-timeout"},
		{"SET lock_timeout = '2s'; SET LOCAL lock_timeout = 0;" + alter, ""},
	} {
		if got := rules(t, withoutTransaction(1, test.sql)); got != test.want {
			t.Errorf("%s: %q, want %q", test.sql, got, test.want)
		}
	}
}

// CREATE INDEX CONCURRENTLY must be alone in a migration without transaction, so that a failure leaves no half
// migration.
func TestConcurrentIndexStandsAlone(t *testing.T) {
	t.Parallel()
	const create, remove = "CREATE INDEX CONCURRENTLY i ON v (c);", "-- contract: no query needs it\nDROP INDEX CONCURRENTLY i;"
	for _, test := range []struct {
		name string
		file File
		want string
	}{
		{"create alone", withoutTransaction(1, create), ""},
		{"with a setting", withoutTransaction(1, "SET maintenance_work_mem = '1GB';"+create), ""},
		{"drop alone", withoutTransaction(1, remove), ""},
		{"in a transaction", migration(1, create), "index"},
		{"two", withoutTransaction(1, create+create), "index index"},
		{"drop without a reason", withoutTransaction(1, "DROP INDEX CONCURRENTLY i;"), "contract"},
	} {
		if got := rules(t, test.file); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

// A finding has the file and the line of the statement, without the comments before it. The down part is not checked,
// because it never runs in production.
func TestFindingPointsAtTheStatement(t *testing.T) {
	t.Parallel()
	text := "-- Größe: what this is about\n\n-- +goose Up\n-- first\nCREATE TABLE v (c text); -- ü\n\n" +
		"-- +goose StatementBegin\n/* two\nlines */\nTRUNCATE\n\tw;\n-- +goose StatementEnd\n\n-- +goose Down\nTRUNCATE v;\n"
	got, err := Lint([]File{{Name: "00001_v.sql", Text: text}})
	if err != nil {
		t.Fatal(err)
	}
	want := []Finding{{File: "00001_v.sql", Line: 10, Rule: "lock-timeout"}, {File: "00001_v.sql", Line: 10, Rule: "contract"}}
	for i := range got {
		if !strings.HasPrefix(got[i].String(), "00001_v.sql:10: ") {
			t.Errorf("String() = %q", got[i])
		}
		got[i].Message = ""
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

// A migration that cannot be parsed is an error that names the file.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ text, want string }{
		{"-- +goose Up\nALTER TABLE v ADD COLUMN;\n", "1.sql: parse: "},
		{"ALTER TABLE v ADD COLUMN c int;\n", "1.sql: there is no line"},
	} {
		if _, err := Lint([]File{{Name: "1.sql", Text: test.text}}); err == nil || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("Lint(%q) = %v, want it to begin with %q", test.text, err, test.want)
		}
	}
}
