package outbox

import (
	"math/bits"
	"math/rand/v2"
	"time"
)

const (
	// minPause is the pause between polls after work was found, and the longest first pause
	// after a failed pass or settlement.
	minPause = 5 * time.Millisecond
	// maxPause is the longest pause after failed passes.
	maxPause = 5 * time.Second
)

// laneSet is a set of lanes: bit n is lane n.
type laneSet uint8

func setOf(lane int16) laneSet { return 1 << lane }

// after returns the first lane of a set that is not empty, counted in a circle from behind
// the given lane.
func (s laneSet) after(lane int16) int16 {
	next := int(lane) + 1
	return int16((next + bits.TrailingZeros8(bits.RotateLeft8(uint8(s), -next))) % Lanes) //nolint:gosec // below Lanes
}

// job is a pass that a worker makes. A job of AnyLane is a poll.
type job struct {
	lane     int16
	batch    int
	probe    bool // the broker was unavailable
	contends bool // polls were under way at the start; one of them may have the lane
}

// ended is the end of a job.
type ended struct {
	job
	Result
	failure error
}

// plan decides which pass starts when. It starts no goroutine and reads no clock. A crash
// loses all of it, and only time with it: polls of other processes find the same work.
type plan struct {
	cfg Config

	idle    int     // workers without a job
	polls   int     // polls under way
	serving laneSet // lanes with a pass under way that is no poll

	woken  laneSet // lanes with a commit that no pass has looked for
	missed laneSet // lanes to look at again after a poll has ended
	last   int16   // the lane of the last pass that was no poll
	polled bool    // the last pass was a poll

	pollAt time.Time     // the next poll
	pause  time.Duration // the pause before it

	failures int       // passes in a row that returned an error
	outages  int       // passes in a row that found the broker unavailable; the breaker is open
	probing  bool      // a probe is under way
	resumeAt time.Time // no pass starts before

	stopAt time.Time // no pass starts then or later; zero until stop
}

func newPlan(cfg Config, now time.Time) *plan {
	return &plan{cfg: cfg, idle: cfg.Workers, pollAt: now, pause: minPause}
}

// next starts a pass if there is a reason for one. If not, it returns how long that holds,
// unless something happens. After a poll, woken lanes come first, and the other way round:
// so neither waits for ever.
func (p *plan) next(now time.Time) (j job, wait time.Duration, ok bool) {
	woken := p.woken &^ p.serving
	due := !now.Before(p.pollAt)
	switch {
	case p.idle == 0, p.outages > 0 && p.probing, p.stopping() && !now.Before(p.stopAt):
		return job{}, maxPause, false // until a pass ends
	case now.Before(p.resumeAt):
		return job{}, p.resumeAt.Sub(now), false
	case woken == 0 && !due:
		return job{}, p.pollAt.Sub(now), false
	case woken == 0 || due && !p.polled:
		j = p.poll(now)
	default:
		j = p.pass(woken.after(p.last))
	}
	p.idle--
	if p.outages > 0 {
		p.probing, j.probe, j.batch = true, true, 1
	}
	return j, 0, true
}

// poll starts a poll. While polls find nothing, the pauses between them grow.
func (p *plan) poll(now time.Time) job {
	p.polls++
	p.polled = true
	p.pause = min(2*p.pause, p.cfg.PollInterval)
	p.pollAt = now.Add(p.pause)
	return job{lane: AnyLane, batch: p.cfg.Batch}
}

// pass starts a pass of one lane. A lane has one such pass at a time, so its next wake-up
// waits for the end of this one.
func (p *plan) pass(lane int16) job {
	p.woken &^= setOf(lane)
	p.serving |= setOf(lane)
	p.last, p.polled = lane, false
	return job{lane: lane, batch: p.cfg.Batch, contends: p.polls > 0}
}

// end records the end of a pass.
func (p *plan) end(now time.Time, o ended) {
	p.idle++
	p.free(o)
	p.schedule(now, o)
	if o.probe {
		p.probing = false
	}
	switch {
	case o.failure != nil:
		p.failures++
		p.resumeAt = now.Add(backoff(p.failures, minPause, maxPause))
	default:
		p.failures = 0
	}
	switch {
	case o.outage():
		p.outages++
		p.resumeAt = now.Add(backoff(p.outages, p.cfg.ProbeInterval/8, p.cfg.ProbeInterval))
	case o.Published+o.Refused > 0: // only an answer of the broker closes the breaker
		p.outages = 0
	}
	if p.stopping() && (o.failure != nil || o.outage()) {
		p.stopAt = now
	}
}

// free releases the lane of a pass. A pass that found nothing, although its lane was woken,
// is repeated after the poll that may have the lane: that poll may have begun before the
// commit.
func (p *plan) free(o ended) {
	if o.lane == AnyLane {
		p.polls--
		p.woken |= p.missed
		p.missed = 0
		return
	}
	p.serving &^= setOf(o.lane)
	if o.Claimed || !o.contends {
		return
	}
	if p.polls > 0 {
		p.missed |= setOf(o.lane)
	} else {
		p.woken |= setOf(o.lane)
	}
}

// schedule makes the next poll an early one if the outbox may have more. A poll that found
// work is followed by polls of this worker, and soon of others: other processes are
// probably writing. After a wake-up, which is about one event, one pass is usually enough.
// If it found nothing, another process may have the lane.
func (p *plan) schedule(now time.Time, o ended) {
	poll := o.lane == AnyLane
	switch {
	case o.Claimed && (poll || p.stopping()):
		p.pollBy(now)
	case o.left, o.failure != nil, !o.Claimed && !poll:
		p.pollBy(now.Add(minPause))
	}
}

// pollBy makes the next poll start at the given time, unless it starts before: otherwise
// frequent calls would delay it for ever.
func (p *plan) pollBy(at time.Time) {
	p.pause = minPause
	if at.Before(p.pollAt) {
		p.pollAt = at
	}
}

// stop lets passes start until the outbox is empty or the broker is unavailable, for at
// most half of Config.StopTimeout. The other half is for the answers of the broker.
func (p *plan) stop(now time.Time) {
	p.stopAt = now.Add(p.cfg.StopTimeout / 2)
	p.resumeAt = now
	p.pollBy(now)
	if p.outages > 0 {
		p.stopAt = now
	}
}

func (p *plan) stopping() bool { return !p.stopAt.IsZero() }

// stopped reports whether nothing is left to do after stop. Call it if next starts no pass.
func (p *plan) stopped() bool { return p.stopping() && p.idle == p.cfg.Workers }

// backoff returns a random pause after the n-th failure. It is from the upper half of a
// limit that doubles each time. So workers that failed together do not come back together,
// and none comes back immediately.
func backoff(n int, shortest, longest time.Duration) time.Duration {
	d := shortest
	for range n - 1 {
		if d *= 2; d >= longest {
			d = longest
			break
		}
	}
	return d/2 + rand.N(d/2+1)
}
