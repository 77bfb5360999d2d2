package wal

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
)

// An event comes as it was appended, whatever other columns the table has. A column that the publication lacks is named.
func TestEventOfTheLog(t *testing.T) {
	t.Parallel()
	s := inWAL(t)
	sent := make(chan envelope.Message, 1)
	s.holds = func(m envelope.Message) bool { sent <- m; return false }
	defer s.relayed()()
	pgtest.Execute(t, s.pool, "ALTER TABLE video_catalog.outbox ADD COLUMN added text DEFAULT 'x'")
	for _, want := range []envelope.Message{message("a", 1), message("b", 1)} {
		trace := pg.Optional("")
		if want.AggregateID == "b" {
			want.Traceparent, want.Causation = "00-1", envelope.Causation{CausationID: uuid.New(), CorrelationID: uuid.New()}
			trace = &want.Traceparent
		}
		pgtest.Execute(t, s.pool, `INSERT INTO video_catalog.outbox (id, aggregate_type, aggregate_id, event_type, version, schema_version, payload,
			occurred_at, caller, traceparent, causation_id, correlation_id) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 'eve', $9, $10, $11)`,
			want.ID, want.AggregateType, want.AggregateID, want.Type, want.Version, want.SchemaVersion, want.Payload, want.OccurredAt, trace,
			pg.Optional(want.Causation.CausationID), pg.Optional(want.Causation.CorrelationID))
		if got := <-sent; !reflect.DeepEqual(got, want) {
			t.Errorf("the event is %v, want %v", got, want)
		}
	}
	relation := &pglogrepl.RelationMessage{Namespace: "video_catalog", RelationName: "outbox"}
	if _, err := newDecoder(relation); err == nil || !strings.Contains(err.Error(), "column id of video_catalog.outbox") {
		t.Errorf("newDecoder() = %v, want the name of the column", err)
	}
}

// filled returns an open queue with commits of some events each. The first ends at 10, the next at 20, and so on.
func filled(blocked []envelope.Aggregate, sizes ...int) *queue {
	q := &queue{}
	q.open(1, 0, blocked)
	for i, n := range sizes {
		q.begin()
		for v := range n {
			q.add(message(fmt.Sprintf("%d-%d", i, v), 1))
		}
		q.end(pglogrepl.LSN(10 * (i + 1)))
	}
	return q
}

var limits = outbox.Limits{Lanes: 8, Events: 100, Bytes: 1 << 20, Lease: time.Minute}

// settlementOf settles the events of a claim that are chosen.
func settlementOf(c outbox.Claim, isDone func(outbox.Claimed) bool) outbox.Settlement {
	s := outbox.Settlement{Lease: c.Lease}
	for _, e := range c.Events {
		if isDone(e) {
			s.Published = append(s.Published, e.Seq)
		}
	}
	return s
}

// The end of a commit is confirmed when all its events, and all commits before it, are settled. A position of the server is confirmed
// only while nothing is in hand.
func TestConfirmsSettledCommitsInOrder(t *testing.T) {
	t.Parallel()
	q := filled(nil, 3, 2, 4)
	q.idle(1000)
	for _, step := range []struct {
		settled string // commits
		want    pglogrepl.LSN
	}{{"1", 0}, {"2", 0}, {"0", 30}} {
		c := q.claim(limits, time.Now())
		q.settle(settlementOf(c, func(e outbox.Claimed) bool { return strings.HasPrefix(e.AggregateID, step.settled) }))
		if got := q.state().confirmed; got != step.want {
			t.Errorf("after commit %s: confirmed %s, want %s", step.settled, got, step.want)
		}
	}
	q.begin()
	q.idle(2000) // in the middle of a commit
	q.end(40)
	if got := q.state(); got.confirmed != 40 || got.isBusy || got.isClaimed {
		t.Errorf("after an empty commit: %+v, want that 40 is confirmed, and nothing in hand", got)
	}
	if q.idle(2000); q.state().confirmed != 2000 {
		t.Errorf("while nothing is in hand: %+v, want the position of the server", q.state())
	}
}

// Of a claim of the tables, the queue takes the lanes that are free, and from these only deferred events and snapshots. Events of a blocked
// aggregate are behind, until the tables have no more of it.
func TestClaimOfTheTables(t *testing.T) {
	t.Parallel()
	blocked := envelope.Aggregate{Type: "letter", ID: "0-0"}
	lane, now := outbox.Lane(blocked), time.Now()
	q := filled([]envelope.Aggregate{blocked}, 1)
	tables := func() (c outbox.Claim, busy []outbox.Span) {
		snapshot := message("0-0", 9)
		snapshot.Repeat = "backfill"
		c.Lease = outbox.Lease{Token: 9, Spans: []outbox.Span{{Lane: lane, Head: 4, Tail: 5}}}
		c.Events = []outbox.Claimed{{Message: message("0-0", 1), Seq: 3, Deferred: true}, {Message: message("0-0", 8), Seq: 4}, {Message: snapshot, Seq: 5}}
		busy = q.lease(&c, limits, now)
		return c, busy
	}
	log := q.claim(limits, now)
	if !log.Events[0].Behind {
		t.Error("an event of a blocked aggregate is not behind")
	}
	if c, busy := tables(); len(busy) != 1 || len(c.Events) != 0 {
		t.Error("the tables have got a lane that is leased")
	}
	q.settle(outbox.Settlement{Lease: log.Lease})
	if c := q.claim(limits, now); c.Token != 0 || !q.isDue(now) {
		t.Error("the lane goes on, and the tables wait for it")
	}
	c, busy := tables()
	if len(busy) != 0 || len(c.Events) != 2 || !c.Events[0].Deferred || c.Events[1].Repeat == "" {
		t.Errorf("the claim has %v, want the deferred event and the snapshot, and nothing that was pending for the lanes", c.Events)
	}
	if c := q.claim(limits, now); c.Token != 0 {
		t.Error("two claims have a lane at a time")
	}
	released := time.Now()
	q.release(c.Lease, nil, q.fence)
	if q.isDue(released.Add(statusPause - 1)) {
		t.Error("the tables have the next claim, too")
	}
	if c := q.claim(limits, now); len(c.Events) != 1 || c.Events[0].Behind {
		t.Errorf("after the block has ended: %v, want the event of the log", c.Events)
	}
}

// A reader that begins again reads the blocked aggregates later than a settlement that is still under way.
func TestSettlementOfAnEarlierReader(t *testing.T) {
	t.Parallel()
	blocked := envelope.Aggregate{Type: "letter", ID: "0-0"}
	q := filled(nil, 1)
	c := outbox.Claim{Lease: outbox.Lease{Token: 9, Spans: []outbox.Span{{Lane: outbox.Lane(blocked)}}}}
	q.lease(&c, limits, time.Now())
	fence := q.fence
	q.forget()
	q.open(fence+1, 0, []envelope.Aggregate{blocked})
	if q.release(c.Lease, nil, fence); !q.blocked[blocked] {
		t.Error("the settlement has ended a block that it has not read")
	}
}
