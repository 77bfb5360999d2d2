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

// Check returns ErrUnfit, with all mistakes, if these pools cannot use their database.
// pools must be all pools of this process to that database, and options the migrations that it
// gives to Migrate. A schema with more migrations than this build is accepted, because a
// roll-back meets one. Any other error means that the database was not reached.
func Check(ctx context.Context, options []fs.FS, pools ...*pgxpool.Pool) error {
	conn, err := pools[0].Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect to check the database: %w", err)
	}
	defer conn.Release()
	has, err := readSettings(ctx, conn.Conn())
	if err != nil {
		return err
	}
	var most int32
	for _, pool := range pools {
		most += pool.Config().MaxConns
	}
	if mistakes := has.mistakes(buildOf(options).versions(), most); len(mistakes) > 0 {
		return fmt.Errorf("%w: %w", ErrUnfit, errors.Join(mistakes...))
	}
	return nil
}

// settings are the properties of the database that a connection reads.
type settings struct {
	versions               []int64 // the migrations that it has
	encoding               string
	synchronousCommit      string
	role                   string
	roleLimit, serverLimit int32 // of connections; a roleLimit of -1 means no limit
	pooled                 bool  // a pooler shares the connections of the server
	losesPrepared          bool  // the pooler loses prepared statements
}

func readSettings(ctx context.Context, conn *pgx.Conn) (s settings, err error) {
	const unprepared = pgx.QueryExecModeExec // works through every pooler
	var pid int64
	err = conn.QueryRow(ctx, `
		SELECT current_setting('server_encoding'), current_setting('synchronous_commit'), rolname, rolconnlimit,
			current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int, pg_backend_pid()::bigint
		FROM pg_roles WHERE rolname = session_user`, unprepared).
		Scan(&s.encoding, &s.synchronousCommit, &s.role, &s.roleLimit, &s.serverLimit, &pid)
	if err != nil {
		return s, fmt.Errorf("read settings of the database: %w", err)
	}
	rows, _ := conn.Query(ctx, appliedVersions, unprepared) // CollectRows returns its error
	s.versions, err = pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil && codeOf(err) != undefinedTable {
		return s, fmt.Errorf("read schema version: %w", err)
	}
	s.pooled = pid != int64(conn.PgConn().PID())
	if s.pooled && conn.Config().DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		if s.losesPrepared, err = losesPrepared(ctx, conn); err != nil {
			return s, fmt.Errorf("prepare a statement through the pooler: %w", err)
		}
	}
	return s, nil
}

// mistakes returns what is wrong for a process that has these migrations and opens up to most
// connections.
func (s settings) mistakes(versions []int64, most int32) (errs []error) {
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	role := pgx.Identifier{s.role}.Sanitize()
	if err := checkEncoding(s.encoding); err != nil {
		wrong("%w", err)
	}
	if lacks := missing(versions, s.versions); len(lacks) > 0 {
		wrong("%w: it lacks %d migrations of this build, the first is %05d", ErrSchemaTooOld, len(lacks), lacks[0])
	}
	if s.synchronousCommit == "off" {
		wrong("synchronous_commit is off, so a crash of the server loses acknowledged commands: ALTER ROLE %s SET synchronous_commit = on", role)
	}
	if s.losesPrepared {
		wrong("the connection pooler loses prepared statements: add default_query_exec_mode=cache_describe to the URL, or have the pooler keep them, as PgBouncer does with max_prepared_statements")
	}
	if s.pooled {
		return errs // the pooler opens the connections to the server, so these limits are not ours
	}
	if s.roleLimit >= 0 && s.roleLimit < most {
		wrong("the role may have %d connections, and this process opens up to %d: ALTER ROLE %s CONNECTION LIMIT -1, or a smaller DATABASE_MAX_CONNS", s.roleLimit, most, role)
	}
	if s.serverLimit < most {
		wrong("max_connections of the server leaves %d connections, and this process opens up to %d: raise it, or a smaller DATABASE_MAX_CONNS", s.serverLimit, most)
	}
	return errs
}

// checkEncoding returns an error unless the encoding is UTF8. Other encodings lack
// characters, and SQL_ASCII does not know what a character is.
func checkEncoding(encoding string) error {
	if encoding == "UTF8" {
		return nil
	}
	return fmt.Errorf("server_encoding is %s and must be UTF8: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0, and move the data there", encoding)
}

// losesPrepared reports whether a pooler passes prepared statements unchanged to any
// connection of the server. A pooler that keeps them gives them names of its own
// (https://www.pgbouncer.org/config.html#max_prepared_statements), so the server does not
// have ours.
func losesPrepared(ctx context.Context, conn *pgx.Conn) (loses bool, err error) {
	const name = "videocatalog_check"
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { // so that all of it uses one connection of the server
		if _, err := tx.Prepare(ctx, name, "SELECT EXISTS (SELECT FROM pg_prepared_statements WHERE name = $1)"); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, name, name).Scan(&loses); err != nil {
			return err
		}
		return conn.Deallocate(ctx, name)
	})
	const duplicate = "42P05" // an earlier process left the statement, so the pooler does not keep statements apart
	if codeOf(err) == duplicate {
		return true, nil
	}
	return loses, err
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
