package outbox

import (
	"sync"
	"time"
)

const (
	// minPause is the first pause of the clock, and that after a pass or a settlement that failed.
	minPause = 5 * time.Millisecond
	// maxPause is the longest pause after a pass that failed.
	maxPause = 5 * time.Second
)

// clock says when all lanes are to be looked at, whatever nudges are about: for
// what other processes write, for retries, for the lanes of publishers that have
// crashed, and for what nudges have missed. Safe for concurrent use.
type clock struct {
	longest time.Duration // pause

	mu    sync.Mutex
	pause time.Duration
	due   time.Time
}

func newClock(longest time.Duration) *clock {
	return &clock{longest: longest, pause: minPause, due: time.Now().Add(minPause)}
}

// wait is how long it is until the next look; not positive when it is due.
func (c *clock) wait() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Until(c.due)
}

// rang is called before a look that is due. The pause until the next one is
// twice as long.
func (c *clock) rang() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pause = min(2*c.pause, c.longest)
	c.due = time.Now().Add(c.pause)
}

// soon makes the pauses begin anew, when there is, or may be, more than anybody
// was nudged about: an event of another process often follows the last one closely.
func (c *clock) soon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pause = minPause
	if due := time.Now().Add(minPause); due.Before(c.due) { // else who calls this all the time would put it off for ever
		c.due = due
	}
}
