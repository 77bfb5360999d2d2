package store

import (
	"context"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// Row is an event, or a row of a projection, in a test.
type Row struct {
	Aggregate, Event uuid.UUID
	Version          int64
	Purged           bool
}

func (r Row) projected() projected {
	return projected{aggregate: r.Aggregate, event: r.Event, version: r.Version, purged: r.Purged}
}

// EffectOf is effectOf.
func EffectOf(before, event Row) (outcome envelope.Outcome, newer bool) {
	return effectOf(before.projected(), event.projected())
}

// ProjectRows applies events to the rows that read returns, by write.
func ProjectRows(ctx context.Context, inbox *Inbox, consumerName string, events []Row, read func(uuid.UUID) Row, write func(Row) error) ([]envelope.Outcome, error) {
	return projectRows(ctx, inbox, consumerName, events, Row.projected,
		func(_ context.Context, _ *sqlcgen.Queries, ids []uuid.UUID) ([]projected, error) {
			return mapSlice(ids, func(id uuid.UUID) projected {
				row := read(id).projected()
				row.aggregate = id
				return row
			}), nil
		},
		func(_ context.Context, _ *sqlcgen.Queries, event Row) error { return write(event) })
}
