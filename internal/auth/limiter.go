package auth

import (
	"container/list"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// limiter bounds how often each caller may call. It remembers a bounded number
// of callers: when it is full, it forgets the one who has not called for
// longest, to whom nothing is held against then. It is good for any number of
// callers at a time.
type limiter struct {
	perSecond rate.Limit
	burst     int
	most      int

	mu      sync.Mutex
	callers map[string]*list.Element // guarded by mu; of *budget
	recent  *list.List               // guarded by mu; who called last is first
}

type budget struct {
	caller string

	mu    sync.Mutex
	limit *rate.Limiter // guarded by mu: Cancel gives nothing back for which somebody else has reserved since
}

// newLimiter makes a limiter that admits perSecond calls a second, and burst at
// once, of each of the last most callers. All must be positive.
func newLimiter(perSecond, burst, most int) *limiter {
	return &limiter{
		perSecond: rate.Limit(perSecond), burst: burst, most: most,
		callers: make(map[string]*list.Element), recent: list.New(),
	}
}

// take counts a call. It returns 0 when the call may go on, else how long the
// caller should wait before the next; a call that may not is not counted.
func (l *limiter) take(caller string) time.Duration {
	b := l.of(caller)
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now() // one for all: Cancel gives nothing back once its time has come
	reservation := b.limit.ReserveN(now, 1)
	after := reservation.DelayFrom(now)
	if after > 0 {
		reservation.CancelAt(now)
	}
	return after
}

func (l *limiter) of(caller string) *budget {
	l.mu.Lock()
	defer l.mu.Unlock()
	if element, ok := l.callers[caller]; ok {
		l.recent.MoveToFront(element)
		return element.Value.(*budget)
	}
	if l.recent.Len() >= l.most {
		last := l.recent.Back()
		l.recent.Remove(last)
		delete(l.callers, last.Value.(*budget).caller)
	}
	b := &budget{caller: caller, limit: rate.NewLimiter(l.perSecond, l.burst)}
	l.callers[caller] = l.recent.PushFront(b)
	return b
}
