package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/metric/noop"
)

// ours is the publisher of the service, with its default settings.
type ours struct {
	base
	wake func() // of the newest instance, which runs in the process of the writers
}

func (p *ours) prepare(context.Context) error { return nil } // the template database has the schema

func (p *ours) tables() []string {
	return []string{"video_catalog.outbox", "video_catalog.outbox_pending"}
}

// outboxSQL inserts events into the outbox, without pending rows.
const outboxSQL = `
	INSERT INTO video_catalog.outbox (id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
	SELECT e.id, 'video', md5(e.aggregate::text)::uuid::text, 'VideoUpdated', e.version, 1, ` + payloadSQL + `, now()
	FROM ` + eventsSQL + ` ORDER BY e.n`

// pending returns an insert of events that also adds the pending rows, as the service does. lane is an SQL expression.
func pending(insert, lane string) string {
	return `WITH event AS (` + insert + `
			RETURNING id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at
		)
		INSERT INTO video_catalog.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
		SELECT ` + lane + `, event.* FROM event`
}

func (p *ours) backlog(ctx context.Context, w workload) error {
	return p.insert(ctx, w, pending(outboxSQL, "hashtext(aggregate_id) & 7"))
}

func (p *ours) append(ctx context.Context, tx pgx.Tx, w workload, i int) error {
	id := uuid.Must(uuid.NewV7())
	aggregate := aggregateOf(w, i)
	_, err := tx.Exec(ctx, pending(`
		INSERT INTO video_catalog.outbox (id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
		VALUES ($1, 'video', $2, 'VideoUpdated', $3, 1, $4, $5)`, "$6"),
		id, aggregate.ID, w.versions[i], w.payload(i), time.Now(), outbox.Lane(aggregate))
	return err
}

// aggregateOf returns the aggregate of the i-th event.
func aggregateOf(w workload, i int) envelope.Aggregate {
	return envelope.Aggregate{Type: "video", ID: fmt.Sprint(w.aggregates[i])}
}

func (p *ours) committed(workload, int) {
	if p.wake != nil {
		p.wake()
	}
}

func (p *ours) left(ctx context.Context) (int, error) {
	return p.count(ctx, "SELECT count(*) FROM video_catalog.outbox_pending")
}

func (p *ours) instance(ctx context.Context, k *sink) (instance, error) {
	const workers, batch = 4, 2000 // the defaults
	pool, err := p.open(ctx, workers+2)
	if err != nil {
		return instance{}, err
	}
	broker, closeBroker, err := k.broker(ctx, workers*batch)
	if err != nil {
		pool.Close()
		return instance{}, err
	}
	events := pg.NewOutbox(pool)
	publisher, err := outbox.New(events, broker, outbox.Config{}, discard, noop.Meter{})
	if err != nil {
		pool.Close()
		return instance{}, errors.Join(err, closeBroker())
	}
	p.wake = publisher.Wake
	run := func(ctx context.Context) error {
		go raiseFloors(ctx, events)
		return publisher.Run(ctx)
	}
	return instance{run: run, close: func() error { pool.Close(); return closeBroker() }}, nil
}

// raiseFloors calls RaiseFloors regularly, as the service does.
func raiseFloors(ctx context.Context, events *pg.Outbox) {
	for tick := time.NewTicker(4 * time.Second); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
			_ = events.RaiseFloors(ctx) // the next call comes soon
		}
	}
}
