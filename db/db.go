// Package db holds the schema: its migrations, which are built into the
// binary, and the queries that sqlc compiles into internal/store.
//
// Migrations only go forward in production, one purpose each, and every build
// runs on the schema before and after its newest one: expand, deploy, contract.
package db

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib" // the database/sql driver that goose runs on
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrate brings the schema up to date and returns how many migrations it ran.
// Several processes may do so at once, through any pooler: a lease in the table
// goose_lock lets one work and the others wait. A process that dies leaves its
// lease for 30 s. The error is ErrUnfit for a database that this build cannot use.
func Migrate(ctx context.Context, url string, log *slog.Logger) (int, error) {
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
	if err := checkEncoding(encoding); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrUnfit, err)
	}
	migrations, err := fs.Sub(files, "migrations")
	if err != nil {
		return 0, fmt.Errorf("open migrations: %w", err)
	}
	// Who has to wait looks every second, for five minutes; the default looks every five seconds.
	locker, err := lock.NewPostgresTableLocker(lock.WithTableLockTimeout(time.Second, 300), lock.WithTableLogger(log))
	if err != nil {
		return 0, fmt.Errorf("make migration lock: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, sqlDB, migrations,
		goose.WithLocker(locker), goose.WithSlog(log), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return 0, fmt.Errorf("load migrations: %w", err)
	}
	results, err := provider.Up(ctx)
	if err != nil {
		return len(results), fmt.Errorf("migrate: %w", err)
	}
	return len(results), nil
}

// noTransactionTimeout lets a migration take as long as it takes, on a server that
// has this setting (17 and newer). Behind a pooler, where the process of the server
// is another one than it says, a setting of the session would be somebody else's:
// there it is for the role.
func noTransactionTimeout(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, `SELECT set_config(name, '0', false) FROM pg_settings
		WHERE name = 'transaction_timeout' AND pg_backend_pid()::bigint = $1`, int64(conn.PgConn().PID()))
	if err != nil {
		return fmt.Errorf("set transaction_timeout: %w", err)
	}
	return nil
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
