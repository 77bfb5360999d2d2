package db

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// firstOwn is the number of the first migration of a service.
const firstOwn = 1000

// sequence returns the sequence of a migration, by its number.
func sequence(version int64) int64 { return min(version, firstOwn) / 100 }

// build is the migrations of a build: file systems with a folder migrations.
type build []fs.FS

func buildOf(options []fs.FS) build { return append(build{heart}, options...) }

// Open opens the file of that name in the first of the file systems that has it.
func (b build) Open(name string) (file fs.File, err error) {
	for _, files := range b {
		if file, err = files.Open(name); err == nil {
			break
		}
	}
	return file, err
}

// Glob implements fs.GlobFS.
func (b build) Glob(pattern string) (all []string, err error) {
	for _, files := range b {
		names, err := fs.Glob(files, pattern)
		if err != nil {
			return nil, err
		}
		all = append(all, names...)
	}
	return all, nil
}

// versions returns the numbers of the migrations, in ascending order.
func (b build) versions() (all []int64) {
	names, err := fs.Glob(b, "migrations/*.sql")
	if err != nil {
		return nil // only a wrong pattern is an error
	}
	for _, name := range names {
		number, _, _ := strings.Cut(path.Base(name), "_")
		if version, err := strconv.ParseInt(number, 10, 64); err == nil {
			all = append(all, version)
		}
	}
	slices.Sort(all)
	return all
}

// missing returns the versions of a build that a database lacks.
func missing(build, applied []int64) []int64 {
	return slices.DeleteFunc(slices.Clone(build), func(v int64) bool { return slices.Contains(applied, v) })
}

// appliedVersions is SQL for the versions that a database has.
const appliedVersions = "SELECT version_id FROM " + migrationsTable + " WHERE is_applied"

// undefinedTable is the SQLSTATE of a database without any migration.
const undefinedTable = "42P01"

// checkOrder returns ErrUnfit if a migration would run after a later one of its sequence.
// While other processes migrate, the database has the first ones of each sequence, so it
// needs no lock.
func checkOrder(ctx context.Context, db *sql.DB, build []int64) error {
	applied, err := readVersions(ctx, db)
	if err != nil && codeOf(err) != undefinedTable {
		return fmt.Errorf("read schema version: %w", err)
	}
	for _, v := range missing(build, applied) {
		for _, later := range applied {
			if v < later && sequence(v) == sequence(later) {
				return fmt.Errorf("%w: migration %05d has run, and %05d has not, which comes before it: rename that file to a higher number", ErrUnfit, later, v)
			}
		}
	}
	return nil
}

func readVersions(ctx context.Context, db *sql.DB) (all []int64, err error) {
	rows, err := db.QueryContext(ctx, appliedVersions)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var v int64
		if err := rows.Scan(&v); err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, rows.Err()
}

// Applied returns how many migrations a database has.
func Applied(ctx context.Context, pool *pgxpool.Pool) (int, error) {
	rows, _ := pool.Query(ctx, appliedVersions+" AND version_id > 0") // 0 is goose's own; CollectRows returns its error
	has, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return 0, fmt.Errorf("read schema version: %w", err)
	}
	return len(has), nil
}
