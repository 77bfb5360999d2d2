package store

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// errRepeated means that a request was already recorded.
var errRepeated = errors.New("the request is repeated")

// insertRequest records, in the transaction of a create, which aggregate a request made. It
// returns errRepeated if the request made one before. The statement itself does not fail then:
// repeated calls are normal, and PostgreSQL logs each error.
func insertRequest(ctx context.Context, q *sqlcgen.Queries, id uuid.UUID, aggregate envelope.Aggregate, fingerprint []byte) error {
	_, err := q.InsertRequest(ctx, sqlcgen.InsertRequestParams{AggregateType: aggregate.Type, RequestID: id, AggregateID: aggregate.ID, Fingerprint: fingerprint})
	if errors.Is(err, pgx.ErrNoRows) {
		return errRepeated
	}
	return err
}

// requestedBy returns the id of the aggregate that a request made. If that request had another
// fingerprint, the error is problem.Exists.
func requestedBy(ctx context.Context, q *sqlcgen.Queries, aggregateType string, requestID uuid.UUID, fingerprint []byte) (aggregateID string, err error) {
	request, err := q.GetRequest(ctx, aggregateType, requestID)
	if errors.Is(err, pgx.ErrNoRows) { // just pruned
		return "", problem.Errorf(problem.Unavailable, "the request id %q has just expired: try again", requestID)
	}
	if err != nil {
		return "", wrap(err, "get request %s", requestID)
	}
	if !bytes.Equal(request.Fingerprint, fingerprint) {
		return "", problem.Errorf(problem.Exists, "the request id was used to create another %s", aggregateType).Because(problem.ReasonRequestIDReused)
	}
	return request.AggregateID, nil
}

// PruneRequests deletes at most maxRows requests that are older than olderThan, by the
// clock of the database. It returns how many.
func (o *Outbox) PruneRequests(ctx context.Context, olderThan time.Duration, maxRows int) (int64, error) {
	n, err := o.queries.PruneRequests(ctx, olderThan, limit(maxRows))
	return n, wrap(err, "prune requests")
}
