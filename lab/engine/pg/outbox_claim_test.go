package pg_test

import (
	"testing"
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
