package store

import (
	"context"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// SettleClaim records what became of a claim and releases its lane. held is
// false when the lease was lost; then nothing has changed.
func (s *Videos) SettleClaim(ctx context.Context, settlement event.Settlement) (held bool, err error) {
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
	held, err = s.queries.SettleOutbox(ctx, params)
	return held, wrap(err, "settle lane %d", settlement.Lane)
}

// MaintainOutbox makes the partitions of the next daysAhead days and drops
// those older than keep.
func (s *Videos) MaintainOutbox(ctx context.Context, daysAhead int, keep time.Duration) (created, dropped int, err error) {
	row, err := s.queries.MaintainOutbox(ctx, limit(daysAhead), keep)
	return int(row.Created), int(row.Dropped), wrap(err, "maintain outbox")
}

// Backlog is what waits in the outbox.
type Backlog struct {
	// Oldest is when the oldest event in a lane happened; zero when there is
	// none. One of a blocked aggregate is there until a pass sets it aside.
	Oldest time.Time
	// OldestBlocked is when the oldest event of a blocked aggregate happened;
	// zero when none is blocked.
	OldestBlocked time.Time
	// Pending events, counted no further than asked for.
	Pending int64
	// Blocked aggregates, and those of them that are Parked, counted no further.
	Blocked, Parked int64
	// Leased lanes, which somebody publishes.
	Leased int64
}

// MeasureOutbox returns the backlog, counting up to maxCounted rows of each.
func (s *Videos) MeasureOutbox(ctx context.Context, maxCounted int) (Backlog, error) {
	row, err := s.queries.MeasureOutbox(ctx, limit(maxCounted))
	if err != nil {
		return Backlog{}, wrap(err, "measure outbox")
	}
	backlog := Backlog{Pending: row.Pending, Blocked: row.Blocked, Parked: row.Parked, Leased: row.Leased}
	// The epoch is the query's word for none.
	if row.Oldest.Unix() != 0 {
		backlog.Oldest = row.Oldest.UTC()
	}
	if row.OldestBlocked.Unix() != 0 {
		backlog.OldestBlocked = row.OldestBlocked.UTC()
	}
	return backlog, nil
}

// Blocked is an aggregate that has had an event refused by the broker, and has
// not caught up since.
type Blocked struct {
	envelope.Aggregate
	EventID   uuid.UUID // the first that is set aside; uuid.Nil when it was skipped just now
	Version   int64
	Attempts  int       // of that event, since a person has last requeued or skipped
	LastError string    // of that event; empty: one before it was refused
	NextRetry time.Time // zero: parked
	ParkedAt  time.Time // zero: not parked
}

// ListBlocked returns blocked aggregates, parked ones first.
func (s *Videos) ListBlocked(ctx context.Context, maxRows int) ([]Blocked, error) {
	rows, err := s.queries.ListOutboxBlocked(ctx, limit(maxRows))
	if err != nil {
		return nil, wrap(err, "list blocked aggregates")
	}
	return mapSlice(rows, func(row sqlcgen.ListOutboxBlockedRow) Blocked {
		return Blocked{
			Aggregate: envelope.Aggregate{Type: row.AggregateType, ID: row.AggregateID},
			EventID:   row.EventID, Version: row.Version, Attempts: int(row.Attempts), LastError: unescape(row.LastError),
			NextRetry: timeOf(row.NextRetryAt), ParkedAt: timeOf(row.ParkedAt),
		}
	}), nil
}

// RequeueEvent lets a blocked aggregate, parked or not, try its event at once,
// with all its attempts before it again; domain.NotFound when it is not blocked.
func (s *Videos) RequeueEvent(ctx context.Context, aggregate envelope.Aggregate) error {
	n, err := s.queries.RequeueOutbox(ctx, aggregate.Type, aggregate.ID)
	if err != nil {
		return wrap(err, "requeue %s %s", aggregate.Type, aggregate.ID)
	}
	if n == 0 {
		return domain.Errorf(domain.NotFound, "%s %q is not blocked", aggregate.Type, aggregate.ID)
	}
	return nil
}

// SkipEvent gives up the refused event of a blocked aggregate: it will never
// be published, and the events behind it go on. domain.NotFound when that
// event is not the one that blocks the aggregate.
func (s *Videos) SkipEvent(ctx context.Context, aggregate envelope.Aggregate, eventID uuid.UUID) error {
	n, err := s.queries.SkipOutbox(ctx, aggregate.Type, aggregate.ID, eventID)
	if err != nil {
		return wrap(err, "skip event %s", eventID)
	}
	if n == 0 {
		return domain.Errorf(domain.NotFound, "event %q does not block %s %q", eventID, aggregate.Type, aggregate.ID)
	}
	return nil
}
