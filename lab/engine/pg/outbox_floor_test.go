package pg_test

import (
	"fmt"
	"testing"
	"time"

	"example.com/videocatalog/internal/pg/pgtest"
)

// An append has its transaction id before it draws its seq: the floor relies on this order.
func TestAppendHasItsIDBeforeItsSeq(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 2)
	execute(t, l.pool, `
		CREATE FUNCTION video_catalog.has_id() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF pg_current_xact_id_if_assigned() IS NULL THEN RAISE 'seq % was drawn before the id', NEW.seq; END IF;
			RETURN NEW;
		END $$;
		CREATE TRIGGER has_id BEFORE INSERT ON video_catalog.outbox_pending FOR EACH ROW EXECUTE FUNCTION video_catalog.has_id()`)
	l.append(l.pool, "a1 a2 a3") // more than one: now and then the sequence itself needs an id
}

// The floor of a lane follows its events, so that a claim does not read deleted
// rows. It does not go back when old deferred events are published.
func TestFloorFollowsAndStays(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	floor := func() int {
		must(t, l.RaiseFloors(t.Context()))
		return l.count("SELECT floor_seq FROM video_catalog.outbox_lanes WHERE lane = 3")
	}
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

// An event whose transaction is younger than a mark, and commits later than its lane is
// settled behind it, is above the floor: the mark has the settled_seq of its own snapshot.
func TestFloorStaysBelowALateCommit(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	l.append(l.pool, "a1")
	first := l.claimNames(10, "a1")
	l.settle(l.settlement(first, ""))
	execute(t, l.pool, "UPDATE video_catalog.outbox_lanes SET settled_seq = 1 WHERE lane = 0") // lane 0 is raised first
	execute(t, l.pool, `
		CREATE FUNCTION video_catalog.pause() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			PERFORM pg_advisory_xact_lock(1);
			RETURN NEW;
		END $$;
		CREATE TRIGGER pause BEFORE UPDATE ON video_catalog.outbox_lanes FOR EACH ROW WHEN (NEW.lane = 0) EXECUTE FUNCTION video_catalog.pause()`)
	release := l.hold("BEGIN; SELECT pg_advisory_xact_lock(1)")
	raised := make(chan error, 1)
	go func() { raised <- l.RaiseFloors(t.Context()) }()
	l.reaches(1, `SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
		WHERE d.datname = current_database() AND l.locktype = 'advisory' AND NOT l.granted`)
	// RaiseFloors has its snapshot and its id, and has not reached the lane of the letters.
	late := l.begin()
	l.append(late, "b1")
	l.append(l.pool, "c1")
	l.settle(l.settlement(l.claimNames(10, "c1"), ""))
	release()
	must(t, <-raised)
	if l.count("SELECT mark_seq FROM video_catalog.outbox_lanes WHERE lane = 3") == 0 {
		t.Fatal("the lane has no mark: the test tests nothing")
	}
	// More than once only while a transaction is open in the database of another test.
	pgtest.Eventually(t, 20*time.Second, "the floor follows", func() bool {
		must(t, l.RaiseFloors(t.Context()))
		return l.count("SELECT floor_seq FROM video_catalog.outbox_lanes WHERE lane = 3") >= int(first.Events[0].Seq)
	})
	must(t, late.Commit(t.Context()))
	l.settle(l.settlement(l.claimNames(10, "b1"), ""))
}

// After a database has moved, new events may get lower seqs. No floor may be above
// them, neither of a lane nor of an aggregate whose last event was skipped.
func TestMovedDatabaseLosesNothing(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 1)
	l.append(l.pool, "b1 b2 b3 b4 b5 a1")
	claim := l.claimNames(10, "b1 b2 b3 b4 b5 a1")
	l.settle(l.settlement(claim, "a1"))
	must(t, l.SkipEvent(t.Context(), l.letter("a"), claim.Events[5].ID))
	execute(t, l.pool, "ALTER SEQUENCE video_catalog.outbox_pending_seq_seq RESTART 2") // as if it had been forgotten
	for _, statement := range []string{                                                 // as options/repair/failover.md has them
		"UPDATE video_catalog.outbox_lanes SET floor_seq = 0, mark_seq = 0, mark_xid = '0', settled_seq = 0",
		"UPDATE video_catalog.outbox_blocked SET head_seq = 0",
	} {
		execute(t, l.pool, statement)
	}
	l.append(l.pool, "a2 a3")
	claim = l.claimNames(10, "a2 a3")
	if claim.Events[0].Seq != 2 {
		t.Fatalf("first place = %d, want 2", claim.Events[0].Seq)
	}
	l.settle(l.settlement(claim, "a2"))
	l.due("a")
	l.settle(l.settlement(l.claimNames(10, "a2/1"), ""))
	l.claimNames(10, "a3/0")
}
