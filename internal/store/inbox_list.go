package store

import (
	"context"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// InboxPart is what an inbox has of one generation of a consumer.
type InboxPart struct {
	Side       string `json:"side"` // SideCommand or SideQuery
	Consumer   string `json:"consumer"`
	Generation int64  `json:"generation"` // how often Forget was called before; 0 on the command side
	Present    bool   `json:"present"`    // false: to the consumer these events are new again, and the rows are pruned
	name       string // in the table
}

// The sides that have an inbox.
const (
	SideCommand = "command"
	SideQuery   = "query"
)

// InboxRows are the rows of a part.
type InboxRows struct {
	InboxPart
	Rows int64 `json:"rows"`
	// Oldest and Newest are when the first and the last event were applied; zero if there
	// are no rows.
	Oldest time.Time `json:"oldest_time,omitzero"`
	Newest time.Time `json:"newest_time,omitzero"`
}

// InboxEvent is an event that a part has.
type InboxEvent struct {
	InboxPart
	EventID uuid.UUID `json:"event_id"`
	Time    time.Time `json:"apply_time"`
}

// Parts returns the parts of a consumer; empty: of all. A present generation is one of them
// also without rows.
func (b *Inbox) Parts(ctx context.Context, consumerName string) ([]InboxPart, error) {
	rows, err := b.queries.ListInboxNames(ctx)
	if err != nil {
		return nil, wrap(err, "list the consumers of the inbox")
	}
	var parts []InboxPart
	for _, row := range rows {
		if consumerName == "" || row.Consumer == consumerName {
			parts = append(parts, InboxPart{Side: SideQuery, Consumer: row.Consumer, Generation: row.Generation, Present: row.Present, name: row.Name})
		}
	}
	return parts, nil
}

// MeasurePart counts the rows of a part. It reads all of them, which may be millions, by short
// statements.
func (b *Inbox) MeasurePart(ctx context.Context, part InboxPart) (InboxRows, error) {
	return measurePart(part, func(after uuid.UUID) (sqlcgen.MeasureInboxRow, error) {
		return b.queries.MeasureInbox(ctx, after, part.name, readRows)
	})
}

// measurePart counts the rows of a part, whose pages read returns.
func measurePart(part InboxPart, read func(after uuid.UUID) (sqlcgen.MeasureInboxRow, error)) (InboxRows, error) {
	measured := InboxRows{InboxPart: part}
	for after, more := uuid.Nil, true; more; {
		page, err := read(after)
		if err != nil {
			return measured, wrap(err, "measure the inbox of %s", part.name)
		}
		if page.Read > 0 {
			if measured.Rows == 0 || page.Oldest.Before(measured.Oldest) {
				measured.Oldest = page.Oldest.UTC()
			}
			if page.Newest.After(measured.Newest) {
				measured.Newest = page.Newest.UTC()
			}
		}
		measured.Rows += page.Read
		after, more = page.LastID, page.Read == readRows
	}
	return measured, nil
}

// EventsOf returns those of some events that a part has, in the order of their ids.
func (b *Inbox) EventsOf(ctx context.Context, part InboxPart, ids []uuid.UUID) ([]InboxEvent, error) {
	rows, err := b.queries.ListInboxEvents(ctx, part.name, ids)
	if err != nil {
		return nil, wrap(err, "list events in the inbox of %s", part.name)
	}
	return mapSlice(rows, func(row sqlcgen.ListInboxEventsRow) InboxEvent {
		return InboxEvent{InboxPart: part, EventID: row.EventID, Time: row.ReceivedAt.UTC()}
	}), nil
}

// Parts returns the parts of a consumer; empty: of all. Only those with rows are there.
func (r *Reactions) Parts(ctx context.Context, consumerName string) ([]InboxPart, error) {
	consumers, err := r.queries.ListReactionNames(ctx)
	if err != nil {
		return nil, wrap(err, "list the consumers of the inbox of the command side")
	}
	var parts []InboxPart
	for _, name := range consumers {
		if consumerName == "" || name == consumerName {
			parts = append(parts, InboxPart{Side: SideCommand, Consumer: name, Present: true, name: name})
		}
	}
	return parts, nil
}

// MeasurePart does what that of Inbox does.
func (r *Reactions) MeasurePart(ctx context.Context, part InboxPart) (InboxRows, error) {
	return measurePart(part, func(after uuid.UUID) (sqlcgen.MeasureInboxRow, error) {
		row, err := r.queries.MeasureReactions(ctx, after, part.name, readRows)
		return sqlcgen.MeasureInboxRow(row), err
	})
}

// EventsOf does what that of Inbox does.
func (r *Reactions) EventsOf(ctx context.Context, part InboxPart, ids []uuid.UUID) ([]InboxEvent, error) {
	rows, err := r.queries.ListReactions(ctx, []string{part.name}, ids)
	if err != nil {
		return nil, wrap(err, "list events in the inbox of %s", part.name)
	}
	return mapSlice(rows, func(row sqlcgen.ListReactionsRow) InboxEvent {
		return InboxEvent{InboxPart: part, EventID: row.EventID, Time: row.ReceivedAt.UTC()}
	}), nil
}

// EventIDs returns the ids of the events of an aggregate that the outbox still has, in their
// order. The outbox has no index of aggregates, so it reads all events, by short statements.
func (o *Outbox) EventIDs(ctx context.Context, aggregateID string) (ids []uuid.UUID, err error) {
	for after, more := uuid.Nil, true; more; {
		var page sqlcgen.ScanAggregateRow
		err := inTx(ctx, o.pool, "store.ScanAggregate", func(ctx context.Context, q *sqlcgen.Queries) (err error) {
			if err = q.UseOutboxIndexes(ctx); err == nil {
				page, err = q.ScanAggregate(ctx, after, aggregateID, readRows)
			}
			return err
		})
		if err != nil {
			return nil, wrap(err, "find events of %s behind %s", aggregateID, after)
		}
		ids = append(ids, page.Ids...)
		after, more = page.LastID, page.Read == readRows
	}
	return ids, nil
}
