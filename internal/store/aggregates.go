package store

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

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// commandSide is what the command sides of all aggregate types share.
type commandSide struct {
	pool          *pgxpool.Pool
	queries       *sqlcgen.Queries
	aggregateType string
	onCommit      func(envelope.Aggregate)
}

// newCommandSide returns the command side of a pool. onCommit may be nil. It is called with
// the aggregate after each commit of an event. It may also be called after a failure. It must
// not block.
func newCommandSide(pool *pgxpool.Pool, aggregateType string, onCommit func(envelope.Aggregate)) commandSide {
	if onCommit == nil {
		onCommit = func(envelope.Aggregate) {}
	}
	return commandSide{pool: pool, queries: sqlcgen.New(Over(pool)), aggregateType: aggregateType, onCommit: onCommit}
}

// create runs record, which writes a new aggregate and its first event, in one transaction.
// It returns the id of the aggregate that exists then. With a requestID other than uuid.Nil
// it is idempotent: a repeated call with the same fingerprint writes nothing, and returns
// the id of the first call. With another fingerprint it returns problem.Exists.
func (s commandSide) create(ctx context.Context, name string, requestID uuid.UUID, fingerprint []byte, id uuid.UUID,
	record func(ctx context.Context, tx Tx) error,
) (uuid.UUID, error) {
	recorded := false
	err := InTx(ctx, s.pool, name, func(ctx context.Context, tx Tx) error {
		if requestID != uuid.Nil {
			// The statement does not fail for a repeated request: repeated calls are normal, and
			// PostgreSQL logs each error.
			_, err := sqlcgen.New(tx).InsertRequest(ctx, sqlcgen.InsertRequestParams{
				AggregateType: s.aggregateType, RequestID: requestID, AggregateID: id.String(), Fingerprint: fingerprint,
			})
			if errors.Is(err, pgx.ErrNoRows) {
				return errRepeated
			}
			if err != nil {
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

// errRepeated means that a request was already recorded.
var errRepeated = errors.New("the request is repeated")

// requestedBy returns the id of the aggregate that a request made. If that request had another
// fingerprint, the error is problem.Exists.
func (s commandSide) requestedBy(ctx context.Context, requestID uuid.UUID, fingerprint []byte) (uuid.UUID, error) {
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

// change runs record, which writes the next event of an aggregate, in one transaction. record
// reports whether it wrote one.
func (s commandSide) change(ctx context.Context, name string, id uuid.UUID, record func(ctx context.Context, tx Tx) (changed bool, err error)) error {
	changed := false
	err := InTx(ctx, s.pool, name, func(ctx context.Context, tx Tx) (err error) {
		changed, err = record(ctx, tx)
		return err
	})
	if changed {
		s.Committed(id, err)
	}
	return Wrap(err, "change %s %s", s.aggregateType, id)
}

// Base returns the connections, and the name of the aggregate type, for an option.
func (s commandSide) Base() (pool *pgxpool.Pool, aggregateType string) {
	return s.pool, s.aggregateType
}

// Committed calls onCommit after a transaction that changed an aggregate, unless the database
// reported that it failed. Without such a report the commit may have succeeded. Options that run
// their own transactions call it, too.
func (s commandSide) Committed(id uuid.UUID, err error) {
	if _, refused := errors.AsType[*pgconn.PgError](err); !refused {
		s.onCommit(s.aggregate(id))
	}
}

func (s commandSide) aggregate(id uuid.UUID) envelope.Aggregate {
	return envelope.Aggregate{Type: s.aggregateType, ID: id.String()}
}

// checkNext returns an error if an event is not the next one of an aggregate.
func checkNext(id uuid.UUID, version int64, nextID uuid.UUID, nextVersion int64) error {
	if nextID != id || nextVersion != version+1 {
		return fmt.Errorf("decision on version %d of %s returned version %d of %s", version, id, nextVersion, nextID)
	}
	return nil
}

// notFound returns problem.NotFound for a row that does not exist, and any other error as
// it is.
func notFound(err error, what string, id uuid.UUID) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return problem.Errorf(problem.NotFound, "%s %q does not exist", what, id)
	}
	return err
}

// PruneRequests deletes at most maxRows requests that are older than olderThan, by the
// clock of the database. It returns how many.
func (o *Outbox) PruneRequests(ctx context.Context, olderThan time.Duration, maxRows int) (int64, error) {
	n, err := o.queries.PruneRequests(ctx, olderThan, limit(maxRows))
	return n, Wrap(err, "prune requests")
}
