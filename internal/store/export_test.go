package store

import (
	"context"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// Row is an event as a row of a projection.
type Row struct {
	Aggregate, Event uuid.UUID
	Version          int64
}

func (r Row) projected() projected {
	return projected{aggregate: r.Aggregate, event: r.Event, version: r.Version}
}

// ProjectRows applies events whose rows are written by write.
func ProjectRows(ctx context.Context, inbox *Inbox, consumerName string, events []Row, write func(Row) (before Row, err error)) ([]envelope.Outcome, error) {
	return projectRows(ctx, inbox, consumerName, events, Row.projected, func(_ context.Context, _ *sqlcgen.Queries, event Row) (projected, error) {
		before, err := write(event)
		return before.projected(), err
	})
}
