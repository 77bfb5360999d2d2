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
func fileNames(options []fs.FS) (map[int64]string, error) {
	names := make(map[int64]string)
	for _, files := range append([]fs.FS{heart}, options...) {
		found, _ := fs.Glob(files, "migrations/*.sql") // the pattern is valid, so there is no error
		for _, file := range found {
			number, err := goose.NumericComponent(file)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			names[number] = path.Base(file)
		}
	}
	return names, nil
}

// missing returns the first of this build's migrations that a database has not run, or "". It
// returns an error if the database has run another file with the number of one.
func missing(ctx context.Context, names map[int64]string, pool *pgxpool.Pool) (first string, err error) {
	ran := make(map[int64]string) // an empty name was not recorded
	if err := pool.QueryRow(ctx, "SELECT coalesce(json_object_agg(version_id, coalesce(to_jsonb(m) ->> 'name', '')), '{}') FROM "+migrationsTable+" m WHERE is_applied",
		unprepared).Scan(&ran); err != nil {
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

// Check returns an error if the database of a pool lacks migrations of this build, has run others
// with their numbers, or could lose or refuse commands. options are the same as the options of Migrate. A schema
// with more migrations than this build is accepted, because a roll-back meets one.
func Check(ctx context.Context, options []fs.FS, pool *pgxpool.Pool) error {
	names, err := fileNames(options)
	if err != nil {
		return err
	}
	if first, err := missing(ctx, names, pool); err != nil {
		return err
	} else if first != "" {
		return fmt.Errorf("the schema is too old: it lacks %s; run `server migrate` first", first)
	}
	var synchronousCommit, isolation, role string
	if err := pool.QueryRow(ctx, "SELECT current_setting('synchronous_commit'), current_setting('default_transaction_isolation'), session_user::text", unprepared).
		Scan(&synchronousCommit, &isolation, &role); err != nil {
		return fmt.Errorf("read settings of the database: %w", err)
	}
	role = pgx.Identifier{role}.Sanitize()
	if synchronousCommit == "off" {
		return fmt.Errorf("synchronous_commit is off, so a crash of the server loses acknowledged commands: ALTER ROLE %s SET synchronous_commit = on", role)
	}
	if isolation != "read committed" {
		return fmt.Errorf("default_transaction_isolation is %s, so commands that change one row at once fail: ALTER ROLE %s SET default_transaction_isolation = 'read committed'", isolation, role)
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
