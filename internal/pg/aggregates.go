package pg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/pg/internal/sqlcgen"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/tenant" // only tenancy
)

// CommandSide is what the command sides of all aggregate types share.
type CommandSide struct {
	pool          *pgxpool.Pool
	queries       *sqlcgen.Queries
	aggregateType string
	onCommit      func()
}

// NewCommandSide returns the command side of a pool. onCommit may be nil. It is called after
// each commit of an event. It may also be called after a failure. It must not block.
func NewCommandSide(pool *pgxpool.Pool, aggregateType string, onCommit func()) CommandSide {
	if onCommit == nil {
		onCommit = func() {}
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
	requestID = tenant.Key(ctx, requestID) // only tenancy
	recorded, repeated := false, false
	err := InTx(ctx, s.pool, name, func(ctx context.Context, tx *Tx) error {
		if requestID != uuid.Nil {
			// A repeated request is no error of the statement: it is normal, and PostgreSQL logs each error.
			_, err := sqlcgen.New(tx).InsertRequest(ctx, sqlcgen.InsertRequestParams{
				AggregateType: s.aggregateType, RequestID: requestID, AggregateID: id.String(), Fingerprint: fingerprint,
			})
			if repeated = errors.Is(err, pgx.ErrNoRows); err != nil {
				return err
			}
		}
		recorded = true
		return record(ctx, tx)
	})
	if recorded {
		s.Committed(err)
	}
	if repeated {
		return s.requestedBy(ctx, requestID, fingerprint)
	}
	return id, wrapChange(err, "create %s %s", s.aggregateType, id)
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
		s.Committed(err)
	}
	return wrapChange(err, "change %s %s", s.aggregateType, id)
}

// Committed calls onCommit after a transaction that changed an aggregate, unless the database
// reported that it failed. Without such a report the commit may have succeeded. Options that run
// their own transactions call it, too.
func (s CommandSide) Committed(err error) {
	if _, refused := errors.AsType[*pgconn.PgError](err); !refused {
		s.onCommit()
	}
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

// requestedBy returns the id of the aggregate that a request made. If that request had another
// fingerprint, the error is problem.Exists.
func (s CommandSide) requestedBy(ctx context.Context, requestID uuid.UUID, fingerprint []byte) (uuid.UUID, error) {
	request, err := s.queries.GetRequest(ctx, s.aggregateType, requestID)
	if errors.Is(err, pgx.ErrNoRows) { // just pruned
		return uuid.Nil, problem.Errorf(problem.Unavailable, "the request id %q has just expired: try again", requestID)
	}
	if err != nil {
		return uuid.Nil, Wrap(err, "get request %s", requestID)
	}
	if !bytes.Equal(request.Fingerprint, fingerprint) {
		return uuid.Nil, problem.Errorf(problem.Exists, "the request id was used to create another %s", s.aggregateType).Because(problem.ReasonRequestIDReused)
	}
	return uuid.Parse(request.AggregateID)
}

// PruneRequests deletes at most maxRows requests that are older than olderThan, by the
// clock of the database. It returns how many.
func (o *Outbox) PruneRequests(ctx context.Context, olderThan time.Duration, maxRows int) (int64, error) {
	n, err := o.queries.PruneRequests(ctx, olderThan, Limit(maxRows))
	return n, Wrap(err, "prune requests")
}
