// Package db holds the schema: the migrations, which are built into the binary, and the
// queries, which sqlc compiles into internal/store.
//
// In production, migrations only go forward, and each has one purpose. A build needs all its
// migrations, and runs on the schema of the next build, too: expand, deploy, contract.
//
// The heart has the migrations with numbers below 00100, an option a hundred of its own below
// 01000, and a service the numbers from 01000 on. A new migration may run after migrations with
// higher numbers. So the heart depends on no others, and an option depends only on the heart.
package db

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib" // the database/sql driver that goose runs on
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations/*.sql
var heart embed.FS

// Goose's tables, in the schema public. Their names are the service's, so that two services
// can share a database.
const (
	migrationsTable = "video_catalog_migrations"
	lockTable       = "video_catalog_migration_lock"
)

// Migrate runs the migrations of the heart and of options, each with a folder migrations, and
// returns how many ran. Several processes may call it at once, through any pooler: a lease in
// the table video_catalog_migration_lock lets one work while the others wait. If a process
// dies, its lease ends after 30 s.
func Migrate(ctx context.Context, url string, log *slog.Logger, options ...fs.FS) (ran int, err error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return 0, fmt.Errorf("parse database URL: %w", err)
	}
	sqlDB := stdlib.OpenDB(*cfg, stdlib.OptionAfterConnect(noTransactionTimeout))
	defer sqlDB.Close()
	var encoding string
	if err := sqlDB.QueryRowContext(ctx, "SHOW server_encoding").Scan(&encoding); err != nil {
		return 0, fmt.Errorf("read server_encoding: %w", err)
	}
	if encoding != "UTF8" { // others lack characters, and SQL_ASCII does not know what a character is
		return 0, fmt.Errorf("server_encoding is %s and must be UTF8: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0, and move the data there", encoding)
	}
	for _, files := range append([]fs.FS{heart}, options...) {
		n, err := migrate(ctx, sqlDB, files, log)
		if ran += n; err != nil {
			return ran, err
		}
	}
	return ran, nil
}

func migrate(ctx context.Context, sqlDB *sql.DB, files fs.FS, log *slog.Logger) (int, error) {
	migrations, err := fs.Sub(files, "migrations")
	if err != nil {
		return 0, fmt.Errorf("open migrations: %w", err)
	}
	// A waiting process tries every second, for five minutes. The default is every five
	// seconds.
	locker, err := lock.NewPostgresTableLocker(lock.WithTableName(lockTable), lock.WithTableLockTimeout(time.Second, 300), lock.WithTableLogger(log))
	if err != nil {
		return 0, fmt.Errorf("make migration lock: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, sqlDB, migrations, goose.WithAllowOutofOrder(true),
		goose.WithTableName(migrationsTable), goose.WithLocker(locker), goose.WithSlog(log), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return 0, fmt.Errorf("load migrations: %w", err)
	}
	results, err := provider.Up(ctx)
	if err != nil {
		return len(results), fmt.Errorf("migrate: %w", err)
	}
	return len(results), nil
}

// noTransactionTimeout turns off transaction_timeout for a migration, on servers that have
// it (17 and newer). Behind a pooler the backend is not the one that the connection
// reports, and a session setting would change the session of another client. There, set it
// for the role.
func noTransactionTimeout(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, `SELECT set_config(name, '0', false) FROM pg_settings
		WHERE name = 'transaction_timeout' AND pg_backend_pid()::bigint = $1`, int64(conn.PgConn().PID()))
	if err != nil {
		return fmt.Errorf("set transaction_timeout: %w", err)
	}
	return nil
}
