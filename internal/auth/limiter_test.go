package auth

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A caller may call in bursts and then as often as the rate says; a refused call
// costs nothing, and callers do not cost each other anything.
func TestLimiterBoundsEachCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(10, 5, 100)
		calls := func(caller string, n int) (admitted int) {
			for range n {
				if l.take(caller) == 0 {
					admitted++
				}
			}
			return admitted
		}
		if got := calls("a", 50); got != 5 {
			t.Errorf("%d calls at once, want the burst of 5", got)
		}
		if got := l.take("a"); got != 100*time.Millisecond {
			t.Errorf("take() = %v, want 100ms until the next call", got)
		}
		if got := calls("b", 50); got != 5 {
			t.Errorf("%d calls of another, want 5", got)
		}
		time.Sleep(100 * time.Millisecond)
		if got := calls("a", 50); got != 1 {
			t.Errorf("%d calls after 100 ms, want 1", got)
		}
		time.Sleep(time.Hour)
		if got := calls("a", 50); got != 5 {
			t.Errorf("%d calls after an hour, want the burst of 5", got)
		}
	})
}

// Refused calls that come at the same time cost nothing either: who was refused
// a moment ago may call as soon as the rate says.
func TestLimiterForgivesConcurrentRefusals(t *testing.T) {
	t.Parallel()
	l := newLimiter(100, 1, 1)
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			for range 50_000 {
				l.take("a")
			}
		})
	}
	calls.Wait()
	if got := l.take("a"); got > 20*time.Millisecond {
		t.Errorf("take() = %v after a flood, want 10ms at most, and a little", got)
	}
}

// However many callers there are, a bounded number is remembered, and those who
// go on calling are among them.
func TestLimiterRemembersABoundedNumber(t *testing.T) {
	t.Parallel()
	l := newLimiter(1, 1, 100)
	l.take("busy")
	var callers sync.WaitGroup
	for i := range 4 {
		callers.Go(func() {
			for n := range 5000 {
				if n%10 == 0 && l.take("busy") == 0 && i == 0 && n < 1000 {
					t.Error("the busy caller was forgotten")
				}
				l.take(fmt.Sprintf("%d/%d", i, n))
			}
		})
	}
	callers.Wait()
	if got, want := len(l.callers), 100; got != want || l.recent.Len() != want {
		t.Errorf("%d callers in the table and %d in the list, want %d", got, l.recent.Len(), want)
	}
}
