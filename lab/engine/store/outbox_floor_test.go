package store_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/videocatalog/internal/outbox"
)

// A transaction may begin to write while a claim has its lease, but not yet its
// events. It has a higher id than the claim, and may draw a lower seq than the
// events that the claim then returns. The floor waits for it all the same.
//
// The moment is short. Here a trigger stops the claim between the two, while the
// test holds a lock. Not parallel, because the whole server shares transaction ids,
// and the next id of another test would hide the mistake.
func TestFloorWaitsForWhoCameDuringAClaim(t *testing.T) { //nolint:paralleltest // see above
	l := newLetters(t, 8)
	begin := func() pgx.Tx {
		t.Helper()
		tx, err := l.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { tx.Rollback(context.WithoutCancel(t.Context())) }) //nolint:errcheck // it has ended, or the test has failed
		return tx
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	l.append(l.pool, "a1")
	_, err := l.pool.Exec(t.Context(), `
		CREATE FUNCTION video_catalog.pause() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN NULL; END';
		CREATE TRIGGER pause AFTER UPDATE ON video_catalog.outbox_lanes EXECUTE FUNCTION video_catalog.pause()`)
	do(err)
	lock := begin()
	_, err = lock.Exec(t.Context(), "SELECT pg_advisory_xact_lock(4711)")
	do(err)
	early := begin()
	_, err = early.Exec(t.Context(), "SELECT pg_current_xact_id()")
	do(err)
	claims := make(chan outbox.Claim, 1)
	go func() {
		claim, err := l.ClaimEvents(t.Context(), outbox.AnyLane, 10, 1<<20, hour)
		if err != nil {
			t.Error(err)
		}
		claims <- claim
	}()
	l.reaches(1, "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory' AND objid = 4711") // the claim has its lease
	late := begin()
	l.append(late, "b1")
	l.append(early, "c1")
	do(early.Commit(t.Context()))
	do(lock.Rollback(t.Context()))
	claim := <-claims
	if got := l.namesOf(claim); got != "a1 c1" {
		t.Fatalf("claimed %q, want a1 c1", got)
	}
	l.settle(l.settlement(claim, ""))
	l.append(l.pool, "d1")
	l.settle(l.settlement(l.claimNames(10, "d1"), ""))
	do(late.Commit(t.Context()))
	l.settle(l.settlement(l.claimNames(10, "b1"), ""))
}

// An append has its transaction id before it draws its seq: the floor rests on it.
func TestAppendHasItsIDBeforeItsSeq(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 2)
	if _, err := l.pool.Exec(t.Context(), `
		CREATE FUNCTION video_catalog.has_id() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF pg_current_xact_id_if_assigned() IS NULL THEN RAISE 'seq % was drawn before the id', NEW.seq; END IF;
			RETURN NEW;
		END $$;
		CREATE TRIGGER has_id BEFORE INSERT ON video_catalog.outbox_pending FOR EACH ROW EXECUTE FUNCTION video_catalog.has_id()`); err != nil {
		t.Fatal(err)
	}
	l.append(l.pool, "a1 a2 a3") // more than one: now and then the sequence itself needs an id
}

// The floor of a lane follows its events, so that a claim does not walk over
// what was deleted; it stays where it is when old events were set aside, and are
// published after all.
func TestFloorFollowsAndStays(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	floor := func() int { return l.count("SELECT floor_seq FROM video_catalog.outbox_lanes WHERE lane = 3") }
	pass := func(name, refused string) {
		l.append(l.pool, name)
		l.settle(l.settlement(l.claimNames(10, name), refused))
	}
	// follow makes passes until the floor is above some seq. It takes more than a
	// few only while a transaction is open in the database of another test.
	version := 0
	follow := func(seq int) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); floor() <= seq; {
			if time.Now().After(deadline) {
				t.Fatalf("the floor is %d, want it above %d", floor(), seq)
			}
			version++
			pass(fmt.Sprintf("a%d", version), "")
		}
	}
	pass("z1", "z1")
	for seq := range 20 {
		follow(seq)
	}
	l.append(l.pool, "z2")
	l.settle(l.settlement(l.claimNames(10, "z2!"), ""))
	l.due("z")
	before := floor()
	l.settle(l.settlement(l.claimNames(10, "z1/1"), ""))
	l.settle(l.settlement(l.claimNames(10, "z2/0"), ""))
	if got := floor(); got < before {
		t.Errorf("after the recovery the floor is %d, want no less than the %d of before", got, before)
	}
	follow(before)
}

// After a database has moved, places are drawn again, and are lower: no floor may
// be above them, neither of a lane nor of an aggregate whose last event was skipped.
func TestMovedDatabaseLosesNothing(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 1)
	l.append(l.pool, "b1 b2 b3 b4 b5 a1")
	claim := l.claimNames(10, "b1 b2 b3 b4 b5 a1")
	l.settle(l.settlement(claim, "a1"))
	if err := l.SkipEvent(t.Context(), l.letter("a"), claim.Events[5].ID); err != nil {
		t.Fatal(err)
	}
	execute(t, l.pool, "ALTER SEQUENCE video_catalog.outbox_pending_seq_seq RESTART 2") // as if it had been forgotten
	for _, statement := range []string{                                                 // as options/repair/failover.md has them
		"UPDATE video_catalog.outbox_lanes SET floor_seq = 0, mark_seq = 0, mark_xid = '0', mark_ripe = false, settled_seq = 0",
		"UPDATE video_catalog.outbox_blocked SET floor_seq = 0",
	} {
		execute(t, l.pool, statement)
	}
	l.append(l.pool, "a2 a3")
	claim = l.claimNames(10, "a2 a3")
	if claim.Events[0].Seq != 2 {
		t.Fatalf("first place = %d, want 2", claim.Events[0].Seq)
	}
	l.settle(l.settlement(claim, "a2"))
	l.claimNames(10, "a2/0 a3/0")
}
