package outbox

import "example.com/videocatalog/internal/envelope"

// tally records the results of the events of a claim, in order. The first event of an aggregate
// that is not acknowledged decides about the events behind it: behind a refused event they are
// deferred, and behind an unknown event they are unknown.
type tally struct {
	result     Result
	settlement Settlement
	refusals   map[envelope.Aggregate]bool // aggregates with a refused event
	unknowns   map[envelope.Aggregate]bool // aggregates with an event whose result is unknown
	resumed    map[envelope.Aggregate]int  // their index in settlement.Resumed
}

func newTally(claim Claim) *tally {
	t := &tally{
		result:     Result{Claimed: true},
		settlement: Settlement{Lane: claim.Lane, Token: claim.Token},
		refusals:   make(map[envelope.Aggregate]bool), unknowns: make(map[envelope.Aggregate]bool), resumed: make(map[envelope.Aggregate]int),
	}
	for _, e := range claim.Events {
		if e.Deferred {
			continue
		}
		if t.settlement.Head == 0 {
			t.settlement.Head = e.Seq
		}
		t.settlement.Tail = e.Seq
	}
	return t
}

// deferred records that an event must wait behind the head of its blocked aggregate.
func (t *tally) deferred(e Claimed) {
	if !e.Deferred {
		t.settlement.Defer = append(t.settlement.Defer, e.Seq)
	}
}

// resume records that the deferred events of an aggregate up to published are
// acknowledged; 0 means none.
func (t *tally) resume(aggregate envelope.Aggregate, published int64) {
	i, known := t.resumed[aggregate]
	if !known {
		i = len(t.settlement.Resumed)
		t.resumed[aggregate] = i
		t.settlement.Resumed = append(t.settlement.Resumed, Resumed{Aggregate: aggregate})
	}
	t.settlement.Resumed[i].Published = max(t.settlement.Resumed[i].Published, published)
}

// behind reports whether an earlier event has stopped the aggregate of this one. If so, it
// records this event.
func (t *tally) behind(e Claimed) bool {
	switch {
	case t.refusals[e.Aggregate()]:
		t.deferred(e)
		return true
	case t.unknowns[e.Aggregate()]:
		t.result.Unknown++
		return true
	}
	return false
}

func (t *tally) published(e Claimed) {
	t.result.Published++
	if e.Deferred {
		t.resume(e.Aggregate(), e.Seq)
	} else {
		t.settlement.Published = append(t.settlement.Published, e.Seq)
	}
}

// refused records a refusal, and reports whether it counts as an attempt. A blocked
// aggregate counts the attempts of its first event only. If the first was acknowledged, the
// refusal of a later event is not counted: the later event is soon tried as the first.
func (t *tally) refused(e Claimed) (counts bool) {
	t.result.Refused++
	t.refusals[e.Aggregate()] = true
	t.deferred(e)
	_, resumed := t.resumed[e.Aggregate()]
	return !resumed
}

func (t *tally) unknown(e Claimed) {
	t.result.Unknown++
	t.unknowns[e.Aggregate()] = true
	if e.Deferred && e.Attempts == 0 {
		// The events of this aggregate may have filled the claim. In the next claim, other
		// aggregates go first.
		t.resume(e.Aggregate(), 0)
	}
}
