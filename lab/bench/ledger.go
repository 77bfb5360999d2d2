package main

import (
	"encoding/binary"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// headerSize is the size in bytes of the aggregate and the version at the start of each payload. Peers need not decode
// them.
const headerSize = 16

// workload is a sequence of events in the order of their commits.
type workload struct {
	aggregates, versions []int64
	perAggregate         []int // number of events of each aggregate
	size                 int   // size of a payload in bytes
}

func (w workload) len() int { return len(w.aggregates) }

// payload returns the payload of event i.
func (w workload) payload(i int) []byte {
	p := make([]byte, w.size)
	binary.BigEndian.PutUint64(p, uint64(w.aggregates[i]))   //nolint:gosec // not negative
	binary.BigEndian.PutUint64(p[8:], uint64(w.versions[i])) //nolint:gosec // not negative
	copy(p[headerSize:], filler[i%fillerSpread:])
	return p
}

const (
	maxPayload   = 100_000
	fillerSpread = 4096
)

// filler is random, so that PostgreSQL cannot compress it, and the same in every run.
var filler = func() []byte {
	b := make([]byte, maxPayload+fillerSpread)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b) // it never returns an error
	return b
}()

// inTurns returns events of aggregates that take turns.
func inTurns(events, aggregates, size int) workload {
	return makeWorkload(events, aggregates, size, func(i int) int { return i % aggregates })
}

// uniform returns events of random aggregates. Events of one aggregate may be close together, so that a publisher that
// does not keep their order is found.
func uniform(events, aggregates, size int) workload {
	lots := rand.New(rand.NewPCG(3, 4))
	return makeWorkload(events, aggregates, size, func(int) int { return lots.IntN(aggregates) })
}

func makeWorkload(events, aggregates, size int, pick func(i int) int) workload {
	w := workload{
		aggregates: make([]int64, events), versions: make([]int64, events),
		perAggregate: make([]int, aggregates), size: max(size, headerSize),
	}
	for i := range events {
		a := pick(i)
		w.perAggregate[a]++
		w.aggregates[i], w.versions[i] = int64(a), int64(w.perAggregate[a])
	}
	return w
}

// ledger records which events were sent, and in which order. It is safe for concurrent use.
type ledger struct {
	first []int // index of the first event of each aggregate
	sent  []atomic.Int64
	last  []atomic.Int64 // newest version sent of each aggregate

	distinct, duplicates, disorder atomic.Int64
	done                           chan struct{} // closed when every event was sent
}

func newLedger(w workload) *ledger {
	l := &ledger{
		first: make([]int, len(w.perAggregate)), sent: make([]atomic.Int64, w.len()),
		last: make([]atomic.Int64, len(w.perAggregate)), done: make(chan struct{}),
	}
	next := 0
	for a, n := range w.perAggregate {
		l.first[a] = next
		next += n
	}
	return l
}

// see records that an event is being sent.
func (l *ledger) see(payload []byte) {
	aggregate, version := header(payload)
	if !l.sent[l.first[aggregate]+int(version)-1].CompareAndSwap(0, time.Now().UnixNano()) {
		l.duplicates.Add(1)
		return
	}
	for last := l.last[aggregate].Load(); ; last = l.last[aggregate].Load() {
		if version < last {
			l.disorder.Add(1) // a newer event was delivered first
			break
		}
		if l.last[aggregate].CompareAndSwap(last, version) {
			break
		}
	}
	if l.distinct.Add(1) == int64(len(l.sent)) {
		close(l.done)
	}
}

// sentAt returns when an event was first sent, or the zero time.
func (l *ledger) sentAt(aggregate, version int64) time.Time {
	if at := l.sent[l.first[aggregate]+int(version)-1].Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

func header(payload []byte) (aggregate, version int64) {
	return int64(binary.BigEndian.Uint64(payload)), int64(binary.BigEndian.Uint64(payload[8:])) //nolint:gosec // as written by payload
}
