// Package db holds the schema: its migrations, which are built into the
// binary, and the queries that sqlc compiles into internal/store.
//
// Migrations only go forward in production, one purpose each, and every build
// runs on the schema before and after its newest one: expand, deploy, contract.
package db

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the database/sql driver that goose runs on
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrate brings the schema up to date and answers how many migrations it ran.
// Several processes may do so at once: a session advisory lock lets one work
// and the others wait, so url must be a direct or session-pooled connection.
func Migrate(ctx context.Context, url string, log *slog.Logger) (int, error) {
	sqlDB, err := sql.Open("pgx", url)
	if err != nil {
		return 0, fmt.Errorf("open database: %w", err)
	}
	defer sqlDB.Close()
	migrations, err := fs.Sub(files, "migrations")
	if err != nil {
		return 0, fmt.Errorf("open migrations: %w", err)
	}
	// Who has to wait looks every second, for five minutes; the default looks every five seconds.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300))
	if err != nil {
		return 0, fmt.Errorf("make migration lock: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, sqlDB, migrations,
		goose.WithSessionLocker(locker), goose.WithSlog(log), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return 0, fmt.Errorf("load migrations: %w", err)
	}
	results, err := provider.Up(ctx)
	if err != nil {
		return len(results), fmt.Errorf("migrate: %w", err)
	}
	return len(results), nil
}

// Version is the newest migration of this build.
func Version() int64 {
	entries, err := fs.ReadDir(files, "migrations")
	if err != nil {
		return 0 // the directory is embedded: it cannot be missing
	}
	var newest int64
	for _, entry := range entries {
		number, _, _ := strings.Cut(path.Base(entry.Name()), "_")
		if version, err := strconv.ParseInt(number, 10, 64); err == nil {
			newest = max(newest, version)
		}
	}
	return newest
}

// ErrSchemaTooOld says that the database lacks migrations of this build.
var ErrSchemaTooOld = errors.New("schema is too old: run `server migrate` first")

// Check is ErrSchemaTooOld when the schema is older than this build needs. A
// newer schema is fine: that is what a roll-back meets.
func Check(ctx context.Context, pool *pgxpool.Pool) error {
	var version int64
	err := pool.QueryRow(ctx, "SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied").Scan(&version)
	const undefinedTable = "42P01"
	var pgErr *pgconn.PgError
	switch {
	case errors.As(err, &pgErr) && pgErr.Code == undefinedTable, errors.Is(err, pgx.ErrNoRows):
		version = 0
	case err != nil:
		return fmt.Errorf("read schema version: %w", err)
	}
	if version < Version() {
		return fmt.Errorf("%w: it is at version %d, this build needs %d", ErrSchemaTooOld, version, Version())
	}
	return nil
}
