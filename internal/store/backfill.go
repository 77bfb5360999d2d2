package store

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// Aggregates is how the outbox reads the aggregates of one type, to publish their state. The zero value has no type.
type Aggregates struct {
	aggregateType string
	list          func(ctx context.Context, q *sqlcgen.Queries, after uuid.UUID, maxRows int) ([]uuid.UUID, error)
	lock          func(ctx context.Context, q *sqlcgen.Queries, ids []uuid.UUID) ([]envelope.Message, error)
}

// aggregatesOf makes Aggregates from two queries and from what makes a snapshot of a row.
// list returns ids in order. lock locks rows in the order of their ids, and returns them in
// that order.
func aggregatesOf[R any](aggregateType string,
	list func(q *sqlcgen.Queries, ctx context.Context, after uuid.UUID, maxRows int32) ([]uuid.UUID, error),
	lock func(q *sqlcgen.Queries, ctx context.Context, ids []uuid.UUID) ([]R, error),
	snapshot func(row R) (envelope.Message, error),
) Aggregates {
	return Aggregates{
		aggregateType: aggregateType,
		list: func(ctx context.Context, q *sqlcgen.Queries, after uuid.UUID, maxRows int) ([]uuid.UUID, error) {
			return list(q, ctx, after, limit(maxRows))
		},
		lock: func(ctx context.Context, q *sqlcgen.Queries, ids []uuid.UUID) ([]envelope.Message, error) {
			rows, err := lock(q, ctx, ids)
			if err != nil {
				return nil, err
			}
			messages := make([]envelope.Message, len(rows))
			for i, row := range rows {
				if messages[i], err = snapshot(row); err != nil {
					return nil, err
				}
			}
			return messages, nil
		},
	}
}

const (
	// readRows is how many rows one transaction reads at most.
	readRows = 10_000
	// backfillBytes is after how many bytes of payload a transaction appends no further snapshot.
	backfillBytes = 8 << 20
)

// CountPending counts the events in lanes, up to maxCounted. It does not count those that
// are set aside, because they delay no other aggregate.
func (o *Outbox) CountPending(ctx context.Context, maxCounted int) (n int64, err error) {
	err = inTx(ctx, o.pool, "store.CountPending", func(ctx context.Context, q *sqlcgen.Queries) (err error) {
		if err = q.UseOutboxIndexes(ctx); err == nil {
			n, err = q.CountPending(ctx, limit(maxCounted))
		}
		return err
	})
	return n, wrap(err, "count pending events")
}

// span is what the audit has instead of the items: nothing of them changes, and there may
// be many.
func span(first, last uuid.UUID) []byte {
	text, _ := json.Marshal([]map[string]uuid.UUID{{"first": first, "last": last}}) // it cannot fail
	return text
}

// snapshots are the aggregates of a type, of which snapshots can be published.
type snapshots struct {
	*Outbox
	Aggregates
}

// Snapshots returns the aggregates of a type. The error is problem.Invalid if aggregates
// does not have the type.
func (o *Outbox) Snapshots(aggregateType string, aggregates []Aggregates) (admin.Snapshots, error) {
	var types []string
	for _, a := range aggregates {
		if a.aggregateType == aggregateType && aggregateType != "" {
			return snapshots{Outbox: o, Aggregates: a}, nil
		}
		if a.aggregateType != "" {
			types = append(types, a.aggregateType)
		}
	}
	slices.Sort(types)
	return nil, problem.InvalidField("type", "must be one of the aggregate types of this service: %s", strings.Join(types, ", "))
}

// CountAggregates implements admin.Snapshots.
func (s snapshots) CountAggregates(ctx context.Context, after uuid.UUID) (page admin.Page, err error) {
	err = inTx(ctx, s.pool, "store.CountAggregates", func(ctx context.Context, q *sqlcgen.Queries) error {
		ids, last, err := s.next(ctx, q, after, uuid.Max, readRows)
		page = admin.Page{Items: int64(len(ids)), Last: last, More: len(ids) == readRows}
		return err
	})
	return page, wrap(err, "count aggregates behind %s", after)
}

// next returns the next ids, and the last of them; after if there is none.
func (s snapshots) next(ctx context.Context, q *sqlcgen.Queries, after, until uuid.UUID, maxRows int) (ids []uuid.UUID, last uuid.UUID, err error) {
	if err := q.UseOutboxIndexes(ctx); err != nil {
		return nil, after, err
	}
	if ids, err = s.list(ctx, q, after, maxRows); err != nil {
		return nil, after, err
	}
	if beyond := slices.IndexFunc(ids, func(id uuid.UUID) bool { return bytes.Compare(id[:], until[:]) > 0 }); beyond >= 0 {
		ids = ids[:beyond]
	}
	if len(ids) == 0 {
		return nil, after, nil
	}
	return ids, ids[len(ids)-1], nil
}

// AppendSnapshots implements admin.Snapshots.
func (s snapshots) AppendSnapshots(ctx context.Context, after, until uuid.UUID, maxRows int, e admin.Entry) (page admin.Page, err error) {
	err = inTx(ctx, s.pool, "store.AppendSnapshots", func(ctx context.Context, q *sqlcgen.Queries) error {
		ids, last, err := s.next(ctx, q, after, until, maxRows)
		page = admin.Page{Last: last, More: len(ids) == maxRows}
		if err != nil || len(ids) == 0 {
			return err
		}
		messages, err := s.lock(ctx, q, ids)
		if err != nil || len(messages) == 0 { // all were removed meanwhile
			return err
		}
		params := s.params(messages, e)
		if n := len(params.Ids); n < len(messages) {
			if page.Last, err = uuid.Parse(messages[n-1].AggregateID); err != nil {
				return fmt.Errorf("id of %s: %w", s.aggregateType, err)
			}
			page.More = true
		}
		params.Before = span(ids[0], page.Last)
		if err := q.BeginBackfill(ctx); err != nil {
			return err
		}
		page.Items, err = q.AppendSnapshots(ctx, params)
		return err
	})
	return page, wrap(err, "backfill %s behind %s", s.aggregateType, after)
}

// params returns the first messages, which end with the one with which their payloads reach
// backfillBytes.
func (s snapshots) params(messages []envelope.Message, e admin.Entry) sqlcgen.AppendSnapshotsParams {
	params := sqlcgen.AppendSnapshotsParams{
		AggregateType: s.aggregateType, EventType: messages[0].Type, SchemaVersion: messages[0].SchemaVersion,
		ActionID: e.ActionID, Actor: e.Actor.Name, Via: e.Actor.Via, Action: e.Action, Filter: e.Filter, Reason: e.Reason,
	}
	size := 0
	for _, m := range messages {
		if size >= backfillBytes {
			break
		}
		size += len(m.Payload)
		params.Ids = append(params.Ids, m.ID)
		params.AggregateIds = append(params.AggregateIds, m.AggregateID)
		params.Versions = append(params.Versions, m.Version)
		params.Payloads = append(params.Payloads, m.Payload)
		params.Times = append(params.Times, m.OccurredAt)
	}
	return params
}
