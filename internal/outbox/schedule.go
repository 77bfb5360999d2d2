package outbox

import (
	"context"
	"sync/atomic"
	"time"

	"example.com/videocatalog/internal/envelope"
)

// schedule decides when a worker makes its next pass, and of which lane. A wake-up is about
// the lane of one event. The timer is about all lanes. It is safe for concurrent use.
type schedule struct {
	breaker *breaker
	timer   *timer
	// wakeUps has one entry per worker that should make a pass now. The entry is the
	// aggregate whose lane to claim, or zero for any lane.
	wakeUps chan envelope.Aggregate
	// watch holds a token while an idle worker watches the timer. Only one worker does.
	watch chan struct{}
	// restarted has a token after the timer was restarted.
	restarted chan struct{}
	// busy is how many workers are in a pass.
	busy atomic.Int32
	// missed asks the next worker that ends a pass to poll all lanes. It is set in two
	// cases. A wake-up found nothing while others were in a pass: one of them may have
	// claimed the lane before the event was committed. Or there was no room for a wake-up.
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

// wake wakes a worker for the lane of an aggregate; the zero Aggregate means any lane. It
// never blocks.
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

// pollSoon moves the next poll of all lanes to minPause from now.
func (s *schedule) pollSoon() {
	s.timer.restart()
	select {
	case s.restarted <- struct{}{}:
	default: // the worker that watches the timer has not read the last one yet
	}
}

// begin counts a pass that begins, and reports whether other passes are running.
func (s *schedule) begin() (others bool) { return s.busy.Add(1) > 1 }

// end counts a pass that has ended. If it may have left events, the next poll comes soon.
// There are three such cases: a poll found work, so other processes are probably writing; a
// wake-up found nothing, so another process may have the lane; or the result says that
// events are left.
func (s *schedule) end(polled bool, result Result) {
	s.busy.Add(-1)
	if polled == result.Claimed || result.left {
		s.pollSoon()
	}
}

// again reports whether a worker polls all lanes right after a pass, instead of waiting.
// After the timer, it polls until it finds nothing. After a wake-up, which is about one
// event, one pass is usually enough. A second pass after each would double the load on the
// database.
func (s *schedule) again(result Result, woken, others bool) bool {
	switch {
	case !result.Claimed && woken && others:
		// Another pass began before ours and may have the lane of our event. Then the last
		// worker that ends a pass polls all lanes. It lowers busy and then reads missed. We
		// set missed and then read busy, so at least one of us polls.
		s.missed.Store(true)
		return s.busy.Load() == 0 && s.missed.Swap(false)
	case !result.Claimed:
		return false
	default:
		return !woken || s.missed.Swap(false)
	}
}

// wait waits for a wake-up or the timer. It reports whether it was a wake-up, and of which
// aggregate. Only one idle worker watches the timer, so an idle process polls once per
// PollInterval, however many workers it has. If both are ready, select chooses at random,
// so endless wake-ups delay a poll by a few passes only.
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
