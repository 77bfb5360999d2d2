package db

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pressly/goose/v3"
)

// CheckURL returns the mistakes in a URL for Open that can be found without a connection.
// The error contains no part of the URL.
func CheckURL(url string) error {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return errors.New("must be a URL such as postgres://user:password@host:5432/database?sslmode=verify-full")
	}
	if mode := cfg.ConnConfig.DefaultQueryExecMode; mode == pgx.QueryExecModeExec || mode == pgx.QueryExecModeSimpleProtocol {
		return errors.New("must not have default_query_exec_mode=exec or simple_protocol, which lose the types of values: behind a pooler in transaction mode use cache_describe")
	}
	return nil
}

// unprepared works through every pooler.
const unprepared = pgx.QueryExecModeExec

// fileNames returns the names of the files of this build's migrations, by number.
func fileNames(options []fs.FS) map[int64]string {
	names := make(map[int64]string)
	for _, files := range append([]fs.FS{heart}, options...) {
		found, _ := fs.Glob(files, "migrations/*.sql") // the pattern is valid, so there is no error
		for _, file := range found {
			number, _ := goose.NumericComponent(file) // goose ignores a file without a number
			names[number] = path.Base(file)
		}
	}
	return names
}

// missing returns the first of some migrations that a database has not run, or "". It returns an
// error if the database has run another file with the number of one.
func missing(ctx context.Context, pool *pgxpool.Pool, names map[int64]string) (first string, err error) {
	ran := make(map[int64]string) // an empty name was not recorded
	const sql = "SELECT coalesce(json_object_agg(version_id, coalesce(to_jsonb(m) ->> 'name', '')), '{}') FROM " + migrationsTable + " m WHERE is_applied"
	if err := pool.QueryRow(ctx, sql, unprepared).Scan(&ran); err != nil {
		return "", fmt.Errorf("read schema version (has `server migrate` run?): %w", err)
	}
	for _, number := range slices.Sorted(maps.Keys(names)) {
		switch name, ok := ran[number]; {
		case !ok:
			first = cmp.Or(first, names[number])
		case name != "" && name != names[number]:
			return "", fmt.Errorf("the database has run %s, which is not the migration %s of this build: give that one the next free number, then run `server migrate`", name, names[number])
		}
	}
	return first, nil
}

// mistakes returns the settings of the session's role that a service cannot have, with the remedies, and the migrations that the database
// needs now, because of what an option does there, and that are not among $1.
const mistakes = `
	SELECT concat_ws('; ', (SELECT string_agg(format('this build lacks %s, and would miss events: %s', name, needed), '; ')
		FROM ` + migrationsTable + ` WHERE needed <> '' AND version_id <> ALL ($1)), string_agg(format('%s is %s, so %s: ALTER ROLE %I SET %s = %L', name, current_setting(name), effect, session_user, name, remedy), '; '))
	FROM (VALUES
		('synchronous_commit', 'off', 'a crash of the server loses acknowledged commands', 'on'),
		('default_transaction_isolation', 'repeatable read|serializable', 'commands fail that meet at a row', 'read committed')
	) wrong (name, setting, effect, remedy)
	WHERE current_setting(name) ~ setting`

// Check returns an error if the database of a pool lacks migrations of this build, has run other
// files with their numbers, could lose or refuse commands, or needs a migration that this build lacks. options are the same as the options of
// Migrate. A schema with more migrations than this build is accepted, because a roll-back meets one.
func Check(ctx context.Context, options []fs.FS, pool *pgxpool.Pool) error {
	names := fileNames(options)
	first, err := missing(ctx, pool, names)
	if err != nil {
		return err
	}
	if first != "" {
		return fmt.Errorf("the schema is too old: it lacks %s; run `server migrate` first", first)
	}
	var wrong string
	if err := pool.QueryRow(ctx, mistakes, unprepared, slices.Collect(maps.Keys(names))).Scan(&wrong); err != nil {
		return fmt.Errorf("read settings of the database: %w", err)
	}
	if wrong != "" {
		return errors.New(wrong)
	}
	return nil
}

// Ping returns an error if a database cannot serve now. If writes is true, a read-only
// database cannot. Then Ping makes the pool replace its sessions, because they may be on a
// server that was replaced.
func Ping(ctx context.Context, pool *pgxpool.Pool, writes bool) error {
	var readOnly string
	if err := pool.QueryRow(ctx, "SHOW transaction_read_only").Scan(&readOnly); err != nil {
		return fmt.Errorf("ping database: %w", err)
	}
	if writes && strings.EqualFold(readOnly, "on") {
		pool.Reset()
		return errors.New("the database is read-only")
	}
	return nil
}
