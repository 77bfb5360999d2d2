package store

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// SettleClaim records the result of a claim and releases its lane. If the lease was lost,
// it changes nothing and held is false.
func (o *Outbox) SettleClaim(ctx context.Context, s outbox.Settlement) (held bool, err error) {
	err = inTx(ctx, o.pool, "store.SettleClaim", func(ctx context.Context, q *sqlcgen.Queries) error {
		if err := q.UseOutboxIndexes(ctx); err != nil {
			return err
		}
		held, err = q.SettleOutbox(ctx, sqlcgen.SettleOutboxParams{Lane: s.Lane, LeaseToken: s.Token, HeadSeq: s.Head, TailSeq: s.Tail})
		if errors.Is(err, pgx.ErrNoRows) {
			return nil // the lease was lost
		}
		if err != nil {
			return err
		}
		return settle(ctx, q, s)
	})
	if err != nil {
		return false, wrap(err, "settle lane %d", s.Lane)
	}
	return held, nil
}

// settle writes the results of the events of a claim, after its lane is locked. All events
// are set aside before an aggregate is unblocked.
func settle(ctx context.Context, q *sqlcgen.Queries, s outbox.Settlement) error {
	errs := []error{q.CommitOutboxAsync(ctx)}
	if len(s.Done) > 0 {
		errs = append(errs, q.DeletePublished(ctx, sqlcgen.DeletePublishedParams{Lane: s.Lane, HeadSeq: s.Head, TailSeq: s.Tail, Seqs: s.Done}))
	}
	for _, seq := range s.Retried {
		errs = append(errs, q.DeleteRetried(ctx, seq))
	}
	for _, f := range s.Failed {
		errs = append(errs, q.BlockAggregate(ctx, sqlcgen.BlockAggregateParams{
			AggregateType: f.Type, AggregateID: f.ID, Lane: s.Lane, Attempts: limit(f.Attempts), Park: f.Park, RetryIn: f.RetryIn,
			// The text of the broker. If PostgreSQL could not store it, the whole
			// settlement would fail, again and again.
			LastError: escape(f.Error),
			FloorSeq:  f.Seq - 1,
		}))
	}
	if len(s.Aside) > 0 {
		errs = append(errs, q.SetAside(ctx, sqlcgen.SetAsideParams{Lane: s.Lane, HeadSeq: s.Head, TailSeq: s.Tail, Seqs: s.Aside}))
	}
	for _, aggregate := range s.Recovered {
		errs = append(errs, q.UnblockAggregate(ctx, aggregate.Type, aggregate.ID))
	}
	return errors.Join(errs...)
}
