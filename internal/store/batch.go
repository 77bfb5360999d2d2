package store

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
	"example.com/videocatalog/internal/tenant"
)

// batchBytes is the largest size of the rows that a batch reads, so that many calls fit into memory.
const batchBytes = 1 << 20

var errBatchTooLarge = problem.Errorf(problem.Invalid, "names, requests: the resources are larger than 1 MiB together: send fewer in a call")

// batch creates aggregates of one type in one transaction. The slices have an item for each.
type batch[A any] struct {
	name, aggregateType string
	requestIDs          []uuid.UUID // each once; uuid.Nil: the item has none
	fingerprints        [][]byte
	ids                 []uuid.UUID // of the new aggregates
	// find returns the existing aggregates among ids, and record writes the new one of an item and its event.
	find   func(ctx context.Context, tx *pg.Tx, ids []uuid.UUID) (map[uuid.UUID]A, error)
	record func(ctx context.Context, tx *pg.Tx, i int) (A, error)
}

// create stores the new aggregates, all or none. For an item whose request came before, it returns the current state of
// the aggregate of that call. item is the index of the item that an error is about, or -1.
//
// A crash before the commit leaves nothing, and after it everything: the caller repeats the same request ids.
func (b batch[A]) create(ctx context.Context, side pg.CommandSide) (all []A, item int, err error) {
	item = -1
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
	return all, item, err
}

// write writes the items in a transaction. Their statements are queued, so they need no round trip each, but for alone: then
// an error is about its item.
func (b batch[A]) write(ctx context.Context, tx *pg.Tx, alone bool) (all []A, changed bool, item int, err error) {
	b.requestIDs = pg.MapSlice(b.requestIDs, func(id uuid.UUID) uuid.UUID { return tenant.Key(ctx, id) })
	q, ids, repeatable := sqlcgen.New(tx), slices.Clone(b.ids), slices.DeleteFunc(slices.Clone(b.requestIDs), func(id uuid.UUID) bool { return id == uuid.Nil })
	tx.Queue(q.InsertRequests(ctx, sqlcgen.InsertRequestsParams{
		AggregateType: b.aggregateType, RequestIds: b.requestIDs, AggregateIds: pg.MapSlice(ids, uuid.UUID.String), Fingerprints: b.fingerprints,
	}))
	requests, err := q.FindRequests(ctx, b.aggregateType, b.requestIDs)
	if err != nil {
		return nil, false, -1, err
	}
	for _, r := range requests {
		i := slices.Index(b.requestIDs, r.RequestID)
		if !bytes.Equal(r.Fingerprint, b.fingerprints[i]) {
			return nil, false, i, problem.Errorf(problem.Exists, "the request id was used to create another %s", b.aggregateType).Because(problem.ReasonRequestIDReused)
		}
		ids[i] = r.AggregateID
	}
	if len(requests) < len(repeatable) {
		return nil, false, -1, problem.Errorf(problem.Unavailable, "a request id has just expired: try again")
	}
	found, err := b.find(ctx, tx, ids)
	if err != nil {
		return nil, false, -1, err
	}
	for i, id := range ids {
		a, exists := found[id]
		if !exists && id != b.ids[i] {
			return nil, changed, i, problem.Errorf(problem.NotFound, "%s %q does not exist any more", b.aggregateType, id)
		}
		if !exists {
			changed = true
			if a, err = b.record(ctx, tx, i); err == nil && alone {
				_, err = b.find(ctx, tx, ids[i:i+1]) // sends what is queued
			}
		}
		if err != nil {
			return nil, changed, i, err
		}
		all = append(all, a)
	}
	return all, changed, -1, nil
}
