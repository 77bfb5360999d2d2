package replay

import (
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg"
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
	lock func(ctx context.Context, tx *pg.Tx, ids []uuid.UUID) ([]envelope.Message, error)
}

// snapshotID returns the id of the snapshot of a version of an aggregate. It is always the same, so that a snapshot
// that comes again is a duplicate. It is a UUIDv8 (https://www.rfc-editor.org/rfc/rfc9562#name-uuid-version-8): see
// envelope.IsSnapshot.
func snapshotID(aggregateType string, aggregate uuid.UUID, version int64) (id uuid.UUID) {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%d", aggregateType, aggregate, version))
	copy(id[6:], sum[:])
	id[6] = id[6]&0x0f | 8<<4
	id[8] = id[8]&0x3f | 0x80 // the variant of RFC 9562
	return id
}

// snapshotsOf returns the aggregates of a type. lock is a method Lock of internal/store, and encode
// returns a snapshot.
func snapshotsOf[A any](name string, list func(*sqlcgen.Queries, context.Context, uuid.UUID, int32) ([]uuid.UUID, error),
	lock func(ctx context.Context, tx *pg.Tx, ids []uuid.UUID, free bool) (map[uuid.UUID]A, error), encode func(A) (envelope.Message, error),
) aggregates {
	return aggregates{name: name, list: list, lock: func(ctx context.Context, tx *pg.Tx, ids []uuid.UUID) ([]envelope.Message, error) {
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
			m.Repeat = envelope.RepeatSnapshot
			messages = append(messages, m)
		}
		return messages, nil
	}}
}
