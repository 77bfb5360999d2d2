package store

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// LoseAnswer makes a claim that had an answer one whose answer was lost.
func (o *Outbox) LoseAnswer(token int64) { o.lost.add(token) }

// BoundQuarantine makes the quarantine keep fewer bytes.
func (b *Inbox) BoundQuarantine(bytes int64) { b.quarantineBytes = bytes }

// Settle settles in a transaction that the test commits.
func Settle(ctx context.Context, tx pgx.Tx, s outbox.Settlement) error {
	q := sqlcgen.New(tx)
	if _, err := q.SettleOutbox(ctx, sqlcgen.SettleOutboxParams{Lane: s.Lane, LeaseToken: s.Token, HeadSeq: s.Head, TailSeq: s.Tail}); err != nil {
		return err
	}
	return settle(ctx, q, s)
}

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
