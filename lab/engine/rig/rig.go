// Package rig has what the tests of the engine share: a database, and what must hold in it.
package rig

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/problem"
)

// Epoch is when the events of these tests occurred.
var Epoch = time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)

// NewID returns the id of a new event.
func NewID(t testing.TB) uuid.UUID {
	t.Helper()
	id, err := uuid.NewV7()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// KindOf returns the kind of a problem, 0 of any other error.
func KindOf(err error) problem.Kind {
	if p, ok := errors.AsType[*problem.Error](err); ok {
		return p.Kind
	}
	return 0
}

// Operator is the audit entry of an operator in the tests.
var Operator = pg.Entry{Actor: pg.Actor{Name: "ann@desk", Via: "command"}, Action: "test", Filter: []byte("{}"), Reason: "test"}

// CheckInvariants checks what must always hold in the tables of the outbox, also when the
// test is ending.
func CheckInvariants(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // a limit against hanging: machines may be busy
	defer cancel()
	for what, sql := range map[string]string{
		"deferred, and their aggregate not blocked":  `SELECT count(*) FROM video_catalog.outbox_deferred d LEFT JOIN video_catalog.outbox_blocked b USING (aggregate_type, aggregate_id) WHERE b.lane IS NULL`,
		"out of the order of versions":               `SELECT count(*) FROM (SELECT version, lag(version) OVER (PARTITION BY aggregate_type, aggregate_id ORDER BY seq) AS before FROM (TABLE video_catalog.outbox_pending UNION ALL TABLE video_catalog.outbox_deferred) a) p WHERE version <= before`,
		"deferred behind a pending event":            `SELECT count(*) FROM (SELECT aggregate_type, aggregate_id, max(seq) AS last FROM video_catalog.outbox_deferred GROUP BY 1, 2) d JOIN (SELECT aggregate_type, aggregate_id, min(seq) AS first FROM video_catalog.outbox_pending GROUP BY 1, 2) p USING (aggregate_type, aggregate_id) WHERE d.last >= p.first`,
		"deferred below the head of their aggregate": `SELECT count(*) FROM video_catalog.outbox_deferred d JOIN video_catalog.outbox_blocked b USING (aggregate_type, aggregate_id) WHERE d.seq < b.head_seq`,
		"below the floor of their lane":              `SELECT count(*) FROM video_catalog.outbox_pending p JOIN video_catalog.outbox_lanes l ON l.lane = p.lane WHERE p.seq <= l.floor_seq`,
		"of the skipped events":                      `SELECT count(*) FROM (TABLE video_catalog.outbox_pending UNION ALL TABLE video_catalog.outbox_deferred) p JOIN video_catalog.outbox_skipped s ON s.event_id = p.id`,
	} {
		var n int
		if err := pool.QueryRow(ctx, sql).Scan(&n); err != nil || n != 0 {
			t.Errorf("pending rows that are %s: %d, %v, want 0", what, n, err)
		}
	}
	type row struct {
		Lane int16
		envelope.Aggregate
	}
	rows, _ := pool.Query(ctx, `SELECT DISTINCT lane, aggregate_type AS type, aggregate_id AS id FROM video_catalog.outbox_pending`)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByName[row])
	if err != nil {
		t.Error(err)
	}
	for _, r := range all {
		if want := outbox.Lane(r.Aggregate); r.Lane != want {
			t.Errorf("%v is in lane %d, want %d", r.Aggregate, r.Lane, want)
		}
	}
}
