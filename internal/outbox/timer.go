package outbox

import (
	"sync"
	"time"
)

const (
	// minPause is the first pause of the timer, and the first pause after a failed pass or
	// settlement.
	minPause = 5 * time.Millisecond
	// maxPause is the longest pause after a failed pass.
	maxPause = 5 * time.Second
)

// timer decides when to poll all lanes. Polls find the work that has no wake-up: events of
// other processes, retries, and the lanes of crashed publishers. It is safe for concurrent
// use.
type timer struct {
	longest time.Duration // limit of pause

	mu    sync.Mutex
	pause time.Duration
	due   time.Time
}

func newTimer(longest time.Duration) *timer {
	return &timer{longest: longest, pause: minPause, due: time.Now().Add(minPause)}
}

// wait returns the time until the next poll. It is zero or negative if the poll is due.
func (t *timer) wait() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Until(t.due)
}

// fired starts the next pause, which is twice as long. Call it before a poll.
func (t *timer) fired() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pause = min(2*t.pause, t.longest)
	t.due = time.Now().Add(t.pause)
}

// restart makes the next pause the shortest one, because an event of another process is
// often followed by more.
func (t *timer) restart() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pause = minPause
	if due := time.Now().Add(minPause); due.Before(t.due) { // else frequent calls would delay the poll for ever
		t.due = due
	}
}
