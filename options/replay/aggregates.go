package replay

import (
	"context"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/options/replay/internal/sqlcgen"
)

// all returns the aggregate types of this service. Each has a file of its own. cmd/entity adds a
// line for each entity that it makes.
func all() []aggregates {
	return []aggregates{
		videos(),
	}
}

// aggregates are the aggregates of one type.
type aggregates struct {
	name string
	// list returns the next ids above after, in order.
	list func(q *sqlcgen.Queries, ctx context.Context, after uuid.UUID, maxRows int32) ([]uuid.UUID, error)
	// lock locks aggregates until the end of the transaction, in the order of their ids, and
	// returns a snapshot of each in that order.
	lock func(ctx context.Context, tx store.Tx, ids []uuid.UUID) ([]envelope.Message, error)
}

// snapshotsOf returns the aggregates of a type. lock is a method Lock of internal/store, and encode
// a function of internal/event.
func snapshotsOf[A any](name string, list func(*sqlcgen.Queries, context.Context, uuid.UUID, int32) ([]uuid.UUID, error),
	lock func(ctx context.Context, tx store.Tx, ids []uuid.UUID, free bool) (map[uuid.UUID]A, error), encode func(A) (envelope.Message, error),
) aggregates {
	return aggregates{name: name, list: list, lock: func(ctx context.Context, tx store.Tx, ids []uuid.UUID) ([]envelope.Message, error) {
		locked, err := lock(ctx, tx, ids, false)
		if err != nil {
			return nil, err
		}
		messages := make([]envelope.Message, 0, len(locked))
		for _, id := range ids {
			aggregate, exists := locked[id]
			if !exists { // it was removed meanwhile
				continue
			}
			m, err := encode(aggregate)
			if err != nil {
				return nil, err
			}
			messages = append(messages, m)
		}
		return messages, nil
	}}
}
