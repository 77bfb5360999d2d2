package pg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/problem"
)

// Wrap adds context to an error of the database and, if a caller can act on it, makes it a
// *problem.Error with a kind.
func Wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*problem.Error](err); ok {
		return err
	}
	detailed := fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), unprepared(err))
	pgErr, _ := errors.AsType[*pgconn.PgError](err)
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return detailed
	case isAway(err):
		return &problem.Error{Kind: problem.Unavailable, Message: "the database is not available", Err: detailed}
	case pgErr == nil:
		return detailed
	// A check violation that names no constraint: the outbox has no partition for the time of an event
	// (https://www.postgresql.org/docs/current/ddl-partitioning.html).
	case pgErr.Code == "23514" && pgErr.ConstraintName == "" && pgErr.TableName == "outbox":
		return &problem.Error{
			Kind: problem.Unavailable, Message: "the outbox takes no event of this time: the clock of this server is wrong, or the maintenance of the outbox has not run",
			Err: detailed,
		}
	case pgErr.Code == "22021", pgErr.Code == "22P05": // a NUL byte, or a character that the encoding of the database lacks
		return &problem.Error{Kind: problem.Invalid, Message: "the text has a character that cannot be stored", Err: detailed}
	}
	return detailed
}

// refusals maps the violations of constraints to what they are for a caller
// (https://www.postgresql.org/docs/current/errcodes-appendix.html).
var refusals = map[string]problem.Kind{
	"23505": problem.Exists,       // unique
	"23P01": problem.Exists,       // exclusion
	"23503": problem.Precondition, // foreign key
	"23514": problem.Invalid,      // check
}

// wrapChange is [Wrap] for a transaction that changes an aggregate. A constraint that refuses the change is a
// rule for its caller, with its name in capitals as the reason. A primary key is not: only a defect breaks it.
func wrapChange(err error, format string, args ...any) error {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || refusals[pgErr.Code] == 0 || pgErr.ConstraintName == "" || strings.HasSuffix(pgErr.ConstraintName, "_pkey") {
		return Wrap(err, format, args...)
	}
	return &problem.Error{
		Kind: refusals[pgErr.Code], Reason: problem.Reason(strings.ToUpper(pgErr.ConstraintName)),
		Message: "the change breaks the rule " + pgErr.ConstraintName, Err: fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err),
	}
}

// isAway reports whether the same transaction may succeed later, unchanged
// (https://www.postgresql.org/docs/current/errcodes-appendix.html). It returns true for every
// error while connecting, from the server or from a pooler, and for every error that ends a
// connection, because poolers report a lack of resources under any code.
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

// endsConnection reports whether an error ends the connection. It reads the severity that
// is not translated, and the translated severity if a pooler sends nothing else.
func endsConnection(err *pgconn.PgError) bool {
	severity := cmp.Or(err.SeverityUnlocalized, err.Severity)
	return severity == "FATAL" || severity == "PANIC"
}

// isOfSession reports whether an error is about the state of the session. The same
// statement succeeds in another session.
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
		"25P03", "25P04", "57P05", // timeouts: of an idle transaction, of a transaction, of an idle session
		codeLockTimeout,
		codeCanceled,              // by statement_timeout: if we cancel ourselves, no caller waits for the response
		"57P01", "57P02", "57P03": // shutting down, crashed, starting up
		return true
	}
	return false
}

// unprepared adds advice to an error if a pooler has lost a prepared statement.
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

// tooLong makes a statement timeout or a lock timeout of the database a
// context.DeadlineExceeded as well.
func tooLong(err error) error {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && (pgErr.Code == codeCanceled || pgErr.Code == codeLockTimeout) {
		return fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	return err
}

// WrapEvents is [Wrap] for a transaction that applies events. An error that no event can have
// caused, for example a missing privilege, table or extension, or a timeout, is an
// [envelope.ErrUnavailable]: the events are delivered again until the database is repaired. Errors of
// the classes 21, 22, 23, 44 and 54, and those raised by a function, are about the data. A timeout of a
// statement, or of its wait for a lock, also becomes a context.DeadlineExceeded, as when our own
// deadline ends it.
func WrapEvents(err error, format string, args ...any) error {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && !slices.Contains([]string{"21", "22", "23", "44", "54", "P0"}, pgErr.Code[:2]) {
		err = &problem.Error{Kind: problem.Unavailable, Message: "the database is not working", Err: tooLong(unprepared(err))}
	}
	return forConsumer(Wrap(err, format, args...))
}

// forConsumer makes an error of kind Unavailable an envelope.ErrUnavailable as well.
func forConsumer(err error) error {
	if known, ok := errors.AsType[*problem.Error](err); ok && known.Kind == problem.Unavailable {
		return fmt.Errorf("%w: %w", envelope.ErrUnavailable, err)
	}
	return err
}
