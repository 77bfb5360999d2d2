package db

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrUnfit means that this process cannot use the database as it is set up. The error that
// wraps it names every mistake, each with its remedy. Waiting does not help.
var ErrUnfit = errors.New("the database is not fit for use")

// ErrSchemaTooOld means that the database lacks migrations of this build. The error also
// wraps ErrUnfit.
var ErrSchemaTooOld = errors.New("schema is too old: run `server migrate` first")

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

// Check returns ErrUnfit, with all mistakes, if this process cannot use the database of a pool.
// options are the migrations that it gives to Migrate. A schema with more migrations than this
// build is accepted, because a roll-back meets one. Any other error means that the database was
// not reached.
func Check(ctx context.Context, options []fs.FS, pool *pgxpool.Pool) error {
	var encoding, synchronousCommit, role string
	const unprepared = pgx.QueryExecModeExec // works through every pooler
	if err := pool.QueryRow(ctx, "SELECT current_setting('server_encoding'), current_setting('synchronous_commit'), session_user::text", unprepared).
		Scan(&encoding, &synchronousCommit, &role); err != nil {
		return fmt.Errorf("read settings of the database: %w", err)
	}
	rows, _ := pool.Query(ctx, appliedVersions, unprepared) // CollectRows returns its error
	applied, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil && codeOf(err) != undefinedTable {
		return fmt.Errorf("read schema version: %w", err)
	}
	mistakes := []error{checkEncoding(encoding)}
	if lacks := missing(buildOf(options).versions(), applied); len(lacks) > 0 {
		mistakes = append(mistakes, fmt.Errorf("%w: it lacks %d migrations of this build, the first is %05d", ErrSchemaTooOld, len(lacks), lacks[0]))
	}
	if synchronousCommit == "off" {
		mistakes = append(mistakes, fmt.Errorf("synchronous_commit is off, so a crash of the server loses acknowledged commands: ALTER ROLE %s SET synchronous_commit = on", pgx.Identifier{role}.Sanitize()))
	}
	if err := errors.Join(mistakes...); err != nil {
		return fmt.Errorf("%w: %w", ErrUnfit, err)
	}
	return nil
}

// checkEncoding returns an error unless the encoding is UTF8. Other encodings lack
// characters, and SQL_ASCII does not know what a character is.
func checkEncoding(encoding string) error {
	if encoding == "UTF8" {
		return nil
	}
	return fmt.Errorf("server_encoding is %s and must be UTF8: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0, and move the data there", encoding)
}

// codeOf returns the SQLSTATE of an error; empty if it has none.
func codeOf(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}

// ErrReadOnly means that a database accepts no writes, for example because it is a standby.
var ErrReadOnly = errors.New("the database is read-only")

// Ping returns why a database cannot serve now. It returns ErrReadOnly only if writes is
// true. If the sessions of a pool are read-only, Ping makes the pool replace them, because
// the server may have been replaced.
func Ping(ctx context.Context, pool *pgxpool.Pool, writes bool) error {
	var readOnly string
	if err := pool.QueryRow(ctx, "SHOW transaction_read_only").Scan(&readOnly); err != nil {
		return fmt.Errorf("ping database: %w", err)
	}
	if writes && strings.EqualFold(readOnly, "on") {
		pool.Reset()
		return ErrReadOnly
	}
	return nil
}
