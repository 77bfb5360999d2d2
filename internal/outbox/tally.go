package outbox

import "example.com/videocatalog/internal/envelope"

// tally records the results of the events of a claim, which it is given in order. After the
// first event of an aggregate that is not acknowledged, the events behind it get the same
// result.
type tally struct {
	result     Result
	settlement Settlement
	refusals   map[envelope.Aggregate]bool // aggregates with a refused event
	unknowns   map[envelope.Aggregate]bool // aggregates with an event whose result is unknown
	recovered  map[envelope.Aggregate]bool
}

func newTally(claim Claim) *tally {
	t := &tally{
		result:     Result{Claimed: true},
		settlement: Settlement{Lane: claim.Lane, Token: claim.Token},
		refusals:   make(map[envelope.Aggregate]bool), unknowns: make(map[envelope.Aggregate]bool), recovered: make(map[envelope.Aggregate]bool),
	}
	for _, aggregate := range claim.Recovered {
		t.recover(aggregate)
	}
	for _, e := range claim.Events {
		if e.Retry {
			continue
		}
		if t.settlement.Head == 0 {
			t.settlement.Head = e.Seq
		}
		t.settlement.Tail = e.Seq
	}
	return t
}

// setAside sets an event aside, unless it already is.
func (t *tally) setAside(e Claimed) {
	if !e.Retry {
		t.settlement.Aside = append(t.settlement.Aside, e.Seq)
	}
}

func (t *tally) recover(aggregate envelope.Aggregate) {
	if !t.recovered[aggregate] {
		t.recovered[aggregate] = true
		t.settlement.Recovered = append(t.settlement.Recovered, aggregate)
	}
}

// behind reports whether an earlier event has stopped the aggregate of this one. If so, it
// records this event.
func (t *tally) behind(e Claimed) bool {
	switch {
	case t.refusals[e.Aggregate()]:
		t.setAside(e)
		return true
	case t.unknowns[e.Aggregate()]:
		t.result.Unknown++
		return true
	}
	return false
}

func (t *tally) published(e Claimed) {
	t.result.Published++
	if e.Retry {
		t.settlement.Retried = append(t.settlement.Retried, e.Seq)
		t.recover(e.Aggregate())
	} else {
		t.settlement.Done = append(t.settlement.Done, e.Seq)
	}
}

// refused records a refusal, and reports whether it counts as an attempt. A blocked
// aggregate counts the attempts of its first event only. If that one was acknowledged, a
// refusal of a later event is not counted: that event is soon tried as the first.
func (t *tally) refused(e Claimed) (counts bool) {
	t.result.Refused++
	t.refusals[e.Aggregate()] = true
	t.setAside(e)
	return !t.recovered[e.Aggregate()]
}

func (t *tally) unknown(e Claimed) {
	t.result.Unknown++
	t.unknowns[e.Aggregate()] = true
	if e.Retry && e.Attempts == 0 {
		// Its events filled many places of this claim. In the next one, other aggregates go
		// first.
		t.recover(e.Aggregate())
	}
}
