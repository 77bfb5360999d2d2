package pg_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg/pgtest"
)

// outboxMachine drives PostgreSQL and the model with the same steps.
type outboxMachine struct {
	*letters
	model  outboxModel
	passes map[int]*modelPass // in hand, by publisher
	last   int                // number of the last pass
	place  int                // of the last append

	writers  map[int]pgx.Tx // open transactions, and what is in them
	appended map[int][]modelEvent
	owner    map[string]int   // the writer that holds an aggregate's lock
	version  map[string]int64 // the newest committed one of an aggregate

	broker  []string        // what it has, in the order it came
	again   map[string]int  // how many more times an event may come, because a pass sent it and did not settle it
	skipped map[string]bool // given up by an operator
	tally   map[string]int  // what has happened, over all sequences
}

const (
	modelAggregates = "abcDE"
	modelWriters    = 3
	modelPublishers = 3
	oldDay          = -3 // has a partition of its own, until maintenance drops it
)

// Writers, publishers and operators act in any order, and publishers crash, or lose
// leases, of all their lanes or of some, and results. The outbox always does what the model does. In the end no event
// is left, and every event has been published at least once. The first publications
// of an aggregate's events are in order. No event is published twice without one of
// these reasons.
//
// -rapid.checks=10000 makes a longer run, and -rapid.steps=200 longer sequences. A
// failure prints its steps, as few as possible, and the flag that repeats it.
func TestOutboxBehavesLikeItsModel(t *testing.T) {
	t.Parallel()
	l := newLetters(t, modelWriters+2)
	// With statistics, queries have the plans of production.
	_, err := l.pool.Exec(t.Context(), "ANALYZE")
	must(t, err)
	tally := make(map[string]int)
	rapid.Check(t, func(t *rapid.T) {
		m := newOutboxMachine(t, l, tally)
		defer m.rollbackAll()
		steps := map[string]func(*rapid.T){
			"append":     m.appendSome,
			"end":        m.endTransaction,
			"claim":      m.claimSome,
			"publish":    m.publishSome,
			"settle":     m.settlePass,
			"pass":       m.wholePass,
			"crash":      m.crash,
			"lease ends": m.endLease,
			"due":        m.becomeDue,
			"requeue":    m.requeueOne,
			"skip":       m.skipOne,
			"maintain":   m.maintainOnce,
			"floors":     m.raiseFloors,

			"skip what is in flight":        m.skipInFlight,
			"crash after the claim":         m.crashAfterClaim,
			"floor between claim and end":   m.floorInPass,
			"one lane of a pass is lost":    m.loseLane,
			"steady writes behind a poison": m.writeBehindPoison,

			"": m.compare,
		}
		t.Repeat(steps)
		t.Repeat(steps) // some defects take more than the 30 steps of one
		m.drain(t)
		m.checkBroker(t)
	})
	t.Log(tally)
}

func newOutboxMachine(t *rapid.T, l *letters, tally map[string]int) *outboxMachine {
	m := &outboxMachine{
		letters: l, tally: tally,
		model: outboxModel{
			blocked: make(map[string]*modelBlock),
			lanes:   map[int16]*modelLane{laneOf("a"): {free: -2}, laneOf("A"): {free: -1}},
		},
		passes: make(map[int]*modelPass), writers: make(map[int]pgx.Tx), appended: make(map[int][]modelEvent),
		owner: make(map[string]int), version: make(map[string]int64), again: make(map[string]int), skipped: make(map[string]bool),
	}
	m.exec(t, `
		DELETE FROM video_catalog.outbox_pending;
		DELETE FROM video_catalog.outbox_deferred;
		DELETE FROM video_catalog.outbox_skipped;
		DELETE FROM video_catalog.outbox_blocked;
		DELETE FROM video_catalog.outbox;
		UPDATE video_catalog.outbox_lanes SET leased_until = to_timestamp(lane), floor_seq = 0, mark_seq = 0, mark_xid = '0', settled_seq = 0;
		DO $$ DECLARE day date := (now() AT TIME ZONE 'UTC')::date + (`+fmt.Sprint(oldDay)+`); BEGIN
			IF to_regclass(format('video_catalog.outbox_p%s', to_char(day, 'YYYYMMDD'))) IS NULL THEN
				EXECUTE format('CREATE TABLE video_catalog.outbox_p%s PARTITION OF video_catalog.outbox FOR VALUES FROM (%L) TO (%L)',
					to_char(day, 'YYYYMMDD'), video_catalog.uuid7_floor(day::timestamp AT TIME ZONE 'UTC'), video_catalog.uuid7_floor((day + 1)::timestamp AT TIME ZONE 'UTC'));
			END IF;
		END $$`)
	return m
}

func (m *outboxMachine) exec(t *rapid.T, sql string, args ...any) {
	t.Helper()
	if _, err := m.pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// pick draws one of some values; without any the step is not possible now.
func pick[V any](t *rapid.T, label string, from []V) V {
	if len(from) == 0 {
		t.Skip("there is none")
	}
	return rapid.SampledFrom(from).Draw(t, label)
}

// appendSome appends some events in the transaction of a writer, each perhaps
// with an id of a past day, and perhaps commits at once.
func (m *outboxMachine) appendSome(t *rapid.T) {
	writer := rapid.IntRange(1, modelWriters).Draw(t, "writer")
	if m.writers[writer] == nil {
		tx, err := m.pool.Begin(t.Context())
		mustDo(t, err)
		m.writers[writer] = tx
	}
	for range rapid.IntRange(1, 4).Draw(t, "events") {
		aggregate := string(rapid.SampledFrom([]byte(modelAggregates)).Draw(t, "aggregate"))
		if owner := m.owner[aggregate]; owner != 0 && owner != writer {
			continue // it would wait for the lock of the aggregate
		}
		m.owner[aggregate] = writer
		m.place++
		e := modelEvent{place: m.place, aggregate: aggregate, version: m.version[aggregate] + 1}
		for _, before := range m.appended[writer] {
			if before.aggregate == aggregate {
				e.version = before.version + 1
			}
		}
		id := newID(m.t)
		if rapid.IntRange(0, 9).Draw(t, "of a past day") == 9 && m.hasOldDay(t) {
			copy(id[:6], m.oldID(t))
		}
		pgtest.Append(m.t, m.writers[writer], envelope.Message{
			ID: id, AggregateType: "letter", AggregateID: m.ids[aggregate], Type: "LetterWritten", Version: e.version, Payload: e.payload(), OccurredAt: epoch,
		})
		m.appended[writer] = append(m.appended[writer], e)
	}
	if rapid.Bool().Draw(t, "commit at once") {
		m.end(t, writer, true)
	}
}

func (m *outboxMachine) hasOldDay(t *rapid.T) (has bool) {
	const sql = "SELECT to_regclass('video_catalog.outbox_p' || to_char((now() AT TIME ZONE 'UTC')::date + $1::int, 'YYYYMMDD')) IS NOT NULL"
	mustDo(t, m.pool.QueryRow(t.Context(), sql, oldDay).Scan(&has))
	return has
}

// oldID returns the time bytes of an id in the middle of the old day.
func (m *outboxMachine) oldID(t *rapid.T) []byte {
	const sql = "SELECT video_catalog.uuid7_floor(((now() AT TIME ZONE 'UTC')::date + $1::int)::timestamp AT TIME ZONE 'UTC' + interval '12 hours')"
	var id uuid.UUID
	mustDo(t, m.pool.QueryRow(t.Context(), sql, oldDay).Scan(&id))
	return id[:6]
}

// endTransaction commits or rolls back.
func (m *outboxMachine) endTransaction(t *rapid.T) {
	writer := pick(t, "writer", slices.Sorted(maps.Keys(m.writers)))
	m.end(t, writer, rapid.IntRange(0, 3).Draw(t, "roll back if 0") > 0)
}

func (m *outboxMachine) end(t *rapid.T, writer int, commit bool) {
	tx := m.writers[writer]
	finish := tx.Rollback
	if commit {
		finish = tx.Commit
		m.model.commit(m.appended[writer])
		for _, e := range m.appended[writer] {
			m.version[e.aggregate] = e.version
		}
	}
	mustDo(t, finish(t.Context()))
	delete(m.writers, writer)
	delete(m.appended, writer)
	maps.DeleteFunc(m.owner, func(_ string, owner int) bool { return owner == writer })
}

// rollbackAll lets go of the connections, also after a failure.
func (m *outboxMachine) rollbackAll() {
	for _, tx := range m.writers {
		_ = tx.Rollback(context.WithoutCancel(m.t.Context()))
	}
}

// claimSome lets a publisher that has nothing in hand claim.
func (m *outboxMachine) claimSome(t *rapid.T) {
	m.claimBatch(t, m.pickIdle(t), drawLanes(t), rapid.IntRange(1, 8).Draw(t, "batch"), drawBytes(t))
}

// drawLanes draws how many lanes a claim may have.
func drawLanes(t *rapid.T) int {
	return rapid.SampledFrom([]int{1, outbox.Lanes}).Draw(t, "lanes")
}

// drawBytes draws how many bytes a claim may have: mostly more than there are.
func drawBytes(t *rapid.T) int {
	return rapid.SampledFrom([]int{1 << 20, 1 << 20, 1, 3, 6}).Draw(t, "bytes")
}

// wholePass makes a pass without other steps in between, except perhaps a
// person who requeues or skips an event that is being refused.
func (m *outboxMachine) wholePass(t *rapid.T) {
	publisher := m.pickIdle(t)
	if m.claimBatch(t, publisher, drawLanes(t), rapid.IntRange(1, 8).Draw(t, "batch"), drawBytes(t)) {
		p := m.passes[publisher]
		m.publish(t, p, len(p.claim.Events))
		for _, aggregate := range slices.Sorted(maps.Keys(p.failed)) {
			if m.model.blocked[aggregate] == nil {
				continue
			}
			switch rapid.SampledFrom([]string{"", "", "requeue", "skip"}).Draw(t, "person") {
			case "requeue":
				m.requeueOf(t, aggregate)
			case "skip":
				m.skipOf(t, aggregate)
			}
		}
		m.settleOf(t, publisher)
	}
}

func (m *outboxMachine) pickIdle(t *rapid.T) int {
	var idle []int
	for publisher := range modelPublishers {
		if m.passes[publisher] == nil {
			idle = append(idle, publisher)
		}
	}
	return pick(t, "publisher", idle)
}

// claimBatch claims, compares the claim with the model's, and reports whether
// there was a claim.
func (m *outboxMachine) claimBatch(t *rapid.T, publisher, lanes, batch, bytes int) bool {
	claim, err := m.ClaimEvents(t.Context(), outbox.Limits{Lanes: lanes, Events: batch, Bytes: int64(bytes), Lease: hour})
	mustDo(t, err)
	var leased []int16
	for _, span := range claim.Spans {
		leased = append(leased, span.Lane)
	}
	slices.Sort(leased)
	if want := m.model.claimable(lanes, leased); !slices.Equal(leased, want) {
		t.Fatalf("claimed %q of lanes %d, want lanes %d", m.namesOf(claim), leased, want)
	}
	if claim.Token == 0 || len(leased) == 0 {
		if claim.Token != 0 || len(leased)+len(claim.Events) > 0 || claim.Full {
			t.Fatalf("claimed %+v, want a token with lanes, or nothing at all", claim)
		}
		return false
	}
	m.last++
	events, full := m.model.claim(leased, batch, bytes, m.last)
	if got, want := m.namesOf(claim), strings.Join(events, " "); got != want || claim.Full != full {
		t.Fatalf("claimed %q, full %t, want %q, %t", got, claim.Full, want, full)
	}
	if diff := m.differInLanes(claim); diff != "" {
		t.Fatalf("lanes of the claim (-want +got):\n%s", diff)
	}
	if len(leased) > 1 {
		m.tally["claims of several lanes"]++
	}
	if diff := m.differ(claim); diff != "" {
		t.Fatalf("claimed events (-appended +claimed):\n%s", diff)
	}
	m.passes[publisher] = &modelPass{
		number: m.last, claim: claim,
		fates: make(map[string]fate), failed: make(map[string]modelFailure), stopped: make(map[string]fate),
	}
	return true
}

// differInLanes returns the difference between the lanes of a claim and those that its events have.
func (m *outboxMachine) differInLanes(claim outbox.Claim) string {
	want := make(map[int16]outbox.Span)
	for _, span := range claim.Spans {
		want[span.Lane] = outbox.Span{Lane: span.Lane}
	}
	for _, e := range claim.Events {
		if e.Deferred {
			continue
		}
		span := want[laneOf(m.names[e.AggregateID])]
		if span.Tail = e.Seq; span.Head == 0 {
			span.Head = e.Seq
		}
		want[span.Lane] = span
	}
	got := make(map[int16]outbox.Span)
	for _, span := range claim.Spans {
		got[span.Lane] = span
	}
	return cmp.Diff(want, got)
}

func (m *outboxMachine) busy() []int { return slices.Sorted(maps.Keys(m.passes)) }

// publishSome hands some of the claimed events to the broker, in their order,
// also when the lease is lost: the publisher does not know.
func (m *outboxMachine) publishSome(t *rapid.T) {
	var able []int
	for _, publisher := range m.busy() {
		if p := m.passes[publisher]; p.sent < len(p.claim.Events) {
			able = append(able, publisher)
		}
	}
	p := m.passes[pick(t, "publisher", able)]
	m.publish(t, p, rapid.IntRange(1, len(p.claim.Events)-p.sent).Draw(t, "events"))
}

func (m *outboxMachine) publish(t *rapid.T, p *modelPass, events int) {
	for range events {
		answer := rapid.SampledFrom([]fate{acknowledged, acknowledged, acknowledged, refused, lost, notSent}).Draw(t, "answer")
		m.send(t, p, answer)
	}
}

// send decides on the next event of a pass. An event behind one that was not
// acknowledged is not sent.
func (m *outboxMachine) send(t *rapid.T, p *modelPass, answer fate) {
	e := p.claim.Events[p.sent]
	p.sent++
	name, aggregate := m.nameOf(e), m.names[e.AggregateID]
	if e.Behind {
		p.fates[name] = wasBlocked
		return
	}
	if why, stopped := p.stopped[aggregate]; stopped {
		if why == refused {
			p.fates[name] = behindRefused
		}
		return
	}
	p.fates[name] = answer
	if answer == acknowledged || answer == lost {
		m.broker = append(m.broker, name)
	}
	resumes := e.Deferred && (answer == acknowledged || answer != refused && e.Attempts == 0)
	if resumes && !slices.Contains(p.resumed, aggregate) {
		p.resumed = append(p.resumed, aggregate)
	}
	if answer == refused && !slices.Contains(p.resumed, aggregate) {
		p.failed[aggregate] = modelFailure{event: name, seq: e.Seq, attempts: e.Attempts + 1, park: e.Attempts > 0 && rapid.Bool().Draw(t, "park")}
	}
	if answer != acknowledged {
		p.stopped[aggregate] = answer
	}
}

// settlePass settles a pass in hand, even if its lease is lost, and perhaps
// once more, as if the first response was lost.
func (m *outboxMachine) settlePass(t *rapid.T) {
	m.settleOf(t, pick(t, "publisher", m.busy()))
}

func (m *outboxMachine) settleOf(t *rapid.T, publisher int) {
	p := m.passes[publisher]
	for p.sent < len(p.claim.Events) {
		m.send(t, p, notSent)
	}
	// The store lets the aggregates of a settlement go on in the order of their ids.
	slices.SortFunc(p.resumed, func(a, b string) int { return strings.Compare(m.ids[a], m.ids[b]) })
	settlement := m.settlementOf(p)
	held, uncounted := m.model.settle(p)
	want := len(held) == len(p.claim.Spans)
	if got, err := m.SettleClaim(t.Context(), settlement); got != want || err != nil {
		t.Fatalf("SettleClaim() of %q = %t, %v, want %t, nil", m.namesOf(p.claim), got, err, want)
	}
	m.forget(publisher, held)
	m.tally["settlements"]++
	m.tally["refusals of what was skipped or requeued"] += uncounted
	switch {
	case want:
	case len(held) > 0:
		m.tally["fenced in some lanes"]++
	default:
		m.tally["fenced"]++
	}
	if rapid.IntRange(0, 4).Draw(t, "again if 0") == 0 {
		if held, err := m.SettleClaim(t.Context(), settlement); held || err != nil {
			t.Fatalf("SettleClaim() once more = %t, %v, want false, nil", held, err)
		}
	}
}

// settlementOf returns the settlement of a pass.
func (m *outboxMachine) settlementOf(p *modelPass) outbox.Settlement {
	s := outbox.Settlement{Lease: p.claim.Lease, Resumed: make(map[envelope.Aggregate]int64)}
	published := make(map[string]int64) // the last deferred event of each aggregate that was acknowledged
	for _, e := range p.claim.Events {
		fate := p.fates[m.nameOf(e)]
		if e.Deferred {
			if fate == acknowledged {
				published[m.names[e.AggregateID]] = e.Seq
			}
			continue
		}
		switch fate {
		case acknowledged:
			s.Published = append(s.Published, e.Seq)
		case refused, behindRefused, wasBlocked:
			s.Defer = append(s.Defer, e.Seq)
		case notSent, lost: // it stays
		}
	}
	for _, aggregate := range slices.Sorted(maps.Keys(p.failed)) {
		refusal := outbox.Refusal{Aggregate: m.letter(aggregate), Seq: p.failed[aggregate].seq, Attempts: p.failed[aggregate].attempts, Error: "refused", RetryIn: hour}
		if p.failed[aggregate].park {
			refusal.RetryIn = 0
		}
		s.Refused = append(s.Refused, refusal)
	}
	for _, aggregate := range p.resumed {
		s.Resumed[m.letter(aggregate)] = published[aggregate]
	}
	return s
}

// forget ends a pass, which was settled in some lanes, and notes which of its events may come again.
func (m *outboxMachine) forget(publisher int, settled []int16) {
	for name, fate := range m.passes[publisher].fates {
		if fate == lost || fate == acknowledged && !slices.Contains(settled, laneOf(name)) {
			m.again[name]++
		}
	}
	delete(m.passes, publisher)
}

// crash lets a publisher vanish with what it has in hand.
func (m *outboxMachine) crash(t *rapid.T) {
	m.forget(pick(t, "publisher", m.busy()), nil)
	m.tally["crashes"]++
}

// crashAfterClaim lets a publisher vanish before it has sent anything.
func (m *outboxMachine) crashAfterClaim(t *rapid.T) {
	publisher := m.pickIdle(t)
	if m.claimBatch(t, publisher, drawLanes(t), rapid.IntRange(1, 8).Draw(t, "batch"), 1<<20) {
		m.forget(publisher, nil)
		m.tally["crashes after a claim"]++
	}
}

// skipInFlight skips the head of an aggregate that a publisher has in hand.
func (m *outboxMachine) skipInFlight(t *rapid.T) {
	var heads []string
	for _, publisher := range m.busy() {
		for _, e := range m.passes[publisher].claim.Events {
			aggregate := m.names[e.AggregateID]
			if head := m.model.head(aggregate); e.Deferred && head >= 0 && m.model.pending[head].version == e.Version {
				heads = append(heads, aggregate)
			}
		}
	}
	m.skipOf(t, pick(t, "aggregate", heads))
	m.tally["skipped in flight"]++
}

// floorInPass raises the floors between a claim and its settlement, often enough that they
// may move: the first time may only set the mark.
func (m *outboxMachine) floorInPass(t *rapid.T) {
	publisher := m.pickIdle(t)
	if !m.claimBatch(t, publisher, drawLanes(t), rapid.IntRange(1, 8).Draw(t, "batch"), 1<<20) {
		t.Skip("there is no work")
	}
	p := m.passes[publisher]
	m.raiseFloors(t)
	m.publish(t, p, len(p.claim.Events))
	m.raiseFloors(t)
	m.settleOf(t, publisher)
	m.raiseFloors(t)
}

// loseLane lets a publisher settle a claim after another one has claimed one of its lanes.
func (m *outboxMachine) loseLane(t *rapid.T) {
	if len(m.passes) > modelPublishers-2 {
		t.Skip("there is no other publisher")
	}
	publisher := m.pickIdle(t)
	if !m.claimBatch(t, publisher, outbox.Lanes, rapid.IntRange(1, 8).Draw(t, "batch"), 1<<20) {
		t.Skip("there is no work")
	}
	p := m.passes[publisher]
	m.publish(t, p, rapid.IntRange(0, len(p.claim.Events)).Draw(t, "events before"))
	m.endLeaseOf(t, rapid.SampledFrom(p.claim.Spans).Draw(t, "lost").Lane)
	m.claimBatch(t, m.pickIdle(t), drawLanes(t), rapid.IntRange(1, 8).Draw(t, "other batch"), 1<<20)
	m.publish(t, p, len(p.claim.Events)-p.sent)
	m.settleOf(t, publisher)
}

func (m *outboxMachine) raiseFloors(t *rapid.T) {
	mustDo(t, m.RaiseFloors(t.Context()))
}

// writeBehindPoison appends an event of a blocked aggregate, and makes a pass.
func (m *outboxMachine) writeBehindPoison(t *rapid.T) {
	var free []string
	for _, aggregate := range slices.Sorted(maps.Keys(m.model.blocked)) {
		if m.owner[aggregate] == 0 {
			free = append(free, aggregate)
		}
	}
	aggregate := pick(t, "aggregate", free)
	m.place++
	e := modelEvent{place: m.place, aggregate: aggregate, version: m.version[aggregate] + 1}
	pgtest.Append(m.t, m.pool, envelope.Message{
		ID: newID(m.t), AggregateType: "letter", AggregateID: m.ids[aggregate], Type: "LetterWritten", Version: e.version, Payload: e.payload(), OccurredAt: epoch,
	})
	m.version[aggregate] = e.version
	m.model.commit([]modelEvent{e})
	m.wholePass(t)
}

// endLease lets the time pass until a lease ends.
func (m *outboxMachine) endLease(t *rapid.T) {
	var leased []int16
	for _, number := range slices.Sorted(maps.Keys(m.model.lanes)) {
		if m.model.lanes[number].leased {
			leased = append(leased, number)
		}
	}
	m.endLeaseOf(t, pick(t, "lane", leased))
}

func (m *outboxMachine) endLeaseOf(t *rapid.T, number int16) {
	m.exec(t, "UPDATE video_catalog.outbox_lanes SET leased_until = clock_timestamp() WHERE lane = $1", number)
	lane := m.model.lanes[number]
	lane.leased, lane.free = false, m.model.tick()
}

// becomeDue lets the time pass until a blocked aggregate is due.
func (m *outboxMachine) becomeDue(t *rapid.T) {
	var waiting []string
	for _, aggregate := range slices.Sorted(maps.Keys(m.model.blocked)) {
		if block := m.model.blocked[aggregate]; !block.parked && block.due == 0 {
			waiting = append(waiting, aggregate)
		}
	}
	aggregate := pick(t, "aggregate", waiting)
	m.exec(t, "UPDATE video_catalog.outbox_blocked SET next_retry_at = clock_timestamp() WHERE aggregate_id = $1", m.ids[aggregate])
	m.model.blocked[aggregate].due = m.model.tick()
}

// requeueOne requeues a blocked aggregate, parked or not.
func (m *outboxMachine) requeueOne(t *rapid.T) {
	m.requeueOf(t, pick(t, "aggregate", slices.Sorted(maps.Keys(m.model.blocked))))
}

func (m *outboxMachine) requeueOf(t *rapid.T, aggregate string) {
	mustDo(t, m.RequeueEvent(t.Context(), m.letter(aggregate)))
	m.model.requeue(aggregate)
}

// skipOne gives up the event that ListBlocked shows for an aggregate.
func (m *outboxMachine) skipOne(t *rapid.T) {
	m.skipOf(t, pick(t, "aggregate", slices.Sorted(maps.Keys(m.model.blocked))))
}

func (m *outboxMachine) skipOf(t *rapid.T, aggregate string) {
	blocked, err := m.listBlocked(100)
	mustDo(t, err)
	for _, b := range blocked {
		if b.ID != m.ids[aggregate] {
			continue
		}
		head, want := m.model.head(aggregate), int64(0)
		if head >= 0 {
			want = m.model.pending[head].version
		}
		if b.Version != want {
			t.Fatalf("version that blocks %s = %d, want %d", aggregate, b.Version, want)
		}
		if head < 0 {
			return // it was skipped, or never was there
		}
		mustDo(t, m.SkipEvent(t.Context(), b.Aggregate, b.EventID))
		m.skipped[m.model.pending[head].String()] = true
		m.model.skip(head)
		return
	}
	t.Fatalf("ListBlocked() = %+v, want %s among them", blocked, aggregate)
}

// maintainOnce drops old partitions, also of pending events. Not while a
// transaction is open: that makes it wait, and do nothing.
func (m *outboxMachine) maintainOnce(t *rapid.T) {
	if len(m.writers) > 0 {
		t.Skip("it would wait")
	}
	mustDo(t, m.Maintain(t.Context(), 7, 48*time.Hour))
}

// compare compares the tables with the model.
func (m *outboxMachine) compare(t *rapid.T) {
	var pending, blocked []string
	var below int
	const sql = `SELECT
		ARRAY (SELECT concat(aggregate_id, ' ', version, aside) FROM (
			SELECT aggregate_id, version, seq, '' AS aside FROM video_catalog.outbox_pending
			UNION ALL SELECT aggregate_id, version, seq, ' aside' FROM video_catalog.outbox_deferred
		) p ORDER BY seq),
		ARRAY (SELECT concat(aggregate_id, ' ', attempts, CASE WHEN parked_at IS NOT NULL THEN ' parked' END,
			CASE WHEN next_retry_at <= now() THEN ' due' END) FROM video_catalog.outbox_blocked),
		(SELECT count(*) FROM video_catalog.outbox_pending p JOIN video_catalog.outbox_lanes l ON l.lane = p.lane WHERE p.seq <= l.floor_seq) +
		(SELECT count(*) FROM video_catalog.outbox_deferred d JOIN video_catalog.outbox_blocked b USING (aggregate_type, aggregate_id) WHERE d.seq < b.head_seq)`
	mustDo(t, m.pool.QueryRow(t.Context(), sql).Scan(&pending, &blocked, &below))
	wantPending, wantBlocked := []string{}, []string{}
	for _, e := range m.model.pending {
		wantPending = append(wantPending, fmt.Sprintf("%s %d%s", m.ids[e.aggregate], e.version, when(e.aside, " aside")))
	}
	for aggregate, block := range m.model.blocked {
		wantBlocked = append(wantBlocked, fmt.Sprintf("%s %d%s%s", m.ids[aggregate], block.attempts, when(block.parked, " parked"), when(block.due > 0, " due")))
	}
	if diff := cmp.Diff(wantPending, pending); diff != "" {
		t.Fatalf("pending events (-want +got):\n%s", diff)
	}
	slices.Sort(wantBlocked)
	slices.Sort(blocked)
	if diff := cmp.Diff(wantBlocked, blocked); diff != "" {
		t.Fatalf("blocked aggregates (-want +got):\n%s", diff)
	}
	if below > 0 {
		t.Fatalf("%d pending events are below the floor of their lane or aggregate, where no claim looks", below)
	}
}

func when(is bool, text string) string {
	if is {
		return text
	}
	return ""
}

// drain ends all transactions, passes and leases, and requeues the blocked
// aggregates. Then one publisher empties the outbox.
func (m *outboxMachine) drain(t *rapid.T) {
	for writer := range modelWriters + 1 {
		if m.writers[writer] != nil {
			m.end(t, writer, true)
		}
	}
	for _, publisher := range m.busy() {
		m.forget(publisher, nil)
	}
	for _, number := range slices.Sorted(maps.Keys(m.model.lanes)) {
		if m.model.lanes[number].leased {
			m.endLeaseOf(t, number)
		}
	}
	for _, aggregate := range slices.Sorted(maps.Keys(m.model.blocked)) {
		m.requeueOf(t, aggregate)
	}
	const publisher, batch = 0, 5
	for limit := m.place + 50; m.claimBatch(t, publisher, drawLanes(t), batch, 1<<20); limit-- {
		if limit == 0 {
			t.Fatalf("the outbox is not empty after %d claims:\n%v", m.place+50, m.model.pending)
		}
		p := m.passes[publisher]
		for p.sent < len(p.claim.Events) {
			m.send(t, p, acknowledged)
		}
		m.settleOf(t, publisher)
	}
	m.compare(t)
	if n := len(m.model.pending) + len(m.model.blocked); n > 0 {
		t.Fatalf("%d events are pending and %d aggregates blocked, want none", len(m.model.pending), len(m.model.blocked))
	}
}

// checkBroker checks the guarantees against the events that the broker has.
func (m *outboxMachine) checkBroker(t *rapid.T) {
	times, next := make(map[string]int), make(map[string]int64)
	for _, name := range m.broker {
		times[name]++
		if times[name] > 1 {
			m.tally["duplicates"]++
		} else if m.skipped[name] {
			m.tally["skipped and published"]++
		}
		aggregate := name[:1]
		for m.skipped[fmt.Sprintf("%s%d", aggregate, next[aggregate]+1)] {
			next[aggregate]++
		}
		if want := fmt.Sprintf("%s%d", aggregate, next[aggregate]+1); name == want {
			next[aggregate]++
		} else if times[name] == 1 && !m.skipped[name] {
			t.Fatalf("%s came before %s:\n%q", name, want, m.broker)
		}
	}
	for _, aggregate := range slices.Sorted(maps.Keys(m.version)) {
		for version := int64(1); version <= m.version[aggregate]; version++ {
			name := fmt.Sprintf("%s%d", aggregate, version)
			m.tally["events"]++
			if times[name] == 0 && !m.skipped[name] {
				t.Errorf("%s was never published", name)
			}
			if times[name] > 1+m.again[name] {
				t.Errorf("%s was published %d times, want at most %d", name, times[name], 1+m.again[name])
			}
		}
	}
}

// mustDo is must for a test of rapid.
func mustDo(t *rapid.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
