package chaos

import (
	"cmp"
	"slices"
	"time"
)

// measure fills in how long each fault held up the publishers, and compares
// those that were alone with their targets. The others have figures too, which
// say as much about their neighbors, and do not count as measured.
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

// journey is an event's: from when it happened, or a client was told of it, until
// it was published.
type journey struct{ begun, published time.Time }

// inOrder sorts journeys by their beginning, and makes published when all that
// began until then was.
func inOrder(journeys []journey) []journey {
	slices.SortFunc(journeys, func(a, b journey) int { return a.begun.Compare(b.begun) })
	for i := 1; i < len(journeys); i++ {
		if before := journeys[i-1].published; journeys[i].published.Before(before) {
			journeys[i].published = before
		}
	}
	return journeys
}

// wait is how long after a moment all was published that had begun by then.
func wait(journeys []journey, from time.Time) time.Duration {
	after, _ := slices.BinarySearchFunc(journeys, from, func(j journey, at time.Time) int {
		return cmp.Or(j.begun.Compare(at), -1) // behind those of the same moment
	})
	if after == 0 {
		return 0
	}
	return max(0, journeys[after-1].published.Sub(from))
}

// compare compares a fault with the target of its kind. One that did not
// happen, or was not alone, has none.
func (c *checker) compare(fault *FaultRecord, published, consumed bool) {
	if fault.Missing != "" {
		return
	}
	f := &c.verdict.Figures
	var took, target time.Duration
	measured := fault.Alone && published
	switch fault.Recovery {
	case NoRecovery, Catalog: // which comes with outages
		return
	case Back: // nothing waits
	case Takeover:
		took, target = fault.Takeover, c.h.Limits.Takeover
		if f.OfTakeovers++; measured {
			f.Takeovers++
			if fault.Unsettled > 0 {
				f.LeftBehind++
			}
			f.WorstTakeover = max(f.WorstTakeover, took)
		}
	case ClockSet: // a publisher that finds all lanes leased waits with its events
		took, target = max(fault.Takeover, fault.Back), c.h.Limits.Clock
		if f.OfClocks++; measured {
			f.Clocks++
			f.WorstClock = max(f.WorstClock, took)
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
	if fault.Recovery == ClockSet {
		return
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

// occurred corrects the time of an event that happened while one of the clocks
// was back, or it would count as one that waited. One that was ahead does no
// harm: it makes an event younger than it is.
func occurred(at, published time.Time, back []*FaultRecord) time.Time {
	const inFlight = time.Second          // a command that was under way when the clock was right again
	const rounded = 10 * time.Millisecond // the time of an event has whole milliseconds
	for _, f := range back {
		right := at.Add(-f.Clock)
		if !right.Before(f.Struck.Add(-rounded)) && right.Before(f.Ended.Add(inFlight)) && right.Before(published.Add(inFlight)) {
			return right
		}
	}
	return at
}
