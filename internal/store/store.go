// Package store remembers. Every transaction of the service is here, one per
// method, over the SQL in db/queries, which sqlc compiles into a package below
// this one that nothing else can reach.
//
// [Videos] is the command side and owns the tables of the schema video; it is
// also what the publisher claims from. [Catalog] is the query side and owns
// catalog_read. Neither touches the tables of the other, so each can have its
// own user, or its own database.
//
// # No row without its event
//
// Forgetting the outbox is not possible for whoever adds a command. A command
// is a domain.Decision, and a decision does not answer a new state: it answers
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
	"context"
	"errors"
	"fmt"
	"io"
	"net"

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
		return &domain.Error{Kind: domain.Unavailable, Message: "the database is not available", Err: fmt.Errorf("%s: %w", doing, err)}
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

// isAway tells whether the same transaction may succeed later, unchanged
// (https://www.postgresql.org/docs/current/errcodes-appendix.html).
func isAway(err error) bool {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch pgErr.Code[:2] {
		case "08", // connection exception
			"40", // transaction rollback: serialization failure, deadlock
			"53": // insufficient resources: too many connections, disk full
			return true
		}
		switch pgErr.Code {
		case "25006", // read-only: a failover is under way
			"25P03", "57P05", // idle in a transaction, or at all, for too long
			codeLockTimeout,
			codeCanceled,              // by statement_timeout: where we cancel, nobody waits for the answer
			"57P01", "57P02", "57P03": // shutting down, crashed, starting up
			return true
		}
		return false
	}
	var connectErr *pgconn.ConnectError
	var netErr net.Error
	return errors.As(err, &connectErr) || errors.As(err, &netErr) || pgconn.SafeToRetry(err) ||
		errors.Is(err, pgconn.ErrConnClosed) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

const (
	codeCanceled    = "57014" // query_canceled
	codeLockTimeout = "55P03" // lock_not_available
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
