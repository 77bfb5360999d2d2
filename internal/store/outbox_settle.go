package store

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// SettleClaim implements outbox.Store.
func (o *Outbox) SettleClaim(ctx context.Context, s outbox.Settlement) (held bool, err error) {
	err = inTx(ctx, o.pool, "store.SettleClaim", func(ctx context.Context, q *sqlcgen.Queries) error {
		Queue(q.UseOutboxIndexes(ctx))
		Queue(q.CommitOutboxAsync(ctx))
		if held, err = q.ReleaseLane(ctx, s.Tail, s.Lane, s.Token); err == nil {
			settle(ctx, q, s)
		}
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil // the lease was lost
	}
	if err != nil {
		return false, wrap(err, "settle lane %d", s.Lane)
	}
	return held, nil
}

// settle writes the results of the events of a claim, after its lane is locked. All events
// are deferred before an aggregate is blocked or resumed.
func settle(ctx context.Context, q *sqlcgen.Queries, s outbox.Settlement) {
	if len(s.Done) > 0 {
		Queue(q.DeletePublished(ctx, sqlcgen.DeletePublishedParams{Lane: s.Lane, HeadSeq: s.Head, TailSeq: s.Tail, Seqs: s.Done}))
	}
	if len(s.Defer) > 0 {
		Queue(q.DeferEvents(ctx, sqlcgen.DeferEventsParams{Lane: s.Lane, HeadSeq: s.Head, TailSeq: s.Tail, Seqs: s.Defer}))
	}
	for _, f := range s.Failed {
		Queue(q.BlockAggregate(ctx, sqlcgen.BlockAggregateParams{
			AggregateType: f.Type, AggregateID: f.ID, Seq: f.Seq, Attempts: limit(f.Attempts), Park: f.Park, RetryIn: f.RetryIn,
			// The text of the broker. If PostgreSQL could not store it, the whole
			// settlement would fail, again and again.
			LastError: escape(f.Error),
		}))
	}
	for _, r := range s.Resumed {
		Queue(q.ResumeAggregate(ctx, r.Type, r.ID, r.Published))
	}
}
