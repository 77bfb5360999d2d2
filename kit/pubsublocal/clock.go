package pubsublocal

import (
	"container/heap"
	"sync"
	"time"
)

// Clock is the time of a server. It runs like the real time, and a test can
// move it forward. The zero Clock is ready to use, by one server. Its methods
// are safe for concurrent use.
type Clock struct {
	turn sync.Mutex // held while timers run, one after another; locked before any other lock

	mu     sync.Mutex
	offset time.Duration // guarded by mu
	timers queue[*timer] // guarded by mu
	real   *time.Timer   // guarded by mu: fires for the first of timers; nil before the first one
	busy   bool          // guarded by mu: timers run now, and arm is called after them
}

// Now returns the time of the server.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now()
}

func (c *Clock) now() time.Time { return time.Now().Add(c.offset) }

// Advance moves the clock forward. When it returns, everything that became due
// has happened, in the order of time: leases ended, messages were dropped,
// streams were closed.
func (c *Clock) Advance(d time.Duration) {
	c.turn.Lock()
	defer c.turn.Unlock()
	c.mu.Lock()
	c.busy = true
	target := c.now().Add(d)
	for len(c.timers) > 0 && !c.timers[0].at.After(target) {
		if first := c.timers[0].at; first.After(c.now()) {
			c.offset += first.Sub(c.now())
		}
		c.runFirst()
	}
	if rest := target.Sub(c.now()); rest > 0 {
		c.offset += rest
	}
	c.busy = false
	c.arm()
	c.mu.Unlock()
}

// runFirst runs the first timer. It is called with turn and mu held, and
// unlocks mu during the run.
func (c *Clock) runFirst() {
	t, _ := heap.Pop(&c.timers).(*timer)
	c.mu.Unlock()
	t.run()
	c.mu.Lock()
}

// due runs the timers that are due. The real timer calls it.
func (c *Clock) due() {
	c.turn.Lock()
	defer c.turn.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = true
	for len(c.timers) > 0 && !c.timers[0].at.After(c.now()) {
		c.runFirst()
	}
	c.busy = false
	c.arm()
}

// arm sets the real timer to the first timer. It is called with mu held.
func (c *Clock) arm() {
	switch {
	case c.busy:
	case len(c.timers) == 0:
		if c.real != nil {
			c.real.Stop()
		}
	case c.real == nil:
		c.real = time.AfterFunc(c.timers[0].at.Sub(c.now()), c.due)
	default:
		c.real.Reset(c.timers[0].at.Sub(c.now()))
	}
}

// timer runs a function at a set time. Of the locks of the clock, only turn is
// held during the run.
type timer struct {
	clock *Clock
	run   func()
	at    time.Time // guarded by clock.mu
	index int       // guarded by clock.mu: position in timers; -1: not set
}

func (c *Clock) newTimer(run func()) *timer { return &timer{clock: c, run: run, index: -1} }

// set sets the time of the run, instead of any earlier one. The zero time
// cancels the run.
func (t *timer) set(at time.Time) {
	c := t.clock
	c.mu.Lock()
	defer c.mu.Unlock()
	if at.IsZero() {
		if t.index >= 0 {
			heap.Remove(&c.timers, t.index)
		}
		return
	}
	t.at = at
	if t.index >= 0 {
		heap.Fix(&c.timers, t.index)
	} else {
		heap.Push(&c.timers, t)
	}
	if c.timers[0] == t {
		c.arm()
	}
}

func (t *timer) before(other *timer) bool { return t.at.Before(other.at) }
func (t *timer) moved(to int)             { t.index = to }

// stop cancels all timers, and waits for one that runs.
func (c *Clock) stop() {
	c.turn.Lock()
	defer c.turn.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.timers {
		t.index = -1
	}
	c.timers = nil
	c.arm()
}

// placed is an element of a queue. It knows its place there; -1 is outside.
type placed[T any] interface {
	before(other T) bool
	moved(to int)
}

var _, _ = placed[*timer](nil), placed[*delivery](nil)

// queue is a heap.
type queue[T placed[T]] []T

func (q queue[T]) Len() int           { return len(q) }
func (q queue[T]) Less(i, j int) bool { return q[i].before(q[j]) }
func (q queue[T]) Swap(i, j int)      { q[i], q[j] = q[j], q[i]; q[i].moved(i); q[j].moved(j) }

// Push implements heap.Interface.
func (q *queue[T]) Push(x any) {
	element, _ := x.(T)
	element.moved(len(*q))
	*q = append(*q, element)
}

// Pop implements heap.Interface.
func (q *queue[T]) Pop() any {
	last := len(*q) - 1
	element := (*q)[last]
	clear((*q)[last:])
	*q = (*q)[:last]
	element.moved(-1)
	return element
}
