package chaos

import (
	"cmp"
	"slices"
	"time"
)

// measure sets the recovery times of all faults. If a fault was alone, it compares
// the time with the fault's target. The times of other faults do not count, because
// they depend on each other.
func (c *checker) measure() {
	taken := make([]time.Time, 0, len(c.h.Publications))
	for _, at := range c.h.Publications {
		taken = append(taken, at)
	}
	slices.SortFunc(taken, time.Time.Compare)
	var back []*FaultRecord
	for i := range c.h.Faults {
		if c.h.Faults[i].Clock < 0 {
			back = append(back, &c.h.Faults[i])
		}
	}
	happened, told := make([]journey, 0, len(c.first)), make([]journey, 0, len(c.first))
	for id, at := range c.first {
		happened = append(happened, journey{occurred(c.events[id].OccurredAt, at, back), at})
	}
	for _, a := range c.h.Answers {
		if e := c.event(a.Video, a.Version); e != nil && a.Outcome == Acknowledged {
			if at, published := c.first[e.ID]; published {
				told = append(told, journey{a.At, at})
			}
		}
	}
	happened, told = inOrder(happened), inOrder(told)

	f := &c.verdict.Figures
	for i := range c.h.Faults {
		fault := &c.h.Faults[i]
		if fault.Missing == "" {
			f.Faults++
			f.FaultsByKind[fault.Kind]++
		}
		from := fault.Ended
		if fault.Recovery == Takeover {
			from = fault.Struck
		}
		published, consumed := false, false
		if next, _ := slices.BinarySearchFunc(taken, from, time.Time.Compare); next < len(taken) {
			published = true
			fault.FirstPublish = taken[next].Sub(from)
		}
		next, _ := slices.BinarySearchFunc(c.h.Acks, from, func(a Ack, at time.Time) int { return a.At.Compare(at) })
		if i := slices.IndexFunc(c.h.Acks[next:], func(a Ack) bool { return !a.Published.Before(from) }); i >= 0 {
			consumed = true
			fault.FirstConsume = c.h.Acks[next+i].At.Sub(from)
		}
		if fault.GoesOn {
			fault.Takeover = wait(told, from)
		} else {
			fault.Takeover = wait(happened, from)
		}
		c.compare(fault, published, consumed)
	}
}

// journey is the time that an event waits: from its own time, or the time when a
// client received its result, until it was published.
type journey struct{ begun, published time.Time }

// inOrder sorts journeys by begun. It sets each published to the time when this
// event and all before it were published.
func inOrder(journeys []journey) []journey {
	slices.SortFunc(journeys, func(a, b journey) int { return a.begun.Compare(b.begun) })
	for i := 1; i < len(journeys); i++ {
		if before := journeys[i-1].published; journeys[i].published.Before(before) {
			journeys[i].published = before
		}
	}
	return journeys
}

// wait returns the time from a moment until every event that had begun by then
// was published.
func wait(journeys []journey, from time.Time) time.Duration {
	after, _ := slices.BinarySearchFunc(journeys, from, func(j journey, at time.Time) int {
		return cmp.Or(j.begun.Compare(at), -1) // the position behind equal times
	})
	if after == 0 {
		return 0
	}
	return max(0, journeys[after-1].published.Sub(from))
}

// compare compares a fault with the target of its kind. A fault that had no effect,
// or was not alone, has no target.
func (c *checker) compare(fault *FaultRecord, published, consumed bool) {
	if fault.Missing != "" {
		return
	}
	f := &c.verdict.Figures
	var took, target time.Duration
	measured := fault.Alone && published
	switch fault.Recovery {
	case NoRecovery, Catalog: // Catalog is checked with Outage
		return
	case Back: // nothing waits to be published
	case Takeover:
		took, target = fault.Takeover, c.h.Limits.Takeover
		if f.OfTakeovers++; measured {
			f.Takeovers++
			if fault.Unsettled > 0 || fault.Repeated > 0 { // what comes again was not settled
				f.LeftBehind++
			}
			f.WorstTakeover = max(f.WorstTakeover, took)
		}
	case Outage:
		took, target = fault.FirstPublish, c.h.Limits.FirstResult
		if f.OfOutages++; measured {
			f.Outages++
			f.WorstOutage = max(f.WorstOutage, took)
			f.WorstCatalog = max(f.WorstCatalog, fault.FirstConsume)
		}
	}
	if fault.Alone && fault.Recovery != Back && (!published || took > target) {
		c.verdict.Misses = append(c.verdict.Misses, Miss{Fault: *fault, Of: fault.Recovery, Took: took, Never: !published, Target: target})
	}
	if f.OfBacks++; fault.Back > 0 && fault.Alone {
		f.Backs++
		f.WorstBack = max(f.WorstBack, fault.Back)
		if limit := c.h.Limits.Back; fault.Back > limit {
			c.verdict.Misses = append(c.verdict.Misses, Miss{Fault: *fault, Of: Back, Took: fault.Back, Target: limit})
		}
	}
	if limit := c.h.Limits.Catalog; measured && fault.Recovery == Outage && (!consumed || fault.FirstConsume > limit) {
		c.verdict.Misses = append(c.verdict.Misses, Miss{Fault: *fault, Of: Catalog, Took: fault.FirstConsume, Never: !consumed, Target: limit})
	}
}

// occurred corrects the time of an event from a clock that was behind. Otherwise
// the event would seem to have waited. A clock that was ahead needs no
// correction, because it only makes an event seem younger.
func occurred(at, published time.Time, back []*FaultRecord) time.Time {
	const inFlight = time.Second          // for a command that was running when the clock was set right
	const rounded = 10 * time.Millisecond // the time of an event is in whole milliseconds
	for _, f := range back {
		right := at.Add(-f.Clock)
		if !right.Before(f.Struck.Add(-rounded)) && right.Before(f.Ended.Add(inFlight)) && right.Before(published.Add(inFlight)) {
			return right
		}
	}
	return at
}
