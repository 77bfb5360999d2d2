package outbox

import (
	"context"
	"sync/atomic"
	"time"

	"example.com/videocatalog/internal/envelope"
)

// schedule says when a worker makes its next pass, and of which lane. A wake-up is
// about the lane of one event; the timer is about all lanes. Safe for concurrent use.
type schedule struct {
	breaker *breaker
	timer   *timer
	// wakeUps has an entry per worker that should make a pass now: of the lane of
	// that aggregate, or of any lane.
	wakeUps chan envelope.Aggregate
	// watch is held by the one idle worker that watches the timer.
	watch chan struct{}
	// restarted has a token when the timer was restarted.
	restarted chan struct{}
	// busy is how many workers are in a pass.
	busy atomic.Int32
	// missed: a worker that ends a pass polls all lanes. Either a wake-up found
	// nothing while others were in a pass, and one of them, whose claim came
	// before, may have the lane of the event; or a wake-up had no place.
	missed atomic.Bool
}

func newSchedule(cfg Config) *schedule {
	return &schedule{
		breaker:   &breaker{max: cfg.ProbeInterval, batch: cfg.Batch},
		timer:     newTimer(cfg.PollInterval),
		wakeUps:   make(chan envelope.Aggregate, cfg.Workers),
		watch:     make(chan struct{}, 1),
		restarted: make(chan struct{}, 1),
	}
}

// wake wakes a worker for the lane of an aggregate, or for any lane when it is
// the zero Aggregate. It never blocks.
func (s *schedule) wake(aggregate envelope.Aggregate) {
	select {
	case s.wakeUps <- aggregate:
	default: // every worker has a wake-up already, but perhaps of another lane
		s.missed.Store(true)
		s.pollSoon()
	}
}

func (s *schedule) wakeAll() {
	for range cap(s.wakeUps) {
		s.wake(envelope.Aggregate{})
	}
}

// pollSoon makes the next poll of all lanes come after minPause.
func (s *schedule) pollSoon() {
	s.timer.restart()
	select {
	case s.restarted <- struct{}{}:
	default: // the worker that watches the timer has not read the last one yet
	}
}

// begin counts a pass that begins, and reports whether others are under way.
func (s *schedule) begin() (others bool) { return s.busy.Add(1) > 1 }

// end counts a pass as ended. It polls soon after one that may have left events:
// other processes go on writing where a poll found something; and the lane of a
// wake-up that found nothing may be leased by another process.
func (s *schedule) end(polled bool, result Result) {
	s.busy.Add(-1)
	if polled == result.Claimed || result.left {
		s.pollSoon()
	}
}

// again reports whether a worker polls all lanes right after a pass, or waits
// first. After the timer it goes on until it finds nothing. After a wake-up, which
// is about one event, one pass is mostly enough: a second one after each would
// double the load of the database.
func (s *schedule) again(result Result, woken, others bool) bool {
	switch {
	case !result.Claimed && woken && others:
		// Another pass began before ours, perhaps in the lane of our event: the last
		// worker to end a pass polls for it. That one reads missed after busy, and
		// we write it before, so one of us sees the other.
		s.missed.Store(true)
		return s.busy.Load() == 0 && s.missed.Swap(false)
	case !result.Claimed:
		return false
	default:
		return !woken || s.missed.Swap(false)
	}
}

// wait waits for a wake-up or the timer, and reports whether it was a wake-up,
// and of which aggregate. One idle worker watches the timer, so an idle process
// polls once per PollInterval, however many workers it has. When both are ready,
// select chooses at random, so wake-ups without end delay a poll by a few passes.
func (s *schedule) wait(ctx context.Context) (of envelope.Aggregate, woken bool) {
	select {
	case <-ctx.Done():
		return of, false
	case of = <-s.wakeUps:
		return of, true
	case s.watch <- struct{}{}:
		defer func() { <-s.watch }()
		return s.watchTimer(ctx)
	}
}

func (s *schedule) watchTimer(ctx context.Context) (of envelope.Aggregate, woken bool) {
	timer := time.NewTimer(s.timer.wait())
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return of, false
		case of = <-s.wakeUps:
			return of, true
		case <-s.restarted:
			timer.Reset(s.timer.wait())
		case <-timer.C:
			s.timer.fired()
			return of, false
		}
	}
}
