package pg

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"example.com/videocatalog/internal/pg/internal/sqlcgen"
	"example.com/videocatalog/internal/problem"
)

// recordRequest records the request that makes an aggregate. It returns errRepeated if the request
// was recorded before. The statement does not fail then: repeated calls are normal, and PostgreSQL
// logs each error.
func (s CommandSide) recordRequest(ctx context.Context, tx *Tx, requestID uuid.UUID, fingerprint []byte, id uuid.UUID) error {
	_, err := sqlcgen.New(tx).InsertRequest(ctx, sqlcgen.InsertRequestParams{
		AggregateType: s.aggregateType, RequestID: requestID, AggregateID: id.String(), Fingerprint: fingerprint,
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return errRepeated
	}
	return err
}

// errRepeated means that a request was already recorded.
var errRepeated = errors.New("the request is repeated")

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
