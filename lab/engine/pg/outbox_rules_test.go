package pg_test

import (
	"bytes"
	"fmt"
	"slices"

	"example.com/videocatalog/internal/outbox"
)

// outboxModel says what the outbox has to do: lists and maps where PostgreSQL
// has tables, snapshots, indexes and floors. It has no clock: a lease ends, and
// a blocked aggregate becomes due, when a step says so.
type outboxModel struct {
	pending []modelEvent // committed, not settled; in the order in which they were appended
	blocked map[string]*modelBlock
	lanes   map[int16]*modelLane
	now     int // a counter, for the order of lanes and of retries
}

type modelEvent struct {
	place     int // position among all appends
	aggregate string
	version   int64
	aside     bool
}

type modelBlock struct {
	attempts int
	parked   bool
	due      int // the tick since which the aggregate is due; 0: not due
}

type modelLane struct {
	owner  int // the pass that may settle; 0: nobody
	leased bool
	free   int // the tick since which the lane is free
}

func (e modelEvent) String() string { return fmt.Sprintf("%s%d", e.aggregate, e.version) }

// payload returns payloads of different lengths, so that one may fit into a claim where another does not.
func (e modelEvent) payload() []byte { return bytes.Repeat([]byte{'x'}, 1+e.place*7%5) }

func (m *outboxModel) tick() int { m.now++; return m.now }

// commit makes events pending that one transaction appended, maybe earlier
// than events that are pending already.
func (m *outboxModel) commit(events []modelEvent) {
	m.pending = append(m.pending, events...)
	slices.SortFunc(m.pending, func(a, b modelEvent) int { return a.place - b.place })
}

// claimable is the lane that a claim takes: of those that have work and no lease, the one
// that has been free for longest; 0 if there is none. If only is a lane, claimable returns that lane or 0.
func (m *outboxModel) claimable(only int16) (best int16) {
	for number, lane := range m.lanes {
		waits := slices.ContainsFunc(m.pending, func(e modelEvent) bool { return !e.aside && laneOf(e.aggregate) == number })
		if lane.leased || only >= 0 && only != number || !waits && len(m.due(number)) == 0 {
			continue
		}
		if best == 0 || lane.free < m.lanes[best].free {
			best = number
		}
	}
	return best
}

// due are the blocked aggregates of a lane that may be tried, longest due first.
func (m *outboxModel) due(lane int16) (aggregates []string) {
	for aggregate, block := range m.blocked {
		if block.due > 0 && laneOf(aggregate) == lane {
			aggregates = append(aggregates, aggregate)
		}
	}
	slices.SortFunc(aggregates, func(a, b string) int { return m.blocked[a].due - m.blocked[b].due })
	return aggregates
}

// claim leases a lane to a pass, and ends the blocks that are due and have no deferred event. It
// returns the oldest events of the lane, and marks the events whose aggregate stays blocked. It also
// returns deferred events of blocked aggregates that are due, at most half of batch. Each of the two
// lists ends with the event that uses up bytes.
func (m *outboxModel) claim(number int16, batch, bytes, pass int) (events []string) {
	for _, aggregate := range m.due(number) {
		if m.head(aggregate) < 0 {
			delete(m.blocked, aggregate)
		}
	}
	lane, due := m.lanes[number], m.due(number)
	lane.owner, lane.leased = pass, true
	rows, left := (batch+1)/2, bytes
	retried := make(map[string]string) // attempts, by event
	tried := make(map[string]bool)     // by aggregate
	for _, aggregate := range due[:min(rows, len(due))] {
		for _, e := range m.pending {
			if !e.aside || e.aggregate != aggregate || rows == 0 {
				continue
			}
			rows--
			attempts := m.blocked[aggregate].attempts
			if left > 0 {
				left -= len(e.payload())
				retried[e.String()] = fmt.Sprintf("/%d", attempts)
				tried[aggregate] = attempts == 0
			}
			if attempts > 0 { // alone
				break
			}
		}
	}
	for _, e := range m.pending {
		attempts, isRetry := retried[e.String()]
		switch {
		case isRetry:
			events = append(events, e.String()+attempts)
		case e.aside || laneOf(e.aggregate) != number || batch == 0 || bytes <= 0:
		default:
			mark := ""
			if all := rows > 0 && left > 0; m.blocked[e.aggregate] != nil && !(all && tried[e.aggregate]) {
				mark = "!"
			}
			events = append(events, e.String()+mark)
			batch--
			bytes -= len(e.payload())
		}
	}
	return events
}

// head returns the index of the first deferred event of an aggregate, or -1.
func (m *outboxModel) head(aggregate string) int {
	return slices.IndexFunc(m.pending, func(e modelEvent) bool { return e.aside && e.aggregate == aggregate })
}

// settle records what became of a pass, and returns false, without doing
// anything, when another pass has been given the lane. Uncounted are the failures
// of events that a person has skipped or retried meanwhile.
func (m *outboxModel) settle(p *modelPass) (held bool, uncounted int) {
	lane := m.lanes[p.claim.Lane]
	if lane.owner != p.number {
		return false, 0
	}
	lane.owner, lane.leased, lane.free = 0, false, m.tick()
	m.pending = slices.DeleteFunc(m.pending, func(e modelEvent) bool { return p.fates[e.String()] == acknowledged })
	for i, e := range m.pending {
		if fate := p.fates[e.String()]; fate == refused || fate == behindRefused || fate == wasBlocked {
			m.pending[i].aside = true
		}
	}
	for aggregate, failure := range p.failed {
		if m.blocked[aggregate] == nil {
			m.blocked[aggregate] = &modelBlock{}
		}
		head := m.head(aggregate)
		skipped := head < 0 || m.pending[head].String() != failure.event
		if block := m.blocked[aggregate]; skipped || block.attempts != failure.attempts-1 {
			uncounted++
		} else {
			block.attempts, block.parked, block.due = failure.attempts, failure.park, 0
		}
	}
	for _, aggregate := range p.resumed {
		if m.head(aggregate) < 0 {
			delete(m.blocked, aggregate)
		} else {
			*m.blocked[aggregate] = modelBlock{due: m.tick()}
		}
	}
	return true, uncounted
}

// requeue makes a blocked aggregate due at once, with no attempts counted.
func (m *outboxModel) requeue(aggregate string) {
	if b := m.blocked[aggregate]; b.parked || b.attempts > 0 || b.due == 0 { // else it is due, and keeps its place
		*m.blocked[aggregate] = modelBlock{due: m.tick()}
	}
}

// skip gives up an event, and lets the next one of its aggregate try at once.
func (m *outboxModel) skip(head int) {
	*m.blocked[m.pending[head].aggregate] = modelBlock{due: m.tick()}
	m.pending = slices.Delete(m.pending, head, head+1)
}

// laneOf is the lane of a letter, as newLetters chooses them.
func laneOf(aggregate string) int16 {
	if aggregate >= "a" {
		return 3
	}
	return 5
}

// fate is what became of a claimed event at the broker.
type fate int

const (
	notSent       fate = iota // or sent, and the broker does not have it
	acknowledged              // the broker has it, and said so
	lost                      // the broker has it, and the response was lost
	refused                   // the broker will never take it
	behindRefused             // not sent, because the one before was refused
	wasBlocked                // not sent, because one before was refused in an earlier pass
)

type modelFailure struct {
	event    string
	seq      int64
	attempts int  // with this one
	park     bool // it was the last
}

// modelPass is what a publisher has in hand between claim and settlement.
type modelPass struct {
	number  int
	claim   outbox.Claim
	sent    int                     // how many of the claimed events have a fate
	fates   map[string]fate         // by event
	failed  map[string]modelFailure // aggregates with a refused event
	resumed []string                // aggregates that go on: an acknowledged deferred event, or an unknown one without attempts
	stopped map[string]fate         // aggregates of which nothing more is sent, and why
}
