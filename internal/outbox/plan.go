package outbox

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"time"
)

// minPause is the pause before an early poll, and the longest pause after a first failure.
const minPause = 5 * time.Millisecond

// laneSet is a set of lanes: bit n is lane n.
type laneSet uint8

func setOf(lane int16) laneSet { return 1 << lane }

// job is a pass that a worker makes. A pass of AnyLane is a poll.
type job struct {
	lane  int16
	batch int
}

// ended is a pass that has ended.
type ended struct {
	job
	Result
	failure error // of the pass itself
}

// plan decides which pass starts when. It starts no goroutine and reads no clock. A crash
// loses all of it, but no event: see Publisher.dispatch.
type plan struct {
	cfg     Config
	idle    int     // workers without a pass
	polls   int     // polls under way
	serving laneSet // lanes with a pass under way that is no poll
	woken   laneSet // lanes with a commit since their last pass started
	last    int16   // the lane of the last pass that was no poll

	pollAt time.Time     // when the next poll is due
	pause  time.Duration // the last pause before a poll

	failures int       // passes in a row that failed, or found the broker unavailable
	open     bool      // the breaker: the broker was unavailable, and has not responded since
	resumeAt time.Time // no pass starts before
	stopAt   time.Time // no pass starts then or later; zero before stop
}

func newPlan(cfg Config, now time.Time) *plan {
	return &plan{cfg: cfg, idle: cfg.Workers, pollAt: now, pause: minPause}
}

// next starts a pass. If none may start now, it returns how long to wait for a wake-up or the
// end of a pass. One due poll goes before woken lanes, and no more than one, so that polls and
// woken lanes do not wait for ever. While the breaker is open, a pass is a probe and runs alone.
func (p *plan) next(now time.Time) (j job, wait time.Duration) {
	lanes, due := p.woken&^p.serving, !now.Before(p.pollAt)
	switch {
	case p.idle == 0, p.open && p.idle < p.cfg.Workers, p.stopping() && !now.Before(p.stopAt):
		return j, time.Hour // until a pass ends
	case now.Before(p.resumeAt):
		return j, p.resumeAt.Sub(now)
	case lanes == 0 && !due:
		return j, p.pollAt.Sub(now)
	}
	p.idle--
	j = job{lane: AnyLane, batch: p.cfg.Batch}
	if p.open {
		j.batch = 1
	}
	if lanes == 0 || due && p.polls == 0 {
		p.polls++
		p.pause = min(2*p.pause, p.cfg.PollInterval) // it grows until end finds a reason for an early poll
		p.pollAt = now.Add(p.pause)
		return j, 0
	}
	from := int(p.last) + 1 // lanes take turns
	j.lane = int16((from + bits.TrailingZeros8(bits.RotateLeft8(uint8(lanes), -from))) % Lanes)
	p.last = j.lane
	p.woken &^= setOf(j.lane)
	p.serving |= setOf(j.lane)
	return j, 0
}

// end records the end of a pass. It makes the next poll an early one if there may be more
// work. Polls that find work go on at once: other processes are probably writing, or a lane
// that the poll had was woken meanwhile. After a wake-up, which is about one event, one pass
// is usually enough. If that pass finds nothing, another poll or process may have the lane.
func (p *plan) end(now time.Time, e ended) {
	p.idle++
	poll := e.lane == AnyLane
	if poll {
		p.polls--
	} else {
		p.serving &^= setOf(e.lane)
	}
	switch {
	case e.Claimed && (poll || p.stopping()):
		p.pollBy(now)
	case e.left, e.failure != nil, !e.Claimed && !poll:
		p.pollBy(now.Add(minPause))
	}
	switch {
	case e.failure != nil, e.Outage != nil:
		p.failures++
		p.open = p.open || e.Outage != nil
		p.resumeAt = now.Add(backoff(p.failures, minPause, p.cfg.ProbeInterval))
	case !p.open, e.Published+e.Refused > 0: // nothing else shows that the broker is back
		p.failures, p.open = 0, false
	}
}

// pollBy makes a poll due at a time, unless one is due before: otherwise frequent calls
// would delay the poll for ever.
func (p *plan) pollBy(at time.Time) {
	p.pause = minPause
	if at.Before(p.pollAt) {
		p.pollAt = at
	}
}

// stop lets passes start until a poll finds nothing or a pass fails, for at most half of
// Config.StopTimeout. The other half is for the responses of the broker.
func (p *plan) stop(now time.Time) {
	p.stopAt = now.Add(p.cfg.StopTimeout / 2)
	p.pollBy(now)
	if !p.open {
		p.resumeAt = now
	}
}

func (p *plan) stopping() bool { return !p.stopAt.IsZero() }

// stopped reports whether all is done, or cannot be done now. Call it after next has
// started no pass.
func (p *plan) stopped() bool { return p.stopping() && p.idle == p.cfg.Workers }

// backoff returns a random pause after the n-th failure, from half of a limit up to the limit
// and never 0. The limit doubles each time. So workers that failed together do not come back
// together, and none comes back immediately.
func backoff(n int, shortest, longest time.Duration) time.Duration {
	limit := time.Duration(min(math.Ldexp(float64(shortest), n-1), float64(longest)))
	return limit - rand.N(limit/2+1)
}
