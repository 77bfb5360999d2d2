// Package store remembers. Every transaction of the service is here, one per
// method, over the SQL in db/queries, which sqlc compiles into a package below
// this one that nothing else can reach.
//
// [Videos] is the command side and [Outbox] holds its events, which the publisher
// claims; both are in the schema video. [Catalog] is the query side and owns
// catalog_read. Neither side touches the tables of the other, so each can have its
// own user, or its own database.
//
// # No row without its event
//
// Forgetting the outbox is not possible for whoever adds a command. A command
// is a domain.Decision, and a decision does not answer a new state: it returns
// an event, which carries the state. The one function that writes a video,
// record, takes the event, writes the row from it and appends it to the outbox,
// in the same transaction. There is no other way to write a video: internal/
// archtest fails when a second function calls the queries that do, or a second
// query does.
//
// # What it promises
//
// A method is one transaction: when it returns an error, nothing has happened,
// unless the connection was lost while the commit was under way, which nobody
// can tell apart; repeating the command with the same request id or etag is
// safe then. Errors a caller can do something about are a *domain.Error: also a
// database that is away, as Unavailable. Nothing here decides, and nothing waits
// for the network while a transaction is open, except for the database itself.
// All methods may be called concurrently.
package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"example.com/videocatalog/internal/domain"
)

// wrap gives an error of the database its context and, where a caller can do
// something about it, its kind.
func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*domain.Error](err); ok {
		return err
	}
	doing := fmt.Sprintf(format, args...)
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: %w", doing, err)
	case isAway(err):
		return &domain.Error{Kind: domain.Unavailable, Message: "the database is not available", Err: fmt.Errorf("%s: %w", doing, unprepared(err))}
	case isWithoutPartition(err):
		return &domain.Error{
			Kind: domain.Unavailable, Message: "the outbox takes no event of this time: the clock of this server is wrong, or the maintenance of the outbox has not run",
			Err: fmt.Errorf("%s: %w", doing, err),
		}
	case isUntranslatable(err):
		return &domain.Error{Kind: domain.Invalid, Message: "the text has a character that cannot be stored", Err: fmt.Errorf("%s: %w", doing, err)}
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// isAway reports whether the same transaction may succeed later, unchanged
// (https://www.postgresql.org/docs/current/errcodes-appendix.html). Whatever the
// server, or a pooler before it, says while a connection is made is of that kind,
// as is whatever ends a connection: poolers report what they lack under any code.
func isAway(err error) bool {
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return endsConnection(pgErr) || isOfSession(pgErr) || isTemporary(pgErr.Code)
	}
	_, isNet := errors.AsType[net.Error](err)
	return isNet || pgconn.SafeToRetry(err) ||
		errors.Is(err, pgconn.ErrConnClosed) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// endsConnection goes by the severity that is not translated; some poolers send
// only the other.
func endsConnection(err *pgconn.PgError) bool {
	severity := cmp.Or(err.SeverityUnlocalized, err.Severity)
	return severity == "FATAL" || severity == "PANIC"
}

// isOfSession reports whether an error is about what the session remembers: the
// same statement succeeds in another one.
func isOfSession(err *pgconn.PgError) bool {
	switch err.Code {
	case codeNoStatement, codeStatementExists: // a pooler has mixed up prepared statements
		return true
	case "0A000": // feature not supported; here: cached plan must not change result type
		return err.Routine == "RevalidateCachedQuery"
	}
	return false
}

func isTemporary(code string) bool {
	switch {
	case strings.HasPrefix(code, "08"), // connection exception
		strings.HasPrefix(code, "40"), // transaction rollback: serialization failure, deadlock
		strings.HasPrefix(code, "53"): // insufficient resources: too many connections, disk full
		return true
	}
	switch code {
	case "25006", // read-only: a failover is under way
		"25P03", "25P04", "57P05", // idle in a transaction, in one at all, or idle, for too long
		codeLockTimeout,
		codeCanceled,              // by statement_timeout: where we cancel, nobody waits for the answer
		"57P01", "57P02", "57P03": // shutting down, crashed, starting up
		return true
	}
	return false
}

// unprepared adds to an error the remedy for a pooler that loses prepared
// statements.
func unprepared(err error) error {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && (pgErr.Code == codeNoStatement || pgErr.Code == codeStatementExists) {
		return fmt.Errorf("the connection pooler loses prepared statements: add default_query_exec_mode=cache_describe to the database URL, or have the pooler keep them, as PgBouncer does with max_prepared_statements: %w", err)
	}
	return err
}

const (
	codeCanceled        = "57014" // query_canceled
	codeLockTimeout     = "55P03" // lock_not_available
	codeNoStatement     = "26000" // invalid_sql_statement_name
	codeStatementExists = "42P05" // duplicate_prepared_statement
)

// tooLong makes the error of a statement that the database has ended for the time
// that it took, or waited for a lock, a context.DeadlineExceeded, too.
func tooLong(err error) error {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && (pgErr.Code == codeCanceled || pgErr.Code == codeLockTimeout) {
		return fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	return err
}

// isWithoutPartition tells whether an event came too late or too early for the
// partitions of the outbox.
func isWithoutPartition(err error) bool {
	var pgErr *pgconn.PgError
	// A check violation that names no constraint: https://www.postgresql.org/docs/current/ddl-partitioning.html
	return errors.As(err, &pgErr) && pgErr.Code == "23514" && pgErr.ConstraintName == "" && pgErr.TableName == "outbox"
}

func isUntranslatable(err error) bool {
	var pgErr *pgconn.PgError
	// A NUL byte, or what the encoding of the database does not have.
	return errors.As(err, &pgErr) && (pgErr.Code == "22021" || pgErr.Code == "22P05")
}
