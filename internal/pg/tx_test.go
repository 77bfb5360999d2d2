package pg_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/problem"
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
	pgtest.WantCount(t, pool, 0, "statements of failed transactions that took effect", "SELECT count(*) FROM queued WHERE n = 1")
	lost := func(ctx context.Context, tx *pg.Tx) error {
		_ = tx.QueryRow(ctx, "SELECT 1 / 0").Scan(new(int))
		return nil
	}
	if err := pg.InTx(t.Context(), pool, "test", lost); err == nil {
		t.Error("a transaction succeeds that the database has rolled back")
	}
	if err := run(mine, mine); err != nil || pgtest.Count(t, pool, "SELECT count(*) FROM queued WHERE n = 1") != 2 {
		t.Errorf("two statements of the transaction: %v, want both", err)
	}
}

// A change that a constraint refuses is refused to its caller, with the constraint as the reason. A
// primary key is broken only by a defect.
func TestConstraintsAreRules(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	pgtest.Execute(t, pool, `CREATE TABLE rooms (n int PRIMARY KEY, floor int CONSTRAINT rooms_floor UNIQUE CHECK (floor > 0),
		house int CONSTRAINT rooms_house REFERENCES rooms, hours int4range, CONSTRAINT rooms_hours EXCLUDE USING gist (hours WITH &&))`)
	pgtest.Execute(t, pool, "INSERT INTO rooms VALUES (1, 1, NULL, '[1,9]')")
	s := pg.NewCommandSide(pool, "room", nil)
	for values, want := range map[string]problem.Error{
		"2, 1, 1, NULL":     {Kind: problem.Exists, Reason: "ROOMS_FLOOR"},
		"2, 2, 1, '[9,12]'": {Kind: problem.Exists, Reason: "ROOMS_HOURS"},
		"2, 2, 7, NULL":     {Kind: problem.Precondition, Reason: "ROOMS_HOUSE"},
		"2, 0, 1, NULL":     {Kind: problem.Invalid, Reason: "ROOMS_FLOOR_CHECK"},
		"1, 2, NULL, NULL":  {},
		"NULL, 2, 1, NULL":  {}, // NOT NULL
	} {
		write := func(ctx context.Context, tx *pg.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO rooms VALUES ("+values+")")
			tx.Queue(err)
			return nil
		}
		_, created := s.Create(t.Context(), "test", uuid.Nil, nil, uuid.New(), write)
		changed := s.Change(t.Context(), "test", uuid.New(), func(ctx context.Context, tx *pg.Tx) (bool, error) { return true, write(ctx, tx) })
		for _, err := range []error{created, changed} {
			got, _ := errors.AsType[*problem.Error](err)
			if got == nil {
				got = new(problem.Error)
			}
			if err == nil || got.Kind != want.Kind || got.Reason != want.Reason {
				t.Errorf("values %s: %v with the reason %s, want kind %d with %s", values, err, got.Reason, want.Kind, want.Reason)
			}
		}
	}
}
