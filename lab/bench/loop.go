package main

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// loop is the usual first version: claim 200 rows with SKIP LOCKED, publish one, wait, delete it, publish the next.
// As a batch it claims in a transaction that stays open during the publishing, and deletes all 200 rows with one
// statement. A crash then publishes up to 200 events again. Neither keeps the order of an aggregate with two
// instances.
type loop struct {
	base
	batch bool
}

type row struct {
	ID      uuid.UUID
	Payload []byte
}

func (p *loop) prepare(ctx context.Context) error {
	return p.exec(ctx, `
		CREATE TABLE naive_outbox (id uuid PRIMARY KEY, aggregate_id text NOT NULL, version bigint NOT NULL, payload bytea NOT NULL,
			occurred_at timestamptz NOT NULL, locked_at timestamptz);
		CREATE INDEX ON naive_outbox (occurred_at) WHERE locked_at IS NULL`)
}

func (p *loop) tables() []string { return []string{"naive_outbox"} }

func (p *loop) backlog(ctx context.Context, w workload) error {
	return p.insert(ctx, w, `
		INSERT INTO naive_outbox (id, aggregate_id, version, payload, occurred_at)
		SELECT e.id, e.aggregate::text, e.version, `+payloadSQL+`, clock_timestamp() FROM `+eventsSQL+` ORDER BY e.n`)
}

func (p *loop) append(ctx context.Context, tx pgx.Tx, w workload, i int) error {
	id := uuid.Must(uuid.NewV7())
	_, err := tx.Exec(ctx, "INSERT INTO naive_outbox (id, aggregate_id, version, payload, occurred_at) VALUES ($1, $2, $3, $4, clock_timestamp())",
		id, fmt.Sprint(w.aggregates[i]), w.versions[i], w.payload(i))
	return err
}

func (p *loop) committed(workload, int) {}

func (p *loop) left(ctx context.Context) (int, error) {
	return p.count(ctx, "SELECT count(*) FROM naive_outbox")
}

func (p *loop) instance(ctx context.Context, k *sink) (instance, error) {
	pool, s, release, err := p.connect(ctx, 2, k)
	if err != nil {
		return instance{}, err
	}
	pass := onePass
	if p.batch {
		pass = batchPass
	}
	return instance{
		run: func(ctx context.Context) error {
			for ctx.Err() == nil {
				n, err := pass(context.WithoutCancel(ctx), pool, s)
				if err != nil {
					return err
				}
				if n == 0 {
					time.Sleep(pollPause)
				}
			}
			return nil
		},
		close: release,
	}, nil
}

const (
	claimSize = 200
	// pollPause is the pause of polling publishers when there is nothing to do. It is so short that it hardly affects
	// their latency.
	pollPause = time.Millisecond
)

func onePass(ctx context.Context, pool *pgxpool.Pool, s *sender) (int, error) {
	rows, _ := pool.Query(ctx, `
		WITH claimed AS (
			UPDATE naive_outbox SET locked_at = now() WHERE id IN (
				SELECT id FROM naive_outbox WHERE locked_at IS NULL ORDER BY occurred_at LIMIT $1 FOR UPDATE SKIP LOCKED)
			RETURNING id, payload, occurred_at
		) SELECT id, payload FROM claimed ORDER BY occurred_at`, claimSize)
	claimed, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row]) // it returns the error of the query, too
	if err != nil {
		return 0, fmt.Errorf("claim: %w", err)
	}
	for _, r := range claimed {
		if err := s.send(ctx, r.Payload); err != nil {
			return 0, fmt.Errorf("publish: %w", err)
		}
		if _, err := pool.Exec(ctx, "DELETE FROM naive_outbox WHERE id = $1", r.ID); err != nil {
			return 0, fmt.Errorf("delete: %w", err)
		}
	}
	return len(claimed), nil
}

func batchPass(ctx context.Context, pool *pgxpool.Pool, s *sender) (n int, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, `
			SELECT id, payload FROM naive_outbox WHERE locked_at IS NULL ORDER BY occurred_at LIMIT $1 FOR UPDATE SKIP LOCKED`, claimSize)
		claimed, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
		if err != nil {
			return fmt.Errorf("claim: %w", err)
		}
		ids := make([]uuid.UUID, len(claimed))
		for i, r := range claimed {
			ids[i] = r.ID
			if err := s.send(ctx, r.Payload); err != nil {
				return fmt.Errorf("publish: %w", err)
			}
		}
		n = len(claimed)
		_, err = tx.Exec(ctx, "DELETE FROM naive_outbox WHERE id = ANY ($1)", ids)
		return err
	})
	return n, err
}
