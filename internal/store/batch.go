package store

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// batch creates aggregates of one type in one transaction. The slices have an item for each.
type batch[A any] struct {
	name          string // of the transaction, in traces
	aggregateType string
	requestIDs    []uuid.UUID // of the calls, each once; uuid.Nil: there is none
	fingerprints  [][]byte
	ids           []uuid.UUID // of the new aggregates
	// find returns the existing aggregates among ids, and record writes the new one of an item and its event.
	find   func(ctx context.Context, tx *pg.Tx, ids []uuid.UUID) (map[uuid.UUID]A, error)
	record func(ctx context.Context, tx *pg.Tx, i int) (A, error)
}

// create stores the new aggregates, all or none, and returns the state of each item: a repeated request returns the
// current state of the aggregate that it created first. item is the index of the item that an error is about, or -1.
//
// A crash before the commit leaves nothing, and after it everything: the caller repeats the same request ids.
func (b batch[A]) create(ctx context.Context, side pg.CommandSide) (all []A, item int, err error) {
	run := func(alone bool) error {
		return side.Change(ctx, b.name, b.ids[0], func(ctx context.Context, tx *pg.Tx) (changed bool, err error) {
			all, changed, item, err = b.write(ctx, tx, alone)
			return changed, err
		})
	}
	err = run(false)
	if refusal, ok := errors.AsType[*problem.Error](err); ok && item < 0 && refusal.Kind != problem.Unavailable {
		err = run(true) // a constraint refused one of the statements, and does not say whose
	}
	if err != nil {
		return nil, item, err
	}
	return all, -1, nil
}

// write writes the items in a transaction. Their statements are queued, so the database has no round trip for each,
// but for alone: then an error is about its item.
func (b batch[A]) write(ctx context.Context, tx *pg.Tx, alone bool) (all []A, changed bool, item int, err error) {
	ids, item, err := b.request(ctx, tx)
	if err != nil {
		return nil, false, item, err
	}
	var found map[uuid.UUID]A
	if !slices.Equal(ids, b.ids) {
		if found, err = b.find(ctx, tx, ids); err != nil {
			return nil, false, -1, err
		}
	}
	for i, id := range ids {
		a, exists := found[id]
		switch {
		case exists:
		case id != b.ids[i]:
			return nil, changed, i, problem.Errorf(problem.NotFound, "%s %q does not exist any more", b.aggregateType, id)
		default:
			changed = true
			if a, err = b.record(ctx, tx, i); err == nil && alone {
				_, err = b.find(ctx, tx, ids[i:i+1]) // sends what is queued
			}
			if err != nil {
				return nil, changed, i, err
			}
		}
		all = append(all, a)
	}
	return all, changed, -1, nil
}

// request records the requests, and returns the id of the aggregate of each item: the new one, or the one that an earlier
// call with this request id created.
func (b batch[A]) request(ctx context.Context, tx *pg.Tx) (ids []uuid.UUID, item int, err error) {
	q := sqlcgen.New(tx)
	tx.Queue(q.InsertRequests(ctx, sqlcgen.InsertRequestsParams{
		AggregateType: b.aggregateType, RequestIds: b.requestIDs, AggregateIds: pg.MapSlice(b.ids, uuid.UUID.String), Fingerprints: b.fingerprints,
	}))
	rows, err := q.FindRequests(ctx, b.aggregateType, b.requestIDs)
	if err != nil {
		return nil, -1, err
	}
	requests := make(map[uuid.UUID]sqlcgen.FindRequestsRow, len(rows))
	for _, row := range rows {
		requests[row.RequestID] = row
	}
	for i, id := range b.ids {
		request, recorded := requests[b.requestIDs[i]]
		switch {
		case b.requestIDs[i] == uuid.Nil:
		case !recorded: // just pruned
			return nil, i, problem.Errorf(problem.Unavailable, "the request id %q has just expired: try again", b.requestIDs[i])
		case !bytes.Equal(request.Fingerprint, b.fingerprints[i]):
			return nil, i, problem.Errorf(problem.Exists, "the request id was used to create another %s", b.aggregateType).Because(problem.ReasonRequestIDReused)
		default:
			if id, err = uuid.Parse(request.AggregateID); err != nil {
				return nil, i, err
			}
		}
		ids = append(ids, id)
	}
	return ids, -1, nil
}

// batchBytes is the largest size of the rows of a batch that is read. So many calls fit into memory, even if their clients
// read slowly.
const batchBytes = 1 << 20

var errBatchTooLarge = problem.InvalidField("names", "together they are larger than 1 MiB: get fewer in a call")

// newBatchPage returns a page for all rows of a batch.
func newBatchPage(pool *pgxpool.Pool, size int) *pg.Page {
	p := pg.NewPage(pool, size)
	p.Bytes = batchBytes
	return p
}
