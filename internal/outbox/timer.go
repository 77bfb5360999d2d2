package outbox

import (
	"sync"
	"time"
)

const (
	// minPause is the first pause of the timer, and that after a pass or a settlement that failed.
	minPause = 5 * time.Millisecond
	// maxPause is the longest pause after a pass that failed.
	maxPause = 5 * time.Second
)

// timer says when to poll all lanes. Polls find what no wake-up is about: events
// of other processes, retries, and the lanes of publishers that have crashed.
// Safe for concurrent use.
type timer struct {
	longest time.Duration // pause

	mu    sync.Mutex
	pause time.Duration
	due   time.Time
}

func newTimer(longest time.Duration) *timer {
	return &timer{longest: longest, pause: minPause, due: time.Now().Add(minPause)}
}

// wait returns how long it is until the next poll; not positive when it is due.
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

// restart makes the next pause the shortest one. An event of another process often
// follows the last one closely.
func (t *timer) restart() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pause = minPause
	if due := time.Now().Add(minPause); due.Before(t.due) { // else frequent calls would put the poll off for ever
		t.due = due
	}
}
