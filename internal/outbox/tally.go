package outbox

import "example.com/videocatalog/internal/envelope"

// tally records the results of the events of a claim, in order. The first event of an aggregate
// that is not acknowledged decides about the events behind it: behind a refused event they are
// deferred, and behind an unknown event they are unknown.
type tally struct {
	result     Result
	settlement Settlement
	stopped    map[envelope.Aggregate]bool // aggregates with an event that is not acknowledged; true: it was refused
}

// deferred records that an event must wait behind the head of its blocked aggregate.
func (t *tally) deferred(e Claimed) {
	if !e.Deferred {
		t.settlement.Defer = append(t.settlement.Defer, e.Seq)
	}
}

// behind reports whether an earlier event has stopped the aggregate of this one. If so, it
// records this event.
func (t *tally) behind(e Claimed) bool {
	refused, stopped := t.stopped[e.Aggregate()]
	switch {
	case refused:
		t.deferred(e)
	case stopped:
		t.result.Unknown++
	}
	return stopped
}

func (t *tally) published(e Claimed) {
	t.result.Published++
	if e.Deferred {
		t.settlement.Resumed[e.Aggregate()] = e.Seq
	} else {
		t.settlement.Published = append(t.settlement.Published, e.Seq)
	}
}

// refused records a refusal, and reports whether it counts as an attempt. A blocked
// aggregate counts the attempts of its first event only. If the first was acknowledged, the
// refusal of a later event is not counted: the later event is soon tried as the first.
func (t *tally) refused(e Claimed) (counts bool) {
	t.result.Refused++
	t.stopped[e.Aggregate()] = true
	t.deferred(e)
	_, resumed := t.settlement.Resumed[e.Aggregate()]
	return !resumed
}

func (t *tally) unknown(e Claimed) {
	t.result.Unknown++
	t.stopped[e.Aggregate()] = false
	if e.Deferred && e.Attempts == 0 {
		// The events of this aggregate may have filled the claim. In the next claim, other
		// aggregates go first.
		t.settlement.Resumed[e.Aggregate()] += 0 // an acknowledged Seq stays
	}
}
