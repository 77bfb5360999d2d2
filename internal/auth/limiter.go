package auth

import (
	"container/list"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// limiter limits how often each caller may call. It holds at most `most`
// callers. When it is full it drops the one whose last call is the oldest, so
// that this caller starts again with a full budget. It is safe for concurrent
// use.
type limiter struct {
	perSecond rate.Limit
	burst     int
	most      int

	mu      sync.Mutex
	callers map[string]*list.Element // of *budget; guarded by mu
	recent  *list.List               // most recent caller first; guarded by mu
}

type budget struct {
	caller string

	mu    sync.Mutex
	limit *rate.Limiter // guarded by mu: Cancel restores nothing if another call reserved in between
}

// newLimiter returns a limiter with perSecond calls a second per caller and
// bursts of burst calls, for at most `most` callers. All arguments must be
// positive.
func newLimiter(perSecond, burst, most int) *limiter {
	return &limiter{
		perSecond: rate.Limit(perSecond), burst: burst, most: most,
		callers: make(map[string]*list.Element), recent: list.New(),
	}
}

// take counts a call and returns 0, or returns how long the caller must wait. A
// rejected call is not counted.
func (l *limiter) take(caller string) time.Duration {
	b := l.of(caller)
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now() // used for both: Cancel restores nothing after the reserved time
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
