package chaos

import (
	"slices"
	"time"
)

// measure fills in how long each fault held up the publishers, and compares
// those that were alone with their targets. Others are measured too, but say
// as much about their neighbors.
func (c *checker) measure() {
	taken := make([]time.Time, 0, len(c.h.Publications))
	for _, at := range c.h.Publications {
		taken = append(taken, at)
	}
	slices.SortFunc(taken, time.Time.Compare)
	consumed := slices.SortedFunc(slices.Values(c.h.Database.Consumed), time.Time.Compare)
	// By the time of their first publication, with the time they happened.
	type journey struct{ occurred, published time.Time }
	journeys := make([]journey, 0, len(c.first))
	var back []*FaultRecord
	for i := range c.h.Faults {
		if c.h.Faults[i].Clock < 0 {
			back = append(back, &c.h.Faults[i])
		}
	}
	for id, at := range c.first {
		journeys = append(journeys, journey{occurred(c.events[id].OccurredAt, at, back), at})
	}
	slices.SortFunc(journeys, func(a, b journey) int { return a.published.Compare(b.published) })

	f := &c.verdict.Figures
	f.Faults = len(c.h.Faults)
	for i := range c.h.Faults {
		fault := &c.h.Faults[i]
		f.FaultsByKind[fault.Kind]++
		from := fault.Ended
		if fault.Recovery == Takeover {
			from = fault.Struck
		}
		if next, _ := slices.BinarySearchFunc(taken, from, time.Time.Compare); next < len(taken) {
			fault.FirstPublish = taken[next].Sub(from)
		}
		if next, _ := slices.BinarySearchFunc(consumed, from, time.Time.Compare); next < len(consumed) {
			fault.FirstConsume = consumed[next].Sub(from)
		}
		next, _ := slices.BinarySearchFunc(journeys, from, func(j journey, at time.Time) int { return j.published.Compare(at) })
		for _, j := range journeys[next:] {
			if j.published.Sub(from) > time.Minute {
				break
			}
			if !j.occurred.After(from) {
				fault.Takeover = j.published.Sub(from)
			}
		}
		if !fault.Alone {
			continue
		}
		switch fault.Recovery {
		case Takeover:
			f.Takeovers++
			f.WorstTakeover = max(f.WorstTakeover, fault.Takeover)
			c.compare(*fault, fault.Takeover, c.h.Limits.Takeover)
		case ClockSet:
			f.Clocks++
			f.WorstClock = max(f.WorstClock, fault.Takeover)
			c.compare(*fault, fault.Takeover, c.h.Limits.Clock)
		case Outage:
			f.Outages++
			f.WorstOutage = max(f.WorstOutage, fault.FirstPublish)
			f.WorstCatalog = max(f.WorstCatalog, fault.FirstConsume)
			c.compare(*fault, fault.FirstPublish, c.h.Limits.FirstResult)
		case NoRecovery:
		}
	}
}

// occurred corrects the time of an event that happened while one of the clocks
// was back, or it would count as one that waited. One that was ahead does no
// harm: it makes an event younger than it is.
func occurred(at, published time.Time, back []*FaultRecord) time.Time {
	const inFlight = time.Second // a command that was under way when the clock was right again
	for _, f := range back {
		right := at.Add(-f.Clock)
		if !right.Before(f.Struck) && right.Before(f.Ended.Add(inFlight)) && right.Before(published.Add(inFlight)) {
			return right
		}
	}
	return at
}

func (c *checker) compare(fault FaultRecord, took, target time.Duration) {
	if took > target {
		c.verdict.Misses = append(c.verdict.Misses, Miss{fault, took, target})
	}
}
