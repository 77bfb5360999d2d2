package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"
)

// defect is a mistake in a service.
type defect string

// The defects, each named after a typical mistake.
const (
	none                defect = "none"
	noFence             defect = "goes on after its lease, and settles without the fence"
	claimByRow          defect = "claims rows, not lanes"
	settleBeforePublish defect = "settles before it publishes"
	dropsEvent          defect = "takes an unanswered event for published"
	reversesBatch       defect = "publishes a batch backwards"
	retriesOnSuccess    defect = "publishes what was answered again"
	ackBeforeCommit     defect = "acknowledges before the commit"
	noVersionGuard      defect = "projects without looking at the version"
	forgetsEvent        defect = "changes a row without an event"
	losesRow            defect = "appends an event and rolls the row back"
	answersTooEarly     defect = "answers before the commit"
	createsTwice        defect = "does not know request ids"
	failsAfterCommit    defect = "answers a failure after the commit"
	answersOldState     defect = "answers what it has not written"
	ignoresEtag         defect = "ignores the etag"
	changesPayload      defect = "publishes other bytes than were committed"
	inventsMessage      defect = "publishes what was never committed"
	ignoresLease        defect = "claims a lane that is leased"
	showsOldEntry       defect = "does not wait for the version that it is asked for"
	showsOtherEntry     defect = "shows what no event says"
	resumesTooLate      defect = "resumes a watch behind changes that were not sent"
	resumesTooEarly     defect = "resumes a watch with changes that newer ones have replaced"
)

// sim simulates a small service with its own clock, and crashes drawn from a
// seed. It has clients, publishers on two lanes, a broker that keeps the order,
// and a projector. It records a History.
type sim struct {
	defect     defect
	r          *rand.Rand
	now        time.Time
	h          *History
	rows       map[uuid.UUID]*EventRow // newest event of each video
	order      []uuid.UUID             // ids of the videos
	pending    []*simPending
	lanes      [2]simLane
	publishers [3]simPublisher
	queue      []Sighting // not yet acknowledged by the projector
	late       []Sighting // acknowledged, but delivered again at the end
	projected  map[uuid.UUID]*EventRow
	events     map[uuid.UUID]*EventRow
	changes    []*EventRow // changes of the projection, in order
	copies     [2]*Copy
	told       [2]int // number of changes that each watcher received
	quiet      bool   // no more faults
}

type simPending struct {
	event  *EventRow
	lane   int
	locked time.Time // for claimByRow: locked until then
}

type simLane struct {
	token  int
	until  time.Time
	holder *simPublisher // publisher with the last claim
	held   bool          // the last claim is not settled
}

type simPublisher struct {
	rows   []*simPending // claimed events; nil: none
	sent   int           // number of rows that were sent
	lane   int
	token  int
	late   time.Time // deadline of the pass
	frozen time.Time
}

const (
	simLease = 600 * time.Millisecond
	simBatch = 5
	simTick  = 10 * time.Millisecond
)

// simulate runs a service until everything is processed, or should be.
func simulate(d defect, seed uint64) *History {
	s := &sim{
		defect: d, r: rand.New(rand.NewPCG(seed, 0)), now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		h: &History{
			Publications: map[string]time.Time{}, Limits: Limits{Lease: simLease, Takeover: simLease + time.Second, FirstResult: time.Second},
			Database: Database{Projection: map[uuid.UUID]string{}, Catalog: map[uuid.UUID]Entry{}, Inbox: map[uuid.UUID]bool{}, Outbox: map[uuid.UUID]bool{}},
		},
		copies: [2]*Copy{newCopy("w1"), newCopy("w2")},
		rows:   map[uuid.UUID]*EventRow{}, projected: map[uuid.UUID]*EventRow{}, events: map[uuid.UUID]*EventRow{},
	}
	for tick := range 3000 {
		if s.quiet = tick > 1000; s.quiet {
			s.queue, s.late = append(s.queue, s.late...), nil
		}
		if tick < 1000 && s.r.IntN(2) == 0 {
			s.command(int64(tick) + 1)
		}
		for i := range s.publishers {
			s.publish(&s.publishers[i])
		}
		s.project()
		s.read(int64(tick))
		for i := range s.copies {
			s.watch(i)
		}
		s.now = s.now.Add(simTick)
	}
	for _, id := range s.order {
		e := s.rows[id]
		s.h.Database.Videos = append(s.h.Database.Videos, VideoRow{ID: id, Version: e.Version, State: e.State, Catalog: fmt.Sprint(e.State)})
	}
	for id, e := range s.projected {
		s.h.Database.Projection[id] = fmt.Sprint(e.State)
		s.h.Database.Catalog[id] = Entry{e.Version, e.Entry}
	}
	s.h.Copies = s.copies[:]
	for _, e := range s.events {
		s.h.Database.Outbox[e.ID] = true
		s.h.Database.Events = append(s.h.Database.Events, *e)
	}
	s.h.Database.Pending = len(s.pending)
	return s.h
}

func (s *sim) id() (id uuid.UUID) {
	for i := range id {
		id[i] = byte(s.r.IntN(256))
	}
	return id
}

// sometimes returns true once in n calls if the service has this defect.
// Otherwise it returns false.
func (s *sim) sometimes(d defect, n int) bool { return s.defect == d && s.r.IntN(n) == 0 }

func (s *sim) command(number int64) {
	video, version, typ := s.id(), int64(1), typeCreated
	if len(s.order) > 0 && s.r.IntN(10) > 0 {
		video, typ = s.order[s.r.IntN(len(s.order))], typeUpdated
		version = s.rows[video].Version + 1
	}
	kind := map[string]string{typeCreated: kindCreate, typeUpdated: kindUpdate}[typ]
	answer := Answer{Command: number, Kind: kind, Outcome: Acknowledged, Video: video, Version: version}
	if version > 1 && s.r.IntN(3) == 0 {
		answer.Expected = version - 1
		if s.sometimes(ignoresEtag, 10) {
			answer.Expected--
		}
	}
	if s.r.IntN(50) == 0 { // the command is refused
		s.h.Answers = append(s.h.Answers, Answer{Command: number, Kind: kind, Outcome: Failed, Video: video})
		if s.defect != failsAfterCommit {
			return
		}
	}
	write := func(video uuid.UUID) *EventRow {
		state := digest(fmt.Sprint(video, version, number))
		e := &EventRow{ID: s.id(), Video: video, Version: version, Type: typ, Content: digest(fmt.Sprint(state)), State: state, Command: number, OccurredAt: s.now}
		e.Entry = digest(fmt.Sprint("entry", state))
		if s.rows[video] == nil {
			s.order = append(s.order, video)
		}
		if !s.sometimes(losesRow, 20) {
			s.rows[video] = e
		} else if version == 1 {
			s.order = s.order[:len(s.order)-1]
		}
		if !s.sometimes(forgetsEvent, 20) {
			s.events[e.ID] = e
			s.pending = append(s.pending, &simPending{event: e, lane: int(video[0] % 2)})
		}
		return e
	}
	if s.sometimes(answersTooEarly, 20) {
		answer.State = digest("never written")
		s.h.Answers = append(s.h.Answers, answer)
		return
	}
	e := write(video)
	answer.State = e.State
	if s.sometimes(answersOldState, 20) {
		answer.State++
	}
	if typ == typeCreated && s.defect == createsTwice {
		answer.Video = s.id() // a retry succeeded
		answer.State = write(answer.Video).State
	}
	if len(s.h.Answers) == 0 || s.h.Answers[len(s.h.Answers)-1].Command != number {
		s.h.Answers = append(s.h.Answers, answer)
	}
}

// publish runs one step of a publisher, or a fault.
func (s *sim) publish(p *simPublisher) {
	fault := FaultRecord{Struck: s.now, Ended: s.now, MayRepeat: p.sent}
	switch {
	case s.now.Before(p.frozen) || s.r.IntN(3) == 0: // other publishers are faster
	case !s.quiet && s.r.IntN(200) == 0:
		fault.Kind = "kill"
		s.h.Faults = append(s.h.Faults, fault)
		p.rows, p.sent = nil, 0
	case !s.quiet && p.sent > 0 && s.r.IntN(60) == 0:
		p.frozen = s.now.Add(2 * simLease)
		fault.Kind, fault.Ended = "freeze", p.frozen
		s.h.Faults = append(s.h.Faults, fault)
	case p.rows == nil:
		s.claim(p)
	case p.sent < len(p.rows) && (s.now.Before(p.late) || s.defect == noFence):
		s.send(p)
	default:
		s.settle(p)
	}
}

func (s *sim) claim(p *simPublisher) {
	p.sent, p.late = 0, s.now.Add(simLease/2)
	if s.defect == claimByRow {
		for _, row := range s.pending {
			if row.locked.Before(s.now) && len(p.rows) < simBatch {
				row.locked = s.now.Add(simLease)
				p.rows = append(p.rows, row)
			}
		}
		return
	}
	first := s.r.IntN(len(s.lanes))
	for i := range s.lanes {
		p.lane = (first + i) % len(s.lanes)
		l := &s.lanes[p.lane]
		leased := !l.until.Before(s.now)
		if leased && !s.sometimes(ignoresLease, 20) {
			continue
		}
		for _, row := range s.pending {
			if row.lane == p.lane && len(p.rows) < simBatch {
				p.rows = append(p.rows, row)
			}
		}
		if len(p.rows) == 0 {
			continue
		}
		l.token++
		p.token, l.until = l.token, s.now.Add(simLease)
		if leased && l.held {
			s.h.Trespasses = append(s.h.Trespasses, Trespass{At: s.now, Lane: p.lane, What: trespassTaken})
		}
		l.holder, l.held = p, true
		if s.defect == reversesBatch {
			slices.Reverse(p.rows)
		}
		if s.defect == settleBeforePublish {
			s.remove(p.rows)
		}
		return
	}
}

func (s *sim) send(p *simPublisher) {
	e := p.rows[p.sent].event
	p.sent++
	if s.sometimes(dropsEvent, 20) {
		return
	}
	for range 1 + s.r.IntN(2)*btoi(s.defect == retriesOnSuccess) {
		m := Sighting{MessageID: fmt.Sprint(len(s.h.Publications) + 1), Event: e.ID, Video: e.Video, Version: e.Version, Content: e.Content}
		if s.sometimes(changesPayload, 20) {
			m.Content++
		}
		if s.sometimes(inventsMessage, 20) {
			m.Event = s.id()
		}
		s.h.Publications[m.MessageID] = s.now
		s.h.Sightings = append(s.h.Sightings, m)
		s.queue = append(s.queue, m)
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (s *sim) settle(p *simPublisher) {
	done := p.rows[:p.sent]
	p.rows, p.sent = nil, 0
	if s.defect == claimByRow {
		s.remove(done)
		return
	}
	l := &s.lanes[p.lane]
	if l.token != p.token && s.defect != noFence {
		return
	}
	if l.holder != p || !l.held {
		s.h.Trespasses = append(s.h.Trespasses, Trespass{At: s.now, Lane: p.lane, What: trespassSettled})
	}
	l.held = false
	l.token++
	l.until = s.now.Add(-time.Nanosecond)
	s.remove(done)
}

func (s *sim) remove(rows []*simPending) {
	s.pending = slices.DeleteFunc(s.pending, func(row *simPending) bool { return slices.Contains(rows, row) })
}

// project runs one step of the projector. It handles the oldest message, which
// may be delivered again later.
func (s *sim) project() {
	if len(s.queue) == 0 {
		return
	}
	m := s.queue[0]
	crash := !s.quiet && s.r.IntN(20) == 0
	if crash && s.defect == ackBeforeCommit {
		s.queue = s.queue[1:]
		return
	}
	if e := s.events[m.Event]; e != nil {
		newest := s.projected[m.Video]
		if s.defect == noVersionGuard || !s.h.Database.Inbox[m.Event] && (newest == nil || newest.Version < m.Version) {
			s.projected[m.Video] = e
			s.changes = append(s.changes, e)
		}
		s.h.Database.Inbox[m.Event] = true
	}
	if crash {
		return // committed but not acknowledged: it is delivered again
	}
	s.queue = s.queue[1:]
	if !s.quiet && s.r.IntN(10) == 0 { // the broker may deliver twice, and late
		s.late = append(s.late, m)
		s.h.Sightings = append(s.h.Sightings, m)
	}
}

// read is a client that reads a version from the catalog, and waits for it.
func (s *sim) read(command int64) {
	if len(s.order) == 0 || s.r.IntN(10) > 0 {
		return
	}
	video := s.order[s.r.IntN(len(s.order))]
	asked := max(1, s.rows[video].Version-int64(s.r.IntN(2)))
	e := s.projected[video]
	if e == nil || e.Version < asked && s.defect != showsOldEntry {
		return // it still waits
	}
	shown := Entry{e.Version, e.Entry}
	if s.sometimes(showsOtherEntry, 10) {
		shown.Content++
	}
	s.h.Reads = append(s.h.Reads, Read{Command: command, Video: video, Asked: asked, Shown: shown})
}

// watch sends the next change to a watcher, or breaks its stream.
func (s *sim) watch(i int) {
	c := s.copies[i]
	switch next := s.told[i]; {
	case !s.quiet && s.r.IntN(20) == 0:
		c.Breaks++
		if s.defect == resumesTooLate {
			s.told[i] = len(s.changes)
		}
		if s.defect == resumesTooEarly {
			s.told[i] = max(0, next-20)
		}
	case next < len(s.changes) && (s.quiet || s.r.IntN(3) == 0):
		e := s.changes[next]
		c.updated(e.Video, Entry{e.Version, e.Entry})
		s.told[i]++
	}
}
