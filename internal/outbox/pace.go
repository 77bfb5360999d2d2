package outbox

import (
	"math"
	"math/rand/v2"
	"time"
)

const (
	// minPause is the pause before an early poll, and the longest pause after a first failure.
	minPause = 5 * time.Millisecond
	// probeInterval is the longest pause after a pass that failed, or found the broker unavailable.
	probeInterval = time.Second
	// untilChange is a wait that only a change of the pace ends.
	untilChange time.Duration = math.MaxInt64
)

// pace decides when the next claim starts, and how much it may take. The workers of a process
// share it. It has no clock and starts no goroutine. A crash loses it, and no event.
type pace struct {
	cfg    Config
	passes int    // under way, from the start of the claim
	wakes  uint64 // wake-ups until now

	due    bool          // a claim is due at once
	woken  bool          // because of a wake-up
	pollAt time.Time     // when a claim is due in any case
	pause  time.Duration // before that poll
	rush   bool          // the last claim was full: the next worker claims at once, beside other claims
	lanes  int           // how many a claim may take: 1 if the last claim that found work was full, else all
	events int           // how many it may take: see adapt

	failures int       // passes in a row that failed, or found the broker unavailable
	open     bool      // the breaker: the broker was unavailable, and has not responded since
	resumeAt time.Time // no claim starts before
	stopAt   time.Time // no claim starts then or later; zero before stop
}

// turn is a claim that is due, and the pass after it.
type turn struct {
	Limits

	rush  bool   // it is one of several claims at a time
	woken bool   // it is due because of a wake-up
	wakes uint64 // before the claim
}

func newPace(cfg Config, now time.Time) *pace {
	return &pace{cfg: cfg, pollAt: now, pause: minPause, lanes: Lanes, events: fewest(cfg)}
}

// wake makes a claim due, because an event was committed.
func (p *pace) wake() {
	p.wakes++
	p.due, p.woken = true, true
}

// wait returns how long the next claim must wait, unless a pass ends or a wake-up comes before. While the
// breaker is open, a pass is a probe and runs alone.
func (p *pace) wait(now time.Time) time.Duration {
	switch {
	case p.open && p.passes > 0, p.stopping() && !now.Before(p.stopAt):
		return untilChange
	case now.Before(p.resumeAt):
		return p.resumeAt.Sub(now)
	case p.due, p.rush:
		return 0
	}
	return max(0, p.pollAt.Sub(now))
}

// begin starts a pass. Every claim looks at all lanes, so the next poll is a pause later.
func (p *pace) begin(now time.Time) turn {
	t := turn{Limits{p.lanes, p.events, p.cfg.BatchBytes, p.cfg.Lease}, p.rush, p.woken, p.wakes}
	if p.open {
		t.Lanes, t.Events = 1, 1
	}
	p.passes++
	p.due, p.woken = false, false
	p.pause = min(2*p.pause, p.cfg.PollInterval) // it grows until there is a reason for an early poll
	p.pollAt = now.Add(p.pause)
	return t
}

// claimed records that a claim has found work. If a limit has left out some, there is a backlog for all workers.
func (p *pace) claimed(full bool) {
	p.rush, p.lanes = full, Lanes
	if full {
		p.lanes = 1
	}
}

// end records the end of a pass.
func (p *pace) end(now time.Time, t turn, r Result, failure error) {
	p.passes--
	p.rush = p.rush && r.Claimed
	// An event that was committed meanwhile may be in a lane of this pass, where no other claim has found it. A poll
	// that has found work is followed by another, because other processes are probably writing.
	committed, polled := p.wakes != t.wakes, !t.woken
	// A limit of events or of lanes has left out work, which was not free for the claims meanwhile.
	limited := r.full || t.Lanes < Lanes
	// After a wake-up for nothing, another pass or process may have the lane.
	inVain := t.woken && !r.Claimed
	switch {
	case r.Claimed && (committed || polled || limited || p.stopping()):
		p.due = true
	case r.left, failure != nil, inVain:
		p.pollBy(now.Add(minPause))
	}
	switch {
	case failure != nil, r.Outage != nil:
		p.failures++
		p.open = p.open || r.Outage != nil
		p.resumeAt = now.Add(backoff(p.failures, minPause, probeInterval))
	case !p.open, r.Published+r.Refused > 0: // nothing else shows that the broker is back
		p.failures, p.open = 0, false
	}
	if r.Claimed && failure == nil {
		p.adapt(t.Limits, r)
	}
}

// adapt sets how many events the next claim may take. A backlog begins with few, so that a slow broker does not get more than it
// can acknowledge in time. The number doubles while the broker responds soon, and halves when it does not: below the first
// number only if events had no response.
func (p *pace) adapt(l Limits, r Result) {
	switch slow := r.took > p.cfg.RequestTimeout()/4; {
	case !r.full && l.Lanes == Lanes:
		p.events = fewest(p.cfg)
	case r.Unknown > 0:
		p.events = max(1, min(p.events, l.Events/2))
	case slow:
		p.events = min(p.events, max(fewest(p.cfg), l.Events/2))
	case r.full && l.Events == p.events:
		p.events = min(2*p.events, p.cfg.Batch)
	}
}

// fewest returns how many events the first claim of a backlog may take.
func fewest(cfg Config) int { return max(1, cfg.Batch/8) }

// pollBy makes a poll due at a time, unless one is due before: otherwise frequent calls
// would delay the poll for ever.
func (p *pace) pollBy(at time.Time) {
	p.pause = minPause
	if at.Before(p.pollAt) {
		p.pollAt = at
	}
}

// stop lets claims start until one finds nothing or a pass fails, for at most half of
// StopTimeout. The other half is for the responses of the broker.
func (p *pace) stop(now time.Time) {
	p.stopAt = now.Add(StopTimeout / 2)
	p.due = true
	if !p.open {
		p.resumeAt = now
	}
}

func (p *pace) stopping() bool { return !p.stopAt.IsZero() }

// stopped reports whether all is done, or cannot be done now.
func (p *pace) stopped(now time.Time) bool { return p.stopping() && p.passes == 0 && p.wait(now) > 0 }

// backoff returns a random pause after the n-th failure, from half of a limit up to the limit
// and never 0. The limit doubles each time. So workers that failed together do not come back
// together, and none comes back immediately.
func backoff(n int, shortest, longest time.Duration) time.Duration {
	limit := time.Duration(min(math.Ldexp(float64(shortest), n-1), float64(longest)))
	return limit - rand.N(limit/2+1)
}
