package outbox

import (
	"sync"
	"time"
)

// breaker pauses all workers while the broker is unavailable. It then lets one worker at a
// time make a probe: a pass with one event, and one more of those set aside. A breaker that
// has only its settings is closed. It is safe for concurrent use.
type breaker struct {
	max   time.Duration // the longest pause between two probes
	batch int           // how many events a pass takes while closed

	mu       sync.Mutex
	failures int       // passes in a row that found an outage; 0 if closed
	next     time.Time // the earliest time of the next probe
	probing  bool      // a probe is under way
}

// allow returns how many events the next pass may take. If it returns a wait instead, call
// it again after that.
func (b *breaker) allow(now time.Time) (batch int, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.failures == 0:
		return b.batch, 0
	case b.probing:
		return 0, b.max / 4
	case now.Before(b.next):
		return 0, b.next.Sub(now)
	default:
		b.probing = true
		return 1, 0
	}
}

// isOpen reports whether the broker was unavailable in the last pass that contacted it.
func (b *breaker) isOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failures > 0
}

// report records the result of a pass that took the allowed batch, and reports whether that
// opened or closed the breaker. Only an answer of the broker closes it.
func (b *breaker) report(now time.Time, batch int, result Result) (opened, closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if batch == 1 {
		b.probing = false
	}
	switch {
	case result.outage():
		b.failures++
		b.next = now.Add(backoff(b.failures, b.max/8, b.max))
		return b.failures == 1, false
	case result.Published+result.Refused > 0:
		closed = b.failures > 0
		b.failures = 0
		return false, closed
	default:
		// No work, or no database: this says nothing about the broker.
		return false, false
	}
}
