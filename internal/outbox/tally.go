package outbox

import (
	"cmp"
	"errors"

	"example.com/videocatalog/internal/envelope"
)

// tally adds up the results of the events of a claim, in order. The first event of an aggregate
// that is not acknowledged decides about the events behind it: behind a refused event they are
// deferred, and behind an unknown event they are unknown.
type tally struct {
	result     Result
	settlement Settlement
	failed     map[envelope.Aggregate]bool // aggregates with an event that was not acknowledged: whether the first was refused
}

func newTally(lease Lease) *tally {
	return &tally{
		result:     Result{Claimed: true},
		settlement: Settlement{Lease: lease, Resumed: make(map[envelope.Aggregate]int64)},
		failed:     make(map[envelope.Aggregate]bool),
	}
}

// errNotHanded is the error of an event that was not handed to the broker.
var errNotHanded = errors.New("not handed to the broker")

// add adds the response to an event. It returns a refusal that counts as an attempt, or nil.
//
// A blocked aggregate counts the attempts of its first event only. If the first was acknowledged, the
// refusal of a later event does not count: the later event is soon tried as the first.
func (t *tally) add(e Claimed, err error) *RefusedError {
	refusal, isRefusal := errors.AsType[*RefusedError](err)
	refused, failed := t.failed[e.Aggregate()]
	switch {
	case e.Behind || refused:
		t.setAside(e)
	case failed:
		t.result.Unknown++
	case err == nil:
		t.publish(e)
	case isRefusal:
		t.result.Refused++
		t.failed[e.Aggregate()] = true
		t.setAside(e)
		if _, resumed := t.settlement.Resumed[e.Aggregate()]; !resumed {
			return refusal
		}
	default:
		t.leave(e, err)
	}
	return nil
}

// setAside defers an event, unless it is deferred already.
func (t *tally) setAside(e Claimed) {
	if !e.Deferred {
		t.settlement.Defer = append(t.settlement.Defer, e.Seq)
	}
}

func (t *tally) publish(e Claimed) {
	t.result.Published++
	if e.Deferred {
		t.settlement.Resumed[e.Aggregate()] = e.Seq
	} else {
		t.settlement.Published = append(t.settlement.Published, e.Seq)
	}
}

// leave leaves an event whose result is unknown where it is.
func (t *tally) leave(e Claimed, err error) {
	t.result.Unknown++
	t.failed[e.Aggregate()] = false
	if err != errNotHanded { //nolint:errorlint // it is never wrapped
		t.result.Outage = cmp.Or(t.result.Outage, err) // the first
	}
	if _, resumed := t.settlement.Resumed[e.Aggregate()]; e.Deferred && e.Attempts == 0 && !resumed {
		// The events of this aggregate may have filled the claim. In the next claim, other
		// aggregates go first.
		t.settlement.Resumed[e.Aggregate()] = 0
	}
}
