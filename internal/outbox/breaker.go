package outbox

import (
	"sync"
	"time"
)

// breaker pauses all workers while the broker is away, and lets one at a time
// through with a single event, and one more of those set aside: the probe. The
// zero value but for its settings is closed. Safe for concurrent use.
type breaker struct {
	max   time.Duration // the longest pause between two probes
	batch int           // how many events a pass takes while closed

	mu       sync.Mutex
	failures int       // passes that found an outage in a row; 0: closed
	next     time.Time // when the next probe may be made
	probing  bool      // a probe is under way
}

// allow returns how many events the next pass may take, or how long to wait
// before asking again.
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

// isOpen tells whether the broker was away when it was last asked.
func (b *breaker) isOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failures > 0
}

// report says how a pass with an allowed batch went, and reports whether that
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
		// No work, or no database: it says nothing about the broker.
		return false, false
	}
}
