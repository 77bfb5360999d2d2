package pg_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/videocatalog/internal/outbox"
)

// A claim takes one lane and its oldest events, in the order of their appends. No other claim
// gets them until the lease ends, and then another one gets them all.
func TestLeaseKeepsOthersOut(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 2)
	l.append(l.pool, "a1 A1 b1 a2 B1")
	first := l.claimNames(2, "a1 b1")
	second := l.claimNames(10, "A1 B1")
	l.claimNames(10, "")
	l.settle(l.settlement(second, ""))
	l.claimNames(10, "")
	l.endLeases() // the publisher of the first claim has died
	l.settle(l.settlement(l.claimNames(10, "a1 b1 a2"), ""))
	if held, err := l.SettleClaim(t.Context(), l.settlement(first, "")); held || err != nil || l.left() != 0 {
		t.Errorf("SettleClaim() of the dead publisher = %t, %v, with %d events left, want false, nil, none", held, err, l.left())
	}
}

// A publisher that continues after its lease, when another one has the lane, changes
// nothing, with any settlement and any number of attempts.
func TestSettlementIsFenced(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 2)
	l.append(l.pool, "a1 b1 c1 d1 d2")
	l.settle(l.settlement(l.claimNames(10, "a1 b1 c1 d1 d2"), "a1 b1 d1"))
	l.append(l.pool, "c2 e1 e2 f1")
	l.due("a")
	l.due("b")
	zombie := l.claimNames(10, "a1/1 b1/1 c2 e1 e2 f1")
	l.endLeases()
	owner := l.claimNames(10, "a1/1 b1/1 c2 e1 e2 f1")
	before := l.dump()
	for name, settlement := range map[string]outbox.Settlement{
		"everything":    l.settlement(zombie, "b1 e1"),
		"nothing":       {Lease: zombie.Lease},
		"a later token": {Lease: outbox.Lease{Token: owner.Token + 1, Spans: owner.Spans}},
		"no token":      {Lease: outbox.Lease{Spans: owner.Spans}},
		"no lane":       {Lease: outbox.Lease{Token: owner.Token, Spans: []outbox.Span{{Lane: 99}}}},
	} {
		if held, err := l.SettleClaim(t.Context(), settlement); held || err != nil {
			t.Errorf("%s: SettleClaim() = %t, %v, want false, nil", name, held, err)
		}
		if diff := cmp.Diff(before, l.dump()); diff != "" {
			t.Errorf("%s: changed (-before +after):\n%s", name, diff)
		}
	}
	l.settle(l.settlement(owner, "b1 e1"))
	if held, err := l.SettleClaim(t.Context(), l.settlement(owner, "")); held || err != nil {
		t.Errorf("a second settlement = %t, %v, want false, nil", held, err)
	}
	if got, want := l.left(), 5; got != want { // b1, d1, d2, e1, e2
		t.Errorf("%d events are left, want %d", got, want)
	}
}

// A transaction that drew its seq early and commits late is not overlooked, after any
// number of passes, whether its transaction id is lower or higher.
func TestLateCommitIsNotLost(t *testing.T) {
	t.Parallel()
	for _, idFirst := range []bool{true, false} {
		t.Run(fmt.Sprintf("idFirst=%t", idFirst), func(t *testing.T) {
			t.Parallel()
			l := newLetters(t, 4)
			version := 0
			pass := func() {
				version++
				l.append(l.pool, fmt.Sprintf("b%d", version))
				l.settle(l.settlement(l.claimNames(10, fmt.Sprintf("b%d", version)), ""))
			}
			floor := func() int {
				if err := l.RaiseFloors(t.Context()); err != nil {
					t.Fatal(err)
				}
				return count(t, l.pool, "SELECT floor_seq FROM video_catalog.outbox_lanes WHERE lane = 3")
			}
			pass()
			late := l.begin()
			if idFirst {
				execute(t, late, "SELECT pg_current_xact_id()")
			}
			for range 20 {
				pass()
			}
			l.append(late, "a1")
			seq := version + 1
			for range 50 {
				pass()
				if got := floor(); got >= seq {
					t.Fatalf("the floor is %d while the event at %d is not committed", got, seq)
				}
			}
			if err := late.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			l.settle(l.settlement(l.claimNames(10, "a1"), ""))
			for deadline := time.Now().Add(20 * time.Second); floor() <= seq; pass() { // open transactions of other tests hold the floor back
				if time.Now().After(deadline) {
					t.Fatalf("the floor is %d, want it above %d once the late transaction has ended", floor(), seq)
				}
			}
		})
	}
}

// A blocked aggregate waits with all its events, old and new, and holds up no other. When it
// is due, its first event is tried alone. When that is acknowledged, the others follow in order,
// a batch at a time, and new ones behind the last of them.
func TestBlockedAggregateWaitsAside(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 2)
	l.append(l.pool, "a1 b1 a2 b2 a3")
	l.settle(l.settlement(l.claimNames(4, "a1 b1 a2 b2"), "a1"))
	l.append(l.pool, "a4 b3")
	l.settle(l.settlement(l.claimNames(10, "a3! a4! b3"), ""))
	l.claimNames(10, "") // a is not due
	l.due("a")
	l.settle(l.settlement(l.claimNames(10, "a1/1"), "a1"))
	l.due("a")
	l.append(l.pool, "a5 b4")
	l.settle(l.settlement(l.claimNames(10, "a1/2 a5! b4"), ""))
	l.append(l.pool, "a6 b5")
	l.settle(l.settlement(l.claimNames(8, "a2/0 a3/0 a4/0 a5/0 a6! b5"), ""))
	l.append(l.pool, "a7 b6")
	l.settle(l.settlement(l.claimNames(3, "a6/0 a7 b6"), ""))
	if n := l.left() + count(t, l.pool, "SELECT count(*) FROM video_catalog.outbox_blocked"); n != 0 {
		t.Errorf("%d rows are left, want none", n)
	}
}
