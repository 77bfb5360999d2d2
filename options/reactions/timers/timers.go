// Package timers writes the timers of aggregates. It is a package of its own, because internal/store imports it for aggregate
// types with timers.
package timers

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/options/reactions/internal/sqlcgen"
)

// Set sets timers of the aggregate of an event, in the transaction that appends the event and has locked the aggregate. Each has
// a name and fires after some time; 0 cancels it. A timer replaces the one with the same name.
func Set(ctx context.Context, tx sqlcgen.DBTX, m envelope.Message, timers map[string]time.Duration) error {
	var names, cancelled []string
	var afters []time.Duration
	for name, after := range timers {
		if after == 0 {
			cancelled = append(cancelled, name)
			continue
		}
		names, afters = append(names, name), append(afters, after)
	}
	id, err := uuid.Parse(m.AggregateID)
	if err != nil {
		return fmt.Errorf("set timers: %w", err)
	}
	q := sqlcgen.New(tx)
	if len(cancelled) > 0 {
		if err := q.CancelTimers(ctx, m.AggregateType, id, cancelled); err != nil {
			return fmt.Errorf("cancel timers: %w", err)
		}
	}
	if len(names) == 0 {
		return nil
	}
	causation := CausationOfNext(m)
	if err := q.SetTimers(ctx, sqlcgen.SetTimersParams{
		AggregateType: m.AggregateType, AggregateID: id, CausationID: causation.CausationID, CorrelationID: causation.CorrelationID,
		Names: names, Afters: afters,
	}); err != nil {
		return fmt.Errorf("set timers: %w", err)
	}
	return nil
}

// CausationOfNext returns the causation of an event that m leads to.
func CausationOfNext(m envelope.Message) envelope.Causation {
	causation := envelope.Causation{CausationID: m.ID, CorrelationID: m.Causation.CorrelationID}
	if causation.CorrelationID == uuid.Nil {
		causation.CorrelationID = m.ID
	}
	return causation
}
