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
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib" // the database/sql driver that goose runs on
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
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
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return 0, fmt.Errorf("parse database URL: %w", err)
	}
	cfg.MaxConns, cfg.AfterConnect = 4, noTimeouts // goose's lock needs connections of its own
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return 0, fmt.Errorf("open database: %w", err)
	}
	defer pool.Close()
	var encoding string
	if err := pool.QueryRow(ctx, "SHOW server_encoding", unprepared).Scan(&encoding); err != nil {
		return 0, fmt.Errorf("read server_encoding: %w", err)
	}
	if encoding != "UTF8" { // others lack characters, and SQL_ASCII does not know what a character is
		return 0, fmt.Errorf("server_encoding is %s and must be UTF8: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0, and move the data there", encoding)
	}
	goosed, err := database.NewStore(database.DialectPostgres, migrationsTable)
	if err != nil {
		return 0, fmt.Errorf("make store: %w", err)
	}
	sqlDB := stdlib.OpenDBFromPool(pool)
	defer sqlDB.Close()
	for _, files := range append([]fs.FS{heart}, options...) {
		n, err := migrate(ctx, sqlDB, files, store{goosed, pool, fileNames(options)}, log)
		if ran += n; err != nil {
			return ran, fmt.Errorf("migrate: %w%s", err, invalidIndexes(ctx, pool))
		}
	}
	return ran, nil
}

func migrate(ctx context.Context, sqlDB *sql.DB, files fs.FS, s store, log *slog.Logger) (int, error) {
	migrations, err := fs.Sub(files, "migrations")
	if err != nil {
		return 0, fmt.Errorf("open migrations: %w", err)
	}
	// A waiting process tries every second, for five minutes. The default is every five
	// seconds.
	locker, err := lock.NewPostgresTableLocker(lock.WithTableName(lockTable), lock.WithTableLockTimeout(time.Second, 300), lock.WithTableLogger(log))
	if err != nil {
		return 0, fmt.Errorf("make lock: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectCustom, sqlDB, migrations, goose.WithAllowOutofOrder(true),
		goose.WithStore(s), goose.WithLocker(locker), goose.WithSlog(log), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return 0, fmt.Errorf("load migrations: %w", err)
	}
	results, err := provider.Up(ctx)
	return len(results), err
}

// store is goose's store. It also knows the files of migrations, because two branches may give one number to two files.
type store struct {
	database.Store

	pool  *pgxpool.Pool
	names map[int64]string
}

// ListMigrations implements database.Store. It returns an error if another file has run with the number of one of ours.
func (s store) ListMigrations(ctx context.Context, tx database.DBTxConn) ([]*database.ListMigrationsResult, error) {
	if _, err := missing(ctx, s.pool, s.names); err != nil {
		return nil, err
	}
	return s.Store.ListMigrations(ctx, tx)
}

// firstNamed is the migration that makes the column name.
const firstNamed = 10

// Insert implements database.Store. The first call with the column also names the earlier migrations.
func (s store) Insert(ctx context.Context, tx database.DBTxConn, req database.InsertRequest) error {
	err := s.Store.Insert(ctx, tx, req)
	if err == nil && req.Version >= firstNamed {
		_, err = tx.ExecContext(ctx, "UPDATE "+migrationsTable+" SET name = $1::jsonb ->> version_id::text WHERE name IS NULL", s.names)
	}
	return err
}

// invalidIndexes returns how to remove the indexes that an interrupted CREATE INDEX CONCURRENTLY has left.
func invalidIndexes(ctx context.Context, pool *pgxpool.Pool) (hint string) {
	_ = pool.QueryRow(ctx, `SELECT string_agg(format('; an index is invalid: DROP INDEX CONCURRENTLY %s, then migrate again', c.oid::regclass), '')
		FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
		WHERE NOT i.indisvalid AND c.relkind = 'i' AND c.relnamespace::regnamespace::text IN ('video_catalog', 'video_catalog_read')`,
		unprepared).Scan(&hint) // without it, the error of the migration stays
	return hint
}

// noTimeouts turns off the timeouts that the role or the database has, because a long migration must end: a failed CREATE
// INDEX CONCURRENTLY leaves an invalid index. A migration that takes a lock sets its own lock_timeout. Behind a pooler the
// backend is not the one that the connection reports, and a session setting would change the session of another client. There,
// the role must have no timeouts.
func noTimeouts(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, `SELECT set_config(name, '0', false) FROM pg_settings
		WHERE name IN ('lock_timeout', 'statement_timeout', 'transaction_timeout') AND pg_backend_pid()::bigint = $1`, int64(conn.PgConn().PID()))
	if err != nil {
		return fmt.Errorf("turn off timeouts: %w", err)
	}
	return nil
}
