package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// commandSide is what the command sides of all aggregate types share.
type commandSide struct {
	pool          *pgxpool.Pool
	queries       *sqlcgen.Queries
	aggregateType string
	onCommit      func(envelope.Aggregate)
}

// newCommandSide returns the command side of a pool. onCommit may be nil. It is called with
// the aggregate of an event after a commit, and also if the result of the commit is unknown.
// It must not block.
func newCommandSide(pool *pgxpool.Pool, aggregateType string, onCommit func(envelope.Aggregate)) commandSide {
	if onCommit == nil {
		onCommit = func(envelope.Aggregate) {}
	}
	return commandSide{pool: pool, queries: queriesOver(pool), aggregateType: aggregateType, onCommit: onCommit}
}

// create runs record, which writes a new aggregate and its first event, in one transaction.
// It returns the id of the aggregate that exists then. With a requestID other than uuid.Nil
// it is idempotent: a repeated call with the same fingerprint writes nothing, and returns
// the id of the first call. With another fingerprint it returns problem.Exists.
func (s commandSide) create(ctx context.Context, name string, requestID uuid.UUID, fingerprint []byte, id uuid.UUID,
	record func(ctx context.Context, tx Tx) error,
) (uuid.UUID, error) {
	recorded := false
	err := InTx(ctx, s.pool, name, func(ctx context.Context, tx Tx) error {
		if requestID != uuid.Nil {
			if err := insertRequest(ctx, sqlcgen.New(tx), requestID, s.aggregate(id), fingerprint); err != nil {
				return err
			}
		}
		recorded = true
		return record(ctx, tx)
	})
	if recorded {
		s.Committed(id, err)
	}
	if !errors.Is(err, errRepeated) {
		return id, wrap(err, "create %s %s", s.aggregateType, id)
	}
	existing, err := requestedBy(ctx, s.queries, s.aggregateType, requestID, fingerprint)
	if err != nil {
		return uuid.Nil, err
	}
	if id, err = uuid.Parse(existing); err != nil {
		return uuid.Nil, fmt.Errorf("id of request %s: %w", requestID, err)
	}
	return id, nil
}

// change runs record, which writes the next event of an aggregate, in one transaction. record
// reports whether it wrote one.
func (s commandSide) change(ctx context.Context, name string, id uuid.UUID, record func(ctx context.Context, tx Tx) (changed bool, err error)) error {
	changed := false
	err := InTx(ctx, s.pool, name, func(ctx context.Context, tx Tx) (err error) {
		changed, err = record(ctx, tx)
		return err
	})
	if changed {
		s.Committed(id, err)
	}
	return wrap(err, "change %s %s", s.aggregateType, id)
}

// Base returns the connections, and the name of the aggregate type, for an option.
func (s commandSide) Base() (pool *pgxpool.Pool, aggregateType string) {
	return s.pool, s.aggregateType
}

// Committed calls onCommit after a transaction that changed an aggregate, unless the database
// reported that it failed. Without such a report the commit may have succeeded. Options that run
// their own transactions call it, too.
func (s commandSide) Committed(id uuid.UUID, err error) {
	if _, refused := errors.AsType[*pgconn.PgError](err); !refused {
		s.onCommit(s.aggregate(id))
	}
}

func (s commandSide) aggregate(id uuid.UUID) envelope.Aggregate {
	return envelope.Aggregate{Type: s.aggregateType, ID: id.String()}
}

// checkNext returns an error if an event is not the next one of an aggregate.
func checkNext(id uuid.UUID, version int64, nextID uuid.UUID, nextVersion int64) error {
	if nextID != id || nextVersion != version+1 {
		return fmt.Errorf("decision on version %d of %s returned version %d of %s", version, id, nextVersion, nextID)
	}
	return nil
}

// notFound returns problem.NotFound for a row that does not exist, and any other error as
// it is.
func notFound(err error, what string, id uuid.UUID) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return problem.Errorf(problem.NotFound, "%s %q does not exist", what, id)
	}
	return err
}

// projected identifies a row of a projection, and the event and version that wrote it.
type projected struct {
	aggregate, event uuid.UUID // event is zero if a repair wrote the row
	version          int64
	purged           bool // a purge erases events that are not published yet
}

// projectRows applies the events that are new to a consumer in one transaction. read returns the
// rows that exist. write queues a statement that writes the row of an event, if the event is newer.
// So the read needs no lock: beside another projector it may be old, and then only the counted
// outcome is wrong. Rows are written in the order of their ids, so that two batches cannot deadlock.
func projectRows[E any](ctx context.Context, inbox *Inbox, consumerName string, events []E, of func(E) projected,
	read func(ctx context.Context, q *sqlcgen.Queries, aggregates []uuid.UUID) ([]projected, error),
	write func(ctx context.Context, q *sqlcgen.Queries, event E) error,
) ([]envelope.Outcome, error) {
	ids := mapSlice(events, func(e E) uuid.UUID { return of(e).event })
	return inbox.apply(ctx, consumerName, ids, func(ctx context.Context, q *sqlcgen.Queries, fresh []int) ([]envelope.Outcome, error) {
		if len(fresh) == 0 {
			return nil, nil
		}
		rows, err := read(ctx, q, mapSlice(fresh, func(i int) uuid.UUID { return of(events[i]).aggregate }))
		if err != nil {
			return nil, err
		}
		states := make(map[uuid.UUID]projected)
		for _, row := range rows {
			states[row.aggregate] = row
		}
		newest := make(map[uuid.UUID]E)
		outcomes := mapSlice(fresh, func(i int) envelope.Outcome {
			event := of(events[i])
			outcome, newer := effectOf(states[event.aggregate], event)
			if newer {
				states[event.aggregate], newest[event.aggregate] = event, events[i]
			}
			return outcome
		})
		byID := func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }
		for _, id := range slices.SortedFunc(maps.Keys(newest), byID) {
			if err := write(ctx, q, newest[id]); err != nil {
				return nil, err
			}
		}
		return outcomes, nil
	})
}

// effectOf returns the effect of an event on a row, and whether it is newer. Only a newer one
// changes the row. Two events with one version are a conflict: the owner lost a transaction in a
// failover after its event was published. The greater id wins, in whatever order they come. A
// snapshot stands for all events until its version: it leaves no gap, and contradicts none.
func effectOf(before, event projected) (outcome envelope.Outcome, newer bool) {
	switch {
	case event.version > before.version+1 && !event.purged && !domain.IsSnapshot(event.event):
		return envelope.AppliedAfterGap, true
	case event.version > before.version:
		return envelope.Applied, true
	case event.version < before.version, before.event == uuid.Nil, event.event == before.event,
		domain.IsSnapshot(event.event), domain.IsSnapshot(before.event):
		return envelope.Stale, false
	default:
		return envelope.Conflict, bytes.Compare(event.event[:], before.event[:]) > 0
	}
}
