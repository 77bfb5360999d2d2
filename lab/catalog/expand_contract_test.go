package catalog_test

import (
	"database/sql"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3"

	"example.com/servicekit/migratelint"
	"example.com/videocatalog/internal/pg/pgtest"
)

// lint fails the test for every statement of the migrations that would stop a running service.
func lint(t *testing.T, names []string) {
	t.Helper()
	var files []migratelint.File
	for _, name := range names {
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

// The worked example of docs/database.md, which renames a column, is safe by the same rules. Each build runs on the
// schema before and after its steps, as a roll-out and a roll-back need.
func TestExpandContractExample(t *testing.T) {
	t.Parallel()
	steps, err := filepath.Glob("testdata/expand_contract/*.sql")
	must(t, err)
	if len(steps) != 5 {
		t.Fatalf("steps = %q, want 5", steps)
	}
	migrations, err := filepath.Glob("../../db/migrations/*.sql")
	must(t, err)
	lint(t, append(migrations, steps...))

	// others are the columns that every build writes, with values.
	const others = `id, title, description, duration_ms, language_code, tags, state, version, create_time, update_time`
	const values = `gen_random_uuid(), 't', 'd', 1, 'en', '{}', 'draft', 1, now(), now()`
	builds := []struct{ name, write, reads string }{
		{"the build before", "INSERT INTO video_catalog.videos (" + others + ", release_year) VALUES (" + values + ", 1999)", "release_year"},
		{"writes both", "INSERT INTO video_catalog.videos (" + others + ", release_year, premiere_year) VALUES (" + values + ", 1999, 1999)", "release_year"},
		{"reads the new one", "INSERT INTO video_catalog.videos (" + others + ", release_year, premiere_year) VALUES (" + values + ", 1999, 1999)", "premiere_year"},
		{"knows only the new one", "INSERT INTO video_catalog.videos (" + others + ", premiere_year) VALUES (" + values + ", 1999)", "premiere_year"},
	}
	target := pgtest.Direct(t, pgtest.URL(t))
	pool := pgtest.Open(t, target, 2)
	sqlDB, err := sql.Open("pgx", target)
	must(t, err)
	defer sqlDB.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, sqlDB, os.DirFS("testdata/expand_contract"), goose.WithSlog(slog.New(slog.DiscardHandler)),
		goose.WithDisableGlobalRegistry(true), goose.WithAllowOutofOrder(true), goose.WithTableName("example_version"))
	must(t, err)
	// run lets the builds from first to last write. After each write, every row has the year that the build reads.
	run := func(step string, first, last int) {
		t.Helper()
		for _, build := range builds[first : last+1] {
			if _, err := pool.Exec(t.Context(), build.write, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Errorf("after %s, the build that %s: %s: %v", step, build.name, build.write, err)
			}
			var missing int
			sql := "SELECT count(*) FROM video_catalog.videos WHERE " + build.reads + " IS NULL"
			if err := pool.QueryRow(t.Context(), sql, pgx.QueryExecModeSimpleProtocol).Scan(&missing); err != nil || missing > 0 {
				t.Errorf("after %s, the build that %s: %d rows without %s, %v, want none", step, build.name, missing, build.reads, err)
			}
		}
	}
	run("nothing", 0, 0)
	for i, step := range []struct{ first, last int }{{0, 1}, {1, 2}, {1, 2}, {2, 3}, {3, 3}} {
		if i == 1 { // the backfill, a command in batches, before the check constraint that requires it
			execute(t, pool, "UPDATE video_catalog.videos SET premiere_year = release_year WHERE id IN (SELECT id FROM video_catalog.videos WHERE premiere_year IS NULL LIMIT 1000)")
		}
		_, err := provider.UpByOne(t.Context())
		must(t, err)
		run(filepath.Base(steps[i]), step.first, step.last)
	}
	var missing int
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM video_catalog.videos WHERE premiere_year IS DISTINCT FROM 1999").Scan(&missing); err != nil || missing != 0 {
		t.Errorf("rows that lost their year = %d, %v, want none", missing, err)
	}
}
