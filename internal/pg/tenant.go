package pg

import (
	"context"

	"github.com/jackc/pgx/v5"

	"example.com/videocatalog/internal/tenant"
)

// SetTenant queues the setting by which row security knows the tenant of a call, if it has one. The setting ends with the
// transaction: a pooler may give the session to another call.
func SetTenant(ctx context.Context, batch *pgx.Batch) {
	if id := tenant.Of(ctx); id != "" {
		batch.Queue("SELECT set_config('app.tenant', $1, true)", id)
	}
}

func hasTenant(ctx context.Context) bool { return tenant.Of(ctx) != "" }

// ofTenant runs one statement of a tenant's call, in one round trip: what comes before a Sync is one transaction, without BEGIN.
func (a autocommit) ofTenant(ctx context.Context, sql string, args []any) (pgx.Rows, error) {
	conn, err := Acquire(ctx, a.Pool)
	if err != nil {
		return nil, err
	}
	t := &Tx{conn: conn.Conn(), waiting: &pgx.Batch{}}
	SetTenant(ctx, t.waiting)
	rows, err := t.Query(ctx, sql, args...)
	if err != nil {
		conn.Release()
		return nil, err
	}
	return &endingRows{Rows: rows, end: func() error { conn.Release(); return nil }}, nil
}

// SendBatch implements DB in place of the pool's SendBatch: it does the same for a batch.
func (a autocommit) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	if !hasTenant(ctx) {
		return a.Pool.SendBatch(ctx, batch)
	}
	whole := &pgx.Batch{}
	SetTenant(ctx, whole)
	whole.QueuedQueries = append(whole.QueuedQueries, batch.QueuedQueries...)
	results := a.Pool.SendBatch(ctx, whole)
	_, _ = results.Exec() // the next result has the same error
	return results
}
