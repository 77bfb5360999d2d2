package store

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// PutEntries writes entries into the catalog, over any version.
func PutEntries(ctx context.Context, c *Catalog, entries []domain.Entry) error {
	news := make(map[uuid.UUID]domain.Entry, len(entries))
	for _, entry := range entries {
		news[entry.VideoID] = entry
	}
	return inTx(ctx, c.pool, "store.PutEntries", func(ctx context.Context, q *sqlcgen.Queries) error { return upsert(ctx, q, news) })
}

// Settle settles in a transaction that the test commits.
func Settle(ctx context.Context, tx pgx.Tx, s outbox.Settlement) error {
	q := sqlcgen.New(tx)
	if _, err := q.SettleOutbox(ctx, sqlcgen.SettleOutboxParams{Lane: s.Lane, LeaseToken: s.Token, HeadSeq: s.Head, TailSeq: s.Tail}); err != nil {
		return err
	}
	return settle(ctx, q, s)
}
