package pg_test

import (
	"bytes"
	"cmp"
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

// claimable are the lanes that a claim of at most limit takes: of those that have work and no lease, the ones
// that have been free for longest. Of lanes that are free for equally long, those in taken come first.
func (m *outboxModel) claimable(limit int, taken []int16) (free []int16) {
	for number, lane := range m.lanes {
		waits := slices.ContainsFunc(m.pending, func(e modelEvent) bool { return !e.aside && laneOf(e.aggregate) == number })
		if !lane.leased && (waits || len(m.due(number)) > 0) {
			free = append(free, number)
		}
	}
	slices.SortFunc(free, func(a, b int16) int {
		return cmp.Or(m.lanes[a].free-m.lanes[b].free, slices.Index(taken, b)-slices.Index(taken, a), int(a-b))
	})
	free = free[:min(limit, len(free))]
	slices.Sort(free)
	return free
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

// claim leases lanes to a pass, and returns their events in the order of their appends. Each lane has
// an equal share of the events and bytes. Full means that a lane has used up its share.
func (m *outboxModel) claim(numbers []int16, batch, bytes, pass int) (names []string, full bool) {
	marks := make(map[string]string)
	for _, number := range numbers {
		full = m.claimOf(number, max(1, batch/len(numbers)), max(1, bytes/len(numbers)), pass, marks) || full
	}
	for _, e := range m.pending {
		if mark, claimed := marks[e.String()]; claimed {
			names = append(names, e.String()+mark)
		}
	}
	return names, full
}

// claimOf leases a lane to a pass, and ends the blocks that are due and have no deferred event. It
// chooses the oldest events of the lane, and marks the events whose aggregate stays blocked. It also
// chooses deferred events of blocked aggregates that are due, at most half of batch, and marks them with their
// attempts. Each of the two lists ends with the event that uses up bytes. claimOf reports whether one of them
// has as much as it may have.
func (m *outboxModel) claimOf(number int16, batch, bytes, pass int, marks map[string]string) (full bool) {
	for _, aggregate := range m.due(number) {
		if m.head(aggregate) < 0 {
			delete(m.blocked, aggregate)
		}
	}
	lane, due := m.lanes[number], m.due(number)
	lane.owner, lane.leased = pass, true
	rows, left := (batch+1)/2, bytes
	tried := make(map[string]bool) // by aggregate
	for _, aggregate := range due[:min(rows, len(due))] {
		for _, e := range m.pending {
			if !e.aside || e.aggregate != aggregate || rows == 0 {
				continue
			}
			rows--
			attempts := m.blocked[aggregate].attempts
			if left > 0 {
				left -= len(e.payload())
				marks[e.String()] = fmt.Sprintf("/%d", attempts)
				tried[aggregate] = attempts == 0
			}
			if attempts > 0 { // alone
				break
			}
		}
	}
	all := rows > 0 && left > 0
	for _, e := range m.pending {
		if e.aside || laneOf(e.aggregate) != number || batch == 0 || bytes <= 0 {
			continue
		}
		marks[e.String()] = when(m.blocked[e.aggregate] != nil && !(all && tried[e.aggregate]), "!")
		batch--
		bytes -= len(e.payload())
	}
	return !all || batch == 0 || bytes <= 0
}

// head returns the index of the first deferred event of an aggregate, or -1.
func (m *outboxModel) head(aggregate string) int {
	return slices.IndexFunc(m.pending, func(e modelEvent) bool { return e.aside && e.aggregate == aggregate })
}

// settle records what became of a pass in the lanes that no other pass has been given, and returns these.
// In the other lanes it changes nothing. Uncounted are the failures of events that a person has skipped or
// retried meanwhile.
func (m *outboxModel) settle(p *modelPass) (held []int16, uncounted int) {
	now := m.tick()
	for _, span := range p.claim.Spans {
		if lane := m.lanes[span.Lane]; lane.owner == p.number {
			lane.owner, lane.leased, lane.free = 0, false, now
			held = append(held, span.Lane)
		}
	}
	lost := func(aggregate string) bool { return !slices.Contains(held, laneOf(aggregate)) }
	m.pending = slices.DeleteFunc(m.pending, func(e modelEvent) bool { return !lost(e.aggregate) && p.fates[e.String()] == acknowledged })
	for i, e := range m.pending {
		if lost(e.aggregate) {
			continue
		}
		if fate := p.fates[e.String()]; fate == refused || fate == behindRefused || fate == wasBlocked {
			m.pending[i].aside = true
		}
	}
	for aggregate, failure := range p.failed {
		if lost(aggregate) {
			continue
		}
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
		switch {
		case lost(aggregate):
		case m.head(aggregate) < 0:
			delete(m.blocked, aggregate)
		default:
			*m.blocked[aggregate] = modelBlock{due: m.tick()}
		}
	}
	return held, uncounted
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
