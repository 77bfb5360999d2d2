package pg

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg/internal/sqlcgen"
	"example.com/videocatalog/internal/problem"
)

// CommandSide is what the command sides of all aggregate types share.
type CommandSide struct {
	pool          *pgxpool.Pool
	queries       *sqlcgen.Queries
	aggregateType string
	onCommit      func(envelope.Aggregate)
}

// NewCommandSide returns the command side of a pool. onCommit may be nil. It is called with
// the aggregate after each commit of an event. It may also be called after a failure. It must
// not block.
func NewCommandSide(pool *pgxpool.Pool, aggregateType string, onCommit func(envelope.Aggregate)) CommandSide {
	if onCommit == nil {
		onCommit = func(envelope.Aggregate) {}
	}
	return CommandSide{pool: pool, queries: sqlcgen.New(Autocommit(pool)), aggregateType: aggregateType, onCommit: onCommit}
}

// Create runs record, which writes a new aggregate and its first event, in one transaction.
// It returns the id of the aggregate that exists then. With a requestID other than uuid.Nil
// it is idempotent: a repeated call with the same fingerprint writes nothing, and returns
// the id of the first call. With another fingerprint it returns problem.Exists.
func (s CommandSide) Create(ctx context.Context, name string, requestID uuid.UUID, fingerprint []byte, id uuid.UUID,
	record func(ctx context.Context, tx *Tx) error,
) (uuid.UUID, error) {
	recorded := false
	err := InTx(ctx, s.pool, name, func(ctx context.Context, tx *Tx) error {
		if requestID != uuid.Nil {
			if err := s.recordRequest(ctx, tx, requestID, fingerprint, id); err != nil {
				return err
			}
		}
		recorded = true
		return record(ctx, tx)
	})
	if recorded {
		s.Committed(id, err)
	}
	if errors.Is(err, errRepeated) {
		return s.requestedBy(ctx, requestID, fingerprint)
	}
	return id, Wrap(err, "create %s %s", s.aggregateType, id)
}

// Change runs record, which writes the next event of an aggregate, in one transaction. record
// reports whether it wrote one.
func (s CommandSide) Change(ctx context.Context, name string, id uuid.UUID, record func(ctx context.Context, tx *Tx) (changed bool, err error)) error {
	changed := false
	err := InTx(ctx, s.pool, name, func(ctx context.Context, tx *Tx) (err error) {
		changed, err = record(ctx, tx)
		return err
	})
	if changed {
		s.Committed(id, err)
	}
	return Wrap(err, "change %s %s", s.aggregateType, id)
}

// Base returns the connections, and the name of the aggregate type, for an option.
func (s CommandSide) Base() (pool *pgxpool.Pool, aggregateType string) {
	return s.pool, s.aggregateType
}

// Committed calls onCommit after a transaction that changed an aggregate, unless the database
// reported that it failed. Without such a report the commit may have succeeded. Options that run
// their own transactions call it, too.
func (s CommandSide) Committed(id uuid.UUID, err error) {
	if _, refused := errors.AsType[*pgconn.PgError](err); !refused {
		s.onCommit(s.aggregate(id))
	}
}

func (s CommandSide) aggregate(id uuid.UUID) envelope.Aggregate {
	return envelope.Aggregate{Type: s.aggregateType, ID: id.String()}
}

// CheckNext returns an error if an event is not the next one of an aggregate.
func CheckNext(id uuid.UUID, version int64, nextID uuid.UUID, nextVersion int64) error {
	if nextID != id || nextVersion != version+1 {
		return fmt.Errorf("decision on version %d of %s returned version %d of %s", version, id, nextVersion, nextID)
	}
	return nil
}

// NotFound returns problem.NotFound for a row that does not exist, and any other error as
// it is.
func NotFound(err error, what string, id uuid.UUID) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return problem.Errorf(problem.NotFound, "%s %q does not exist", what, id)
	}
	return err
}
