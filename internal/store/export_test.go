package store

import (
	"context"

	"github.com/jackc/pgx/v5"

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
