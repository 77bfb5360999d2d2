package pg_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/problem"
)

// An aggregate is blocked and recovers, also beside more blocked aggregates than a claim takes at a time.
func TestBlockedAmongMany(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	l.append(l.pool, "a1 b1")
	l.settle(l.settlement(l.claimNames(10, "a1 b1"), "a1"))
	execute(t, l.pool, `
		INSERT INTO video_catalog.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, last_error, parked_at)
		SELECT 'letter', 'other ' || n, 3, 10, 'refused', now() FROM generate_series(1, 1500) n`)
	l.append(l.pool, "b2 a2 c1 a3 b3")
	l.settle(l.settlement(l.claimNames(4, "b2 a2! c1 a3!"), ""))
	l.due("a")
	l.settle(l.settlement(l.claimNames(10, "a1/1 b3"), ""))
	l.settle(l.settlement(l.claimNames(10, "a2/0 a3/0"), ""))
	pgtest.WantCount(t, l.pool, 1500, "the other blocked aggregates", "SELECT count(*) FROM video_catalog.outbox_blocked")
}

// park claims the named events. The broker refuses one of them for the last time, so that its aggregate is parked.
func (l *letters) park(names, refused string) {
	l.t.Helper()
	settlement := l.settlement(l.claimNames(1000, names), refused)
	settlement.Refused[0].RetryIn = 0
	l.settle(settlement)
}

// While its deferred events are being published, an aggregate keeps no error of
// an event that the broker has.
func TestProgressForgetsTheError(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	l.append(l.pool, "a1 a2")
	l.settle(l.settlement(l.claimNames(10, "a1 a2"), "a1"))
	l.due("a")
	l.settle(l.settlement(l.claimNames(10, "a1/1"), ""))
	blocked, err := l.listBlocked(10)
	if err != nil || len(blocked) != 1 || blocked[0].Version != 2 || blocked[0].Attempts != 0 || blocked[0].LastError != "" {
		t.Errorf("ListBlocked() = %+v, %v, want a2, never refused", blocked, err)
	}
	l.settle(l.settlement(l.claimNames(10, "a2/0"), ""))
}

// A claim tries at most a hundred blocked aggregates, of one lane or of all.
func TestClaimTriesAHundredAggregates(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 1)
	parkMany(t, l, 1200)
	execute(t, l.pool, "UPDATE video_catalog.outbox_blocked SET parked_at = NULL, attempts = 0, next_retry_at = now()")
	tried := make(map[int16]int) // aggregates, by lane
	claim := l.claimOf(outbox.Lanes, 1000, hour)
	for _, e := range claim.Events {
		tried[outbox.Lane(e.Aggregate())]++
	}
	if n := len(claim.Events); n < 90 || n > 100 || len(tried) != outbox.Lanes {
		t.Errorf("%v aggregates of all lanes are tried, want about a hundred, as many of each lane", tried)
	}
	l.settle(l.settlement(claim, ""))
	for _, table := range []string{"outbox_blocked", "outbox_deferred"} {
		execute(t, l.pool, "DELETE FROM video_catalog."+table+" WHERE lane <> 3")
	}
	for left := l.count("SELECT count(*) FROM video_catalog.outbox_blocked"); left > 0; {
		claim := l.claim(1000, hour)
		if want := min(left, 100); len(claim.Events) != want {
			t.Fatalf("%d aggregates of one lane are tried, want %d of %d", len(claim.Events), want, left)
		}
		left -= len(claim.Events)
		l.settle(l.settlement(claim, ""))
	}
}

// A skip of an event that is being settled as published fails with NotFound. It
// can happen after somebody else has skipped the event before it.
func TestSkipWhatIsPublished(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	first, second := l.append(l.pool, "a1"), l.append(l.pool, "a2")
	l.settle(l.settlement(l.claimNames(10, "a1 a2"), "a1"))
	must(t, l.RequeueEvent(t.Context(), l.letter("a")))
	claim := l.claimNames(10, "a1/0 a2/0")
	must(t, l.SkipEvent(t.Context(), l.letter("a"), first))
	// The settlement waits for this lock on the row that it deletes.
	hold := l.begin()
	execute(t, hold, "SELECT FROM video_catalog.outbox_blocked FOR UPDATE")
	const waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
	settled := make(chan error, 1)
	go func() {
		_, err := l.SettleClaim(t.Context(), l.settlement(claim, ""))
		settled <- err
	}()
	l.reaches(1, waiting)
	skipped := make(chan error, 1)
	go func() { skipped <- l.SkipEvent(t.Context(), l.letter("a"), second) }()
	l.reaches(2, waiting)
	must(t, hold.Commit(t.Context()))
	must(t, <-settled)
	if err := <-skipped; kindOf(err) != problem.NotFound {
		t.Errorf("SkipEvent() of what was published = %v, want NotFound", err)
	}
	pgtest.WantCount(t, l.pool, 0, "blocked aggregates", "SELECT count(*) FROM video_catalog.outbox_blocked")
}

// ListBlocked returns the blocked aggregates with their errors, in the order of the keys.
func TestListBlocked(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	first := l.append(l.pool, "a1")
	l.append(l.pool, "a2")
	l.settle(l.settlement(l.claimNames(10, "a1 a2"), "a1"))
	second := l.append(l.pool, "b1")
	l.park("b1", "b1")
	got, err := l.listBlocked(10)
	must(t, err)
	want := []pg.Blocked{
		{Aggregate: l.letter("a"), EventID: first, Version: 1, Attempts: 1, LastError: "refused"},
		{Aggregate: l.letter("b"), EventID: second, Version: 1, Attempts: 1, LastError: "refused"},
	}
	same(t, "blocked", want, got, cmpopts.IgnoreFields(pg.Blocked{}, "EventType", "EventTime", "NextRetry", "ParkedAt", "Cause"))
	if got[1].ParkedAt.IsZero() || !got[1].NextRetry.IsZero() || !got[0].ParkedAt.IsZero() {
		t.Errorf("blocked = %+v, want the second one parked and the other not", got)
	}
	if until := time.Until(got[0].NextRetry); until < 59*time.Minute || until > time.Hour {
		t.Errorf("next retry in %s, want the hour of the settlement", until)
	}
	if got, err := l.listBlocked(1); len(got) != 1 || err != nil {
		t.Errorf("ListBlocked(1) = %+v, %v, want one", got, err)
	}
	backlog, err := l.Measure(t.Context(), 2)
	wantBacklog := pg.Backlog{Pending: 2, Blocked: 2, Parked: 1, DaysAhead: 7}
	if diff := cmp.Diff(wantBacklog, backlog, cmpopts.IgnoreFields(pg.Backlog{}, "At")); diff != "" || err != nil {
		t.Errorf("backlog (-want +got), %v:\n%s", err, diff)
	}
}

// Ten thousand events behind a parked one leave the lane once, a batch per
// claim. Then no claim reads them. After a retry they are published in order.
func TestParkedBacklogDoesNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	const behind, batch = 10_000, 1000
	l := newLetters(t, 4)
	l.append(l.pool, "a1")
	l.park("a1", "a1")
	execute(t, l.pool, `
		INSERT INTO video_catalog.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
		SELECT $3, gen_random_uuid(), 'letter', $1, 'LetterWritten', n + 1, 1, '', now()
		FROM generate_series(1, $2::int) n`, l.ids["a"], behind, laneOf("a"))
	l.append(l.pool, "b1")
	for range behind / batch {
		claim := l.claim(batch, hour)
		for _, e := range claim.Events {
			if !e.Behind || len(claim.Events) != batch {
				t.Fatalf("claimed %q, want %d blocked events", l.namesOf(claim), batch)
			}
		}
		l.settle(l.settlement(claim, ""))
	}
	l.settle(l.settlement(l.claimNames(batch, "b1"), ""))
	pgtest.WantCount(t, l.pool, 0, "events in their lane", "SELECT count(*) FROM video_catalog.outbox_pending")
	if claim := l.claim(batch, hour); claim.Token != 0 {
		t.Errorf("a claim answers %d events, want nothing", len(claim.Events))
	}
	l.append(l.pool, "b2")
	l.settle(l.settlement(l.claimNames(1, "b2"), "")) // the first one read

	must(t, l.RequeueEvent(t.Context(), l.letter("a")))
	for next := int64(1); next <= behind+1; {
		claim := l.claim(batch, hour)
		if want := min(batch/2, behind+2-int(next)); len(claim.Events) != want {
			t.Fatalf("the claim at version %d has %d events, want %d", next, len(claim.Events), want)
		}
		for _, e := range claim.Events {
			if e.Version != next || !e.Deferred {
				t.Fatalf("claimed version %d, want %d, deferred", e.Version, next)
			}
			next++
		}
		l.settle(l.settlement(claim, ""))
	}
	pgtest.WantCount(t, l.pool, 0, "blocked aggregates", "SELECT count(*) FROM video_catalog.outbox_blocked")
}

// 100,000 deferred events of one aggregate that become due hold up no healthy one: each claim
// reads and returns half a batch of them at most, in order, and a whole batch of the others.
func TestManyDeferredHoldUpNoOther(t *testing.T) {
	t.Parallel()
	const deferred, healthy, batch = 100_000, 5000, 1000
	l := newLetters(t, 1)
	execute(t, l.pool, `
		INSERT INTO video_catalog.outbox_deferred (lane, seq, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
		SELECT 3, nextval('video_catalog.outbox_pending_seq_seq'), gen_random_uuid(), 'letter', $1, 'LetterWritten', n, 1, '', now() FROM generate_series(1, $2::int) n`, l.ids["a"], deferred)
	execute(t, l.pool, `
		INSERT INTO video_catalog.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, last_error, next_retry_at) VALUES ('letter', $1, 3, 0, '', now())`, l.ids["a"])
	execute(t, l.pool, `
		INSERT INTO video_catalog.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
		SELECT 3, gen_random_uuid(), 'letter', $1, 'LetterWritten', n, 1, '', now() FROM generate_series(1, $2::int) n`, l.ids["b"], healthy)
	read := func() int {
		execute(t, l.pool, "SELECT pg_stat_force_next_flush()")
		return l.count("SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relid = 'video_catalog.outbox_deferred'::regclass")
	}
	next := map[bool]int64{true: 1, false: 1} // version, by whether it is deferred
	for range healthy / batch {
		before := read()
		claim := l.claim(batch, hour)
		if rows := read() - before; rows > batch {
			t.Errorf("a claim read %d deferred events, want no more than half a batch and a few", rows)
		}
		for _, e := range claim.Events {
			if e.Version != next[e.Deferred] || e.Behind {
				t.Fatalf("claimed version %d (deferred: %t, blocked: %t), want %d", e.Version, e.Deferred, e.Behind, next[e.Deferred])
			}
			next[e.Deferred]++
		}
		l.settle(l.settlement(claim, ""))
	}
	if next[false] != healthy+1 || next[true] != healthy/2+1 {
		t.Errorf("%d healthy and %d deferred events were claimed, want %d and %d", next[false]-1, next[true]-1, healthy, healthy/2)
	}
}
