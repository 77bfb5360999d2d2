package store

import (
	"context"
	"time"

	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// SettleClaim records what became of a claim and releases its lane. held is
// false when the lease was lost; then nothing has changed.
func (o *Outbox) SettleClaim(ctx context.Context, settlement outbox.Settlement) (held bool, err error) {
	params := sqlcgen.SettleOutboxParams{
		Lane: settlement.Lane, LeaseToken: settlement.Token,
		// Empty, not NULL: see video.outbox_settle.
		DoneSeqs: notNil(settlement.Done), RetriedSeqs: notNil(settlement.Retried), AsideSeqs: notNil(settlement.Aside),
		FailedTypes: []string{}, FailedIds: []string{}, FailedSeqs: []int64{}, FailedAttempts: []int32{}, FailedErrors: []string{}, FailedRetryIn: []time.Duration{}, FailedPark: []bool{},
		RecoveredTypes: []string{}, RecoveredIds: []string{},
		HeadSeq: optional(settlement.Head), TailSeq: optional(settlement.Tail),
	}
	for _, failure := range settlement.Failed {
		params.FailedTypes = append(params.FailedTypes, failure.Type)
		params.FailedIds = append(params.FailedIds, failure.ID)
		params.FailedSeqs = append(params.FailedSeqs, failure.Seq)
		params.FailedAttempts = append(params.FailedAttempts, limit(failure.Attempts))
		// The broker's words. For a text that it cannot store, PostgreSQL would refuse the settlement of the whole claim, again and again.
		params.FailedErrors = append(params.FailedErrors, escape(failure.Error))
		params.FailedRetryIn = append(params.FailedRetryIn, failure.RetryIn)
		params.FailedPark = append(params.FailedPark, failure.Park)
	}
	for _, aggregate := range settlement.Recovered {
		params.RecoveredTypes = append(params.RecoveredTypes, aggregate.Type)
		params.RecoveredIds = append(params.RecoveredIds, aggregate.ID)
	}
	held, err = o.queries.SettleOutbox(ctx, params)
	return held, wrap(err, "settle lane %d", settlement.Lane)
}
