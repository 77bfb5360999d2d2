package repair

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/options/repair/internal/sqlcgen"
)

// all returns the projections of this service that can be compared. Each has a file of its own.
// commands is nil in a process that uses only the query side.
func all(commands, queries *pgxpool.Pool) []projection {
	return []projection{
		newVideos(commands, queries),
	}
}

// projection is a projection that is compared with its owner, and repaired.
type projection interface {
	// source returns the two sides. With whole it may have rows that a comparison leaves out,
	// because each side deletes them by itself.
	source(whole bool) source
	// repair gives entries the state of their owner, and appends the entry to the audit, in one
	// transaction. It returns how many it has written, and the ids that it has not because they
	// were changed at the same time. The others do not differ any more.
	repair(ctx context.Context, ids []uuid.UUID, e admin.Entry) (repaired int, changed []uuid.UUID, err error)
	// moveFuture repairs some rows that are in the future of a database that was replaced. It
	// reports whether there may be more.
	moveFuture(ctx context.Context) (more bool, err error)
}

// pendingOf returns what finds those of some aggregates that have an event in the outbox.
func pendingOf(commands *pgxpool.Pool, aggregateType string) func(context.Context, []uuid.UUID) (map[uuid.UUID]bool, error) {
	return func(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]bool, error) {
		texts := make([]string, len(ids))
		for i, id := range ids {
			texts[i] = id.String()
		}
		found, err := sqlcgen.New(commands).ListPendingAggregates(ctx, aggregateType, texts)
		if err != nil {
			return nil, store.Wrap(err, "find pending events of %d aggregates", len(ids))
		}
		pending := make(map[uuid.UUID]bool, len(found))
		for _, text := range found {
			id, err := uuid.Parse(text)
			if err != nil {
				return nil, fmt.Errorf("aggregate id %q: %w", text, err)
			}
			pending[id] = true
		}
		return pending, nil
	}
}

// record appends the audit of a repair of so many entries, and has the projection compared again.
// before and after are the entries as they were and are. Missing ones are not in them.
func record[T any](ctx context.Context, tx store.Tx, aggregateType string, repaired int, before, after []T, e admin.Entry) (err error) {
	q := sqlcgen.New(tx)
	params := sqlcgen.InsertQueryAuditParams{
		ActionID: e.ActionID, Actor: e.Name, Via: e.Via, Action: e.Action, Filter: e.Filter, Reason: e.Reason, Items: int64(repaired),
	}
	if params.Before, err = json.Marshal(before); err == nil {
		params.After, err = json.Marshal(after)
	}
	if err != nil {
		return fmt.Errorf("encode audit: %w", err)
	}
	if err := q.InsertQueryAudit(ctx, params); err != nil {
		return fmt.Errorf("append audit: %w", err)
	}
	return q.RestartComparison(ctx, aggregateType)
}
