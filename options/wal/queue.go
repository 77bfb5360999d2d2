package wal

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
)

// The queue is full, and the reader stops reading, at so many events or bytes, or at so many commits: those behind an event that has
// no answer are kept, although they are settled.
const (
	maxQueued  = 20_000
	maxBytes   = 16 << 20
	maxCommits = 1_000_000
)

// queue has the events that were read from the log and are not settled. It is in memory only: what is not confirmed comes again from the
// slot. It also has the leases of the lanes, for the events of the log and of the tables, so that an aggregate is in one pass at a time. It is
// safe for concurrent use.
type queue struct {
	mu        sync.Mutex
	lanes     [outbox.Lanes]lane
	blocked   map[envelope.Aggregate]bool // at least every aggregate with deferred events in the database
	commits   []*commit                   // in the order of the log; the last may be incomplete
	events    int
	bytes     int64
	seq       int64         // of the last event
	token     int64         // of the last claim: negative, as the tokens of the database are positive
	next      int           // the lane that was served longest ago
	fence     int64         // the token of the reader, while the queue is open; else 0
	confirmed pglogrepl.LSN // all before it is settled
	lookAt    time.Time     // when a claim looks for deferred events and snapshots
}

// lane is the events of one lane, in the order of the log.
type lane struct {
	items    []item
	taken    int       // how many the claim has: the first ones
	token    int64     // of the lease; 0: free
	until    time.Time // when the lease ends
	isWanted bool      // the tables have work, which waits for the end of the lease
}

// item is an event from the log.
type item struct {
	outbox.Claimed

	of *commit
}

// commit is a transaction of the log. Its end is confirmed when all its events, and all commits before it, are settled.
type commit struct {
	end  pglogrepl.LSN // 0 until it is complete
	left int           // events that are not settled
}

func (l *lane) isFree(now time.Time) bool { return l.token == 0 || now.After(l.until) }

// forget drops the events and closes the queue: what it gets until it is opened again is behind what is dropped. The leases stay, because
// their holders may still publish.
func (q *queue) forget() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.lanes {
		q.lanes[i].items, q.lanes[i].taken = nil, 0
	}
	q.commits, q.events, q.bytes, q.fence = nil, 0, 0, 0
}

// open lets claims begin, for the reader with a token. All before a position is settled.
func (q *queue) open(token int64, confirmed pglogrepl.LSN, blocked []envelope.Aggregate) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.fence, q.confirmed, q.blocked, q.lookAt = token, confirmed, setOf(blocked), time.Time{}
}

// begin begins a commit.
func (q *queue) begin() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.commits = append(q.commits, &commit{})
}

// add adds an event of the last commit.
func (q *queue) add(m envelope.Message) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.fence == 0 {
		return
	}
	c, l := q.commits[len(q.commits)-1], &q.lanes[outbox.Lane(m.Aggregate())]
	c.left++
	q.seq++
	q.events++
	q.bytes += int64(len(m.Payload))
	l.items = append(l.items, item{outbox.Claimed{Message: m, Seq: q.seq}, c})
}

// end completes the last commit.
func (q *queue) end(at pglogrepl.LSN) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.fence != 0 {
		q.commits[len(q.commits)-1].end = at
		q.confirm()
	}
}

// idle confirms a position of the server, if nothing is in hand: the log before it has no event that was not sent to us.
func (q *queue) idle(at pglogrepl.LSN) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.fence != 0 && len(q.commits) == 0 {
		q.confirmed = max(q.confirmed, at)
	}
}

// confirm confirms the first commits that are complete and settled.
func (q *queue) confirm() {
	n := 0
	for ; n < len(q.commits) && q.commits[n].end != 0 && q.commits[n].left == 0; n++ {
		q.confirmed = max(q.confirmed, q.commits[n].end)
	}
	q.commits = slices.Delete(q.commits, 0, n)
}

// state is what the reader acts on.
type state struct {
	fence     int64
	confirmed pglogrepl.LSN
	isBusy    bool // commits are in hand
	isClaimed bool // a claim has some of their events
	isFull    bool // no more may be read
}

func (q *queue) state() state {
	q.mu.Lock()
	defer q.mu.Unlock()
	isClaimed := slices.ContainsFunc(q.lanes[:], func(l lane) bool { return l.taken > 0 })
	return state{q.fence, q.confirmed, len(q.commits) > 0, isClaimed, q.events >= maxQueued || q.bytes >= maxBytes || len(q.commits) >= maxCommits}
}

// claim leases free lanes with events of the log.
func (q *queue) claim(limits outbox.Limits, now time.Time) (claim outbox.Claim) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var free []int16
	for i := range outbox.Lanes {
		n := (q.next + i) % outbox.Lanes
		l := &q.lanes[n]
		if q.fence != 0 && len(free) < limits.Lanes && len(l.items) > 0 && l.isFree(now) && !l.isWanted {
			free = append(free, int16(n))
		}
	}
	if len(free) == 0 {
		return outbox.Claim{}
	}
	q.token--
	q.next = int(free[len(free)-1]) + 1
	claim.Token = q.token
	share := limits.Share(len(free))
	for _, n := range free {
		l := &q.lanes[n]
		l.token, l.until = q.token, now.Add(limits.Lease)
		claim.Add(n, nil, q.take(l, share), share)
	}
	return claim
}

// take returns the events of a claim.
func (q *queue) take(l *lane, share outbox.Limits) (events []outbox.Claimed) {
	var bytes int64
	for l.taken = 0; l.taken < min(len(l.items), share.Events) && bytes < share.Bytes; l.taken++ {
		e := l.items[l.taken].Claimed
		e.Blocked = q.blocked[e.Aggregate()]
		bytes += int64(len(e.Payload))
		events = append(events, e)
	}
	return events
}

// isDue reports whether a claim must look into the tables. Then others do not, for a while.
func (q *queue) isDue(now time.Time) (due bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if due = q.fence != 0 && !now.Before(q.lookAt); due {
		q.lookAt = now.Add(lookInterval)
	}
	return due
}

// lease leases the lanes of a claim of the tables, for the same time. Those that are leased already it leaves out, and returns: no claim of the
// log takes them before the next look. It also leaves out what is pending for the lanes: that is behind events of the log.
func (q *queue) lease(claim *outbox.Claim, limits outbox.Limits, now time.Time) (busy []outbox.Span) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.lanes {
		q.lanes[i].isWanted = false
	}
	for _, span := range claim.Spans {
		if l := &q.lanes[span.Lane]; l.isFree(now) {
			l.token, l.until, l.taken = claim.Token, now.Add(limits.Lease), 0
		} else {
			l.isWanted, busy = true, append(busy, outbox.Span{Lane: span.Lane})
		}
	}
	claim.Spans = slices.DeleteFunc(claim.Spans, func(s outbox.Span) bool { return q.lanes[s.Lane].isWanted })
	claim.Events = slices.DeleteFunc(claim.Events, func(e outbox.Claimed) bool {
		return q.lanes[outbox.Lane(e.Aggregate())].isWanted || !e.Deferred && e.Repeat == ""
	})
	for i := range claim.Events { // a snapshot has no order with the log: deferred, it could be below the head of the block
		claim.Events[i].Behind = false
	}
	return busy
}

// release releases the lanes of a claim of the tables. Their blocked aggregates are as they were read while the lanes were leased, unless the
// fence has changed. There may be more work.
func (q *queue) release(claim outbox.Lease, blocked []envelope.Aggregate, fence int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	released := make(map[int16]bool)
	for _, span := range claim.Spans {
		if l := &q.lanes[span.Lane]; l.token == claim.Token {
			l.token, released[span.Lane] = 0, q.fence == fence
		}
	}
	maps.DeleteFunc(q.blocked, func(a envelope.Aggregate, _ bool) bool { return released[outbox.Lane(a)] })
	for _, a := range blocked {
		if released[outbox.Lane(a)] {
			q.blocked[a] = true
		}
	}
	q.lookAt = time.Now()
	if q.events > 0 {
		q.lookAt = q.lookAt.Add(statusPause) // events of the log get a turn, however much is deferred
	}
}

// aside is an event that is to be deferred, with its refusal if it was refused.
type aside struct {
	envelope.Message
	outbox.Refusal
}

// asides returns the events of a settlement that are to be deferred, in the order of the log, and the fence. Lanes that were lost have none.
func (q *queue) asides(s outbox.Settlement) (events []aside, fence int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	refused, deferred := make(map[int64]outbox.Refusal), setOf(s.Defer)
	for _, r := range s.Refused {
		refused[r.Seq] = r
	}
	for _, span := range s.Spans {
		l := &q.lanes[span.Lane]
		for _, it := range l.items[:l.taken] {
			if l.token == s.Token && deferred[it.Seq] {
				events = append(events, aside{it.Message, refused[it.Seq]})
			}
		}
	}
	return events, q.fence
}

// settle removes settled events of the log and releases their lanes. held is false if a lane was lost.
func (q *queue) settle(s outbox.Settlement) (held bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	published, deferred := setOf(s.Published), setOf(s.Defer)
	held = true
	for _, span := range s.Spans {
		l := &q.lanes[span.Lane]
		if l.token != s.Token {
			held = false
			continue
		}
		kept := slices.DeleteFunc(l.items[:l.taken], func(it item) bool {
			if !published[it.Seq] && !deferred[it.Seq] {
				return false
			}
			if deferred[it.Seq] {
				q.blocked[it.Aggregate()], q.lookAt = true, time.Time{}
			}
			it.of.left--
			q.events--
			q.bytes -= int64(len(it.Payload))
			return true
		})
		l.items = slices.Delete(l.items, len(kept), l.taken) // the others stay at the front
		l.token, l.taken = 0, 0
		if l.isWanted {
			q.lookAt = time.Time{}
		}
	}
	q.confirm()
	return held
}

func setOf[T comparable](list []T) map[T]bool {
	set := make(map[T]bool, len(list))
	for _, v := range list {
		set[v] = true
	}
	return set
}
