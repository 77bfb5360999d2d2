package pg_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
)

// A transaction fails, and changes nothing, if Queue gets a statement that the transaction has not
// queued: one of a pool, which has run already, or failed.
func TestQueueTakesOnlyItsTransaction(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	pgtest.Execute(t, pool, "CREATE TABLE queued (n int)")
	insert := func(ctx context.Context, to pg.DB, n int) error {
		_, err := to.Exec(ctx, "INSERT INTO queued VALUES ($1)", n)
		return err
	}
	run := func(statements ...func(ctx context.Context, tx *pg.Tx) error) error {
		return pg.InTx(t.Context(), pool, "test", func(ctx context.Context, tx *pg.Tx) error {
			for _, statement := range statements {
				tx.Queue(statement(ctx, tx))
			}
			return nil
		})
	}
	mine := func(ctx context.Context, tx *pg.Tx) error { return insert(ctx, tx, 1) }
	for name, other := range map[string]func(context.Context, *pg.Tx) error{
		"one of a pool":                 func(ctx context.Context, _ *pg.Tx) error { return insert(ctx, pool, 2) },
		"one that was queued before":    func(context.Context, *pg.Tx) error { return nil },
		"one of a pool that has failed": func(context.Context, *pg.Tx) error { return &pgconn.PgError{Message: "refused"} },
	} {
		if err := run(mine, other, mine); err == nil {
			t.Errorf("%s: the transaction succeeds", name)
		}
	}
	if n := pgtest.Count(t, pool, "SELECT count(*) FROM queued WHERE n = 1"); n != 0 {
		t.Errorf("%d statements of failed transactions took effect, want none", n)
	}
	if err := run(mine, mine); err != nil || pgtest.Count(t, pool, "SELECT count(*) FROM queued WHERE n = 1") != 2 {
		t.Errorf("two statements of the transaction: %v, want both", err)
	}
}
