package db

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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

// Check returns an error if the database of a pool lacks migrations of this build, or could
// lose acknowledged commands. options are the same as the options of Migrate. A schema
// with more migrations than this build is accepted, because a roll-back meets one.
func Check(ctx context.Context, options []fs.FS, pool *pgxpool.Pool) error {
	const unprepared = pgx.QueryExecModeExec // works through every pooler
	rows, _ := pool.Query(ctx, "SELECT version_id FROM "+migrationsTable+" WHERE is_applied", unprepared)
	applied, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return fmt.Errorf("read schema version (has `server migrate` run?): %w", err)
	}
	for _, files := range append([]fs.FS{heart}, options...) {
		names, _ := fs.Glob(files, "migrations/*.sql") // the pattern is valid, so there is no error
		for _, name := range names {
			if version, err := goose.NumericComponent(name); err != nil || !slices.Contains(applied, version) {
				return fmt.Errorf("the schema is too old: it lacks %s; run `server migrate` first", name)
			}
		}
	}
	var synchronousCommit, role string
	if err := pool.QueryRow(ctx, "SELECT current_setting('synchronous_commit'), session_user::text", unprepared).Scan(&synchronousCommit, &role); err != nil {
		return fmt.Errorf("read settings of the database: %w", err)
	}
	if synchronousCommit == "off" {
		return fmt.Errorf("synchronous_commit is off, so a crash of the server loses acknowledged commands: ALTER ROLE %s SET synchronous_commit = on", pgx.Identifier{role}.Sanitize())
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
