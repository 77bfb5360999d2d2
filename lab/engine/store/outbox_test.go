package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
)

// A claim returns the oldest events of one lane, whole and in order, and the
// next one those of another lane, until there is nothing.
func TestClaimAnswersALane(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	id := l.append(l.pool, "a1 A1 b1 a2 B1 a3")
	first := l.claimNames(3, "a1 b1 a2")
	second := l.claimNames(10, "A1 B1")
	if first.Lane != 3 || second.Lane != 5 {
		t.Errorf("lanes = %d and %d, want 3 and 5", first.Lane, second.Lane)
	}
	if third := l.claim(10, hour); third.Token != 0 {
		t.Errorf("a third claim = %+v, want nothing: both lanes are leased", third)
	}
	l.settle(l.settlement(first, ""))
	l.settle(l.settlement(second, ""))
	got := l.claimNames(10, "a3").Events[0]
	want := outbox.Claimed{Seq: 6, Message: l.sent[id]}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("claimed event (-want +got):\n%s", diff)
	}
}

// The lane that was served longest ago goes first, so that a busy lane starves
// no other.
func TestClaimGoesRound(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	for i := range 20 {
		l.append(l.pool, fmt.Sprintf("a%d A%d", i+1, i+1))
	}
	var lanes []int16
	for range 10 {
		claim := l.claim(1, hour)
		lanes = append(lanes, claim.Lane)
		l.settle(l.settlement(claim, ""))
	}
	for i := 2; i < len(lanes); i++ {
		if lanes[i] != lanes[i-2] || lanes[i] == lanes[i-1] {
			t.Fatalf("lanes in turn: %v, want 3 and 5 alternately", lanes)
		}
	}
}

// A claim of the lane of one aggregate finds what was committed there since the
// last one, and neither what is in other lanes nor what is only due for a retry.
func TestClaimOfOneLane(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 2)
	l.append(l.pool, "a1 A1")
	first := l.claimOf("B", "A1")
	l.append(l.pool, "A2")
	l.claimOf("A", "") // leased
	l.settle(l.settlement(first, ""))
	l.settle(l.settlement(l.claimOf("A", "A2"), ""))
	l.claimOf("A", "")
	l.settle(l.settlement(l.claimOf("a", "a1"), "a1"))
	l.due("a")
	l.claimOf("a", "")
	l.append(l.pool, "b1")
	l.settle(l.settlement(l.claimOf("a", "a1/1 b1"), ""))
}

// A lease keeps everybody else away, however often they ask,
// and ends by itself when its owner is gone.
func TestLeaseKeepsOthersAwayUntilItEnds(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	l.append(l.pool, "a1 a2")
	start := time.Now()
	const lease = 500 * time.Millisecond
	if got := l.namesOf(l.claim(10, lease)); got != "a1 a2" {
		t.Fatalf("claimed %q, want a1 a2", got)
	}
	for {
		asked := time.Now()
		if claim := l.claim(10, hour); claim.Token != 0 {
			if took := time.Since(start); took < lease {
				t.Errorf("claimed again after %s, want not before %s", took, lease)
			}
			if got := l.namesOf(claim); got != "a1 a2" {
				t.Errorf("claimed %q again, want a1 a2", got)
			}
			return
		}
		if asked.Sub(start) > lease+5*time.Second {
			t.Fatalf("not claimable %s after the lease of %s began", asked.Sub(start), lease)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// The reason of a refusal is the broker's text, which may be anything: one that
// PostgreSQL does not store as it is must not keep a whole claim from being
// settled.
func TestRefusalOfAnyTextIsSettled(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 2)
	l.append(l.pool, "a1 b1")
	settlement := l.settlement(l.claimNames(10, "a1 b1"), "a1")
	settlement.Failed[0].Error = "refused: \x00\xff"
	l.settle(settlement)
	l.due("a")
	l.claimNames(10, "a1/1")
	if n := l.count(`SELECT count(*) FROM video_catalog.outbox_blocked WHERE last_error = 'refused: \x00\xff'`); n != 1 {
		t.Errorf("%d reasons are stored in characters, want 1", n)
	}
	if blocked, err := l.listBlocked(1); err != nil || len(blocked) != 1 || blocked[0].LastError != settlement.Failed[0].Error {
		t.Errorf("ListBlocked() = %+v, %v, want the broker's words", blocked, err)
	}
}

// A crash of the server, or a failover, may forget a claim, which is committed
// asynchronously. Its token is not given again: the settlement of the claim
// that was forgotten must not pass for that of the next one, whose rows may be
// others by now.
func TestForgottenClaimIsFenced(t *testing.T) {
	t.Parallel()
	for name, token := range map[string]int64{
		"released": 0,
		// By the clock of then, had a token been made of it.
		"given when the clock was an hour ahead": time.Now().Add(time.Hour).UnixMicro(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLetters(t, 4)
			l.append(l.pool, "a1")
			setToken := func() {
				if _, err := l.pool.Exec(t.Context(), "UPDATE video_catalog.outbox_lanes SET lease_token = $1, leased_until = '-infinity' WHERE lane = 3", token); err != nil {
					t.Fatal(err)
				}
			}
			setToken()
			forgotten := l.claimNames(10, "a1")
			setToken()
			next := l.claimNames(10, "a1")
			if held, err := l.SettleClaim(t.Context(), l.settlement(forgotten, "")); held || err != nil {
				t.Errorf("SettleClaim() of the forgotten claim = %t, %v, want false, nil", held, err)
			}
			l.settle(l.settlement(next, ""))
		})
	}
}

// A claim that chose its lane by a snapshot older than the last settlement of it
// returns what that settlement left, or nothing: neither events that it deleted,
// nor, as blocked, events of an aggregate that is blocked no longer, which would go
// aside where nobody finds them again.
//
// The moment is rare: a settlement after its lease has ended is executed before
// the claim begins, and committed after the claim's snapshot and before its look
// at the row of the lane. Here a trigger stops the commit, and a policy the claim.
func TestClaimAnswersWhatTheLastSettlementLeft(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	l.append(l.pool, "a1 b1 b2")
	l.settle(l.settlement(l.claimNames(10, "a1 b1 b2"), "b1"))
	l.append(l.pool, "a2")
	if err := l.RequeueEvent(t.Context(), l.letter("b")); err != nil {
		t.Fatal(err)
	}
	late := l.claim(10, time.Millisecond)
	if got := l.namesOf(late); got != "b1/0 b2/0 a2" {
		t.Fatalf("claimed %q, want b1/0 b2/0 a2", got)
	}
	l.append(l.pool, "b3")
	time.Sleep(20 * time.Millisecond)
	if _, err := l.pool.Exec(t.Context(), `
		CREATE FUNCTION video_catalog.stop() RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
			PERFORM pg_advisory_lock_shared(42);
			PERFORM pg_advisory_unlock_shared(42);
			RETURN true;
		END $$;
		CREATE FUNCTION video_catalog.hold() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(43); RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER hold AFTER UPDATE ON video_catalog.outbox_lanes DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION video_catalog.hold();
		GRANT EXECUTE ON FUNCTION video_catalog.stop() TO video_catalog_rw;
		ALTER TABLE video_catalog.outbox_pending ENABLE ROW LEVEL SECURITY;
		CREATE POLICY stop ON video_catalog.outbox_pending USING (video_catalog.stop()) WITH CHECK (true)`); err != nil {
		t.Fatal(err)
	}

	lock := func(key int) (unlock func()) {
		tx, err := l.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		unlock = sync.OnceFunc(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
		t.Cleanup(unlock)
		if _, err := tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock($1)", key); err != nil {
			t.Fatal(err)
		}
		return unlock
	}
	letClaim, letSettle := lock(42), lock(43)
	const waiting = `SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
		WHERE l.locktype = 'advisory' AND NOT l.granted AND d.datname = current_database()`
	var settling sync.WaitGroup
	settling.Go(func() { l.settle(l.settlement(late, "")) })
	l.reaches(1, waiting) // the settlement is executed, and not committed
	claimed := make(chan string, 1)
	go func() {
		rows := ""
		defer func() { claimed <- rows }()
		conn, err := pgx.Connect(t.Context(), storetest.Direct(t, l.pool.Config().ConnString())) // a role is of the session
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close(context.WithoutCancel(t.Context()))
		if _, err := conn.Exec(t.Context(), "SET ROLE video_catalog_rw"); err != nil { // policies are not for superusers
			t.Error(err)
			return
		}
		// PostgreSQL may look at the ctid again, as its newer minor releases do: then the first one finds that the row has moved, and takes nothing.
		for attempt := 1; attempt <= 2 && rows == ""; attempt++ {
			if err := conn.QueryRow(t.Context(), "SELECT coalesce(string_agg(concat(aggregate_id, ' ', version, ' ', blocked), ', '), '') FROM video_catalog.outbox_claim(10, 1000000, '1 hour')").Scan(&rows); err != nil {
				t.Error(err)
			}
			t.Logf("attempt %d: %q", attempt, rows)
		}
	}()
	l.reaches(2, waiting) // the claim has got to the policy
	letSettle()
	settling.Wait()
	letClaim()
	if got, want := <-claimed, l.ids["b"]+" 3 f"; got != want {
		t.Errorf("claimed %q, want %q", got, want)
	}
}

// A claim ends with the event that fills its bytes, retried ones counted apart,
// and what it leaves out is claimed next.
func TestClaimIsBoundedByBytes(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 1)
	claim := func(maxBytes int64) outbox.Claim {
		t.Helper()
		claim, err := l.ClaimEvents(t.Context(), 10, maxBytes, hour, envelope.Aggregate{})
		if err != nil {
			t.Fatal(err)
		}
		return claim
	}
	l.append(l.pool, "a1 b1 c1 c2 c3 c4") // two bytes each, but for c3, which has 3,002
	for _, test := range []struct {
		maxBytes int64
		want     string
	}{{1, "a1"}, {2, "a1"}, {3, "a1 b1"}, {8, "a1 b1 c1 c2"}, {100, "a1 b1 c1 c2 c3"}, {3011, "a1 b1 c1 c2 c3 c4"}} {
		got := claim(test.maxBytes)
		if l.namesOf(got) != test.want {
			t.Errorf("claim of %d bytes = %q, want %q", test.maxBytes, l.namesOf(got), test.want)
		}
		l.settle(outbox.Settlement{Lane: got.Lane, Token: got.Token, Head: got.Events[0].Seq, Tail: got.Events[len(got.Events)-1].Seq})
	}
	l.settle(l.settlement(claim(3), "a1 b1")) // both are refused
	l.due("a")
	l.due("b")
	for _, test := range []struct {
		maxBytes int64
		want     string
	}{{2, "a1/1 c1"}, {3, "a1/1 b1/1 c1 c2"}} {
		got := claim(test.maxBytes)
		if l.namesOf(got) != test.want {
			t.Errorf("claim of %d bytes beside blocked aggregates = %q, want %q", test.maxBytes, l.namesOf(got), test.want)
		}
		l.settle(outbox.Settlement{Lane: got.Lane, Token: got.Token})
	}
	got := claim(5000)
	l.settle(outbox.Settlement{Lane: got.Lane, Token: got.Token, Done: []int64{3, 4, 5, 6}, Head: 3, Tail: 6})
	l.append(l.pool, "a2 a3 c5 c6 c7")
	got = claim(3)
	if got, want := l.namesOf(got), "a1/1 b1/1 a2! a3!"; got != want {
		t.Errorf("claim of 3 bytes with blocked events = %q, want %q", got, want)
	}
	l.settle(outbox.Settlement{Lane: got.Lane, Token: got.Token, Head: got.Events[2].Seq, Tail: got.Events[3].Seq})
	if got, want := l.namesOf(claim(3005)), "a1/1 b1/1 a2! a3! c5"; got != want {
		t.Errorf("claim of 3005 bytes with blocked events = %q, want %q", got, want)
	}
}

// A claim works in every mode in which pgx can talk to a pooler.
func TestClaimInEveryExecMode(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 1)
	l.append(l.pool, "a1 a2 a3")
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		cfg := l.pool.Config()
		cfg.ConnConfig.DefaultQueryExecMode = mode
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		claim, err := store.NewOutbox(pool).ClaimEvents(t.Context(), 10, 1<<20, 0, envelope.Aggregate{})
		pool.Close()
		if diff := l.differ(claim); err != nil || l.namesOf(claim) != "a1 a2 a3" || diff != "" {
			t.Errorf("%s: ClaimEvents() = %q, %v, want a1 a2 a3 (-appended +claimed):\n%s", mode, l.namesOf(claim), err, diff)
		}
	}
}

// A clock that was set back leaves no lane leased until it is where it was. A
// lease that is merely longer than those of others is a lease.
func TestClaimAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 1)
	l.append(l.pool, "a1")
	held := l.claim(10, 3*time.Minute)
	if got := l.namesOf(l.claim(10, time.Second)); got != "" {
		t.Errorf("claim for 1s beside a lease of 3m = %q, want nothing", got)
	}
	if _, err := l.pool.Exec(t.Context(), "UPDATE video_catalog.outbox_lanes SET leased_until = leased_until + interval '1 hour' WHERE lane = 3"); err != nil {
		t.Fatal(err)
	}
	next := l.claimNames(10, "a1")
	if held, err := l.SettleClaim(t.Context(), l.settlement(held, "")); held || err != nil {
		t.Errorf("SettleClaim() of the lease of the other clock = %t, %v, want false, nil", held, err)
	}
	l.settle(l.settlement(next, ""))
}

// A lane that was released by a clock that was ahead does not wait for those that
// have been served since.
func TestClaimGoesRoundAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 1)
	l.append(l.pool, "a1 A1")
	if _, err := l.pool.Exec(t.Context(), "UPDATE video_catalog.outbox_lanes SET leased_until = now() + interval '1 hour', leased_for = '1 s'"); err != nil {
		t.Fatal(err)
	}
	first := l.claim(10, hour)
	l.settle(outbox.Settlement{Lane: first.Lane, Token: first.Token}) // nothing was published
	if second := l.claim(10, hour); second.Lane == first.Lane {
		t.Errorf("lane %d was claimed twice, while %q waits in another", first.Lane, "a1 A1")
	}
}

// What a person decides about a blocked aggregate while its event is with the
// broker for the last time, is not undone by the broker's answer.
func TestSkipAndRequeueOutliveAFailure(t *testing.T) {
	t.Parallel()
	skip := func(l *letters, head uuid.UUID) error { return l.SkipEvent(l.t.Context(), l.letter("a"), head) }
	requeue := func(l *letters, _ uuid.UUID) error { return l.RequeueEvent(l.t.Context(), l.letter("a")) }
	for _, test := range []struct {
		name string
		due  func(l *letters) error
		last string
		do   func(l *letters, head uuid.UUID) error
		want string
	}{
		{"skip", func(l *letters) error { l.due("a"); return nil }, "a1/1", skip, "a2/0"},
		{"requeue", func(l *letters) error { l.due("a"); return nil }, "a1/1", requeue, "a1/0 a2/0"},
		{"skip what was requeued", func(l *letters) error { return requeue(l, uuid.Nil) }, "a1/0 a2/0", skip, "a2/0"},
		{"requeue what was requeued", func(l *letters) error { return requeue(l, uuid.Nil) }, "a1/0 a2/0", requeue, ""}, // it waits
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := newLetters(t, 1)
			l.append(l.pool, "a1 a2")
			l.settle(l.settlement(l.claimNames(10, "a1 a2"), "a1"))
			if err := test.due(l); err != nil {
				t.Fatal(err)
			}
			last := l.claimNames(10, test.last)
			if err := test.do(l, last.Events[0].ID); err != nil {
				t.Fatal(err)
			}
			settlement := l.settlement(last, "a1")
			settlement.Failed[0].Park = last.Events[0].Attempts > 0
			l.settle(settlement)
			if parked := l.count("SELECT count(*) FROM video_catalog.outbox_blocked WHERE parked_at IS NOT NULL"); parked > 0 {
				t.Error("the event is parked all the same")
			}
			if got := l.namesOf(l.claim(10, hour)); got != test.want {
				t.Errorf("claimed %q, want %q", got, test.want)
			}
		})
	}
}

// A lease that has ended and that nobody has taken still settles: nobody else
// has sent anything.
func TestExpiredLeaseSettlesUntilItIsTaken(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	l.append(l.pool, "a1")
	claim := l.claim(10, time.Millisecond)
	time.Sleep(20 * time.Millisecond)
	l.settle(l.settlement(claim, ""))
	if claim := l.claim(10, hour); claim.Token != 0 {
		t.Errorf("claimed %q after it was settled, want nothing", l.namesOf(claim))
	}
}

// However many claim at a time, no two have the same event,
// nor the same aggregate, nor the same lane.
func TestConcurrentClaimsShareNothing(t *testing.T) {
	t.Parallel()
	const claimers, aggregates = 16, 100
	l := newLetters(t, claimers)
	for i := range aggregates {
		for version := range 10 {
			storetest.Append(t, l.pool, envelope.Message{
				ID: newID(t), AggregateType: "number", AggregateID: strconv.Itoa(i), Type: "NumberDrawn", Version: int64(version + 1), OccurredAt: epoch,
			})
		}
	}
	var mu sync.Mutex
	holder := make(map[string]int) // of lanes and aggregates
	versions := make(map[string]int64)
	events := 0
	var wg sync.WaitGroup
	for c := range claimers {
		wg.Go(func() {
			for range 30 {
				claim, err := l.ClaimEvents(t.Context(), 7, 1<<20, hour, envelope.Aggregate{})
				if err != nil {
					t.Error(err)
					return
				}
				if claim.Token == 0 {
					time.Sleep(rand.N(2 * time.Millisecond))
					continue
				}
				names := map[string]bool{fmt.Sprintf("lane %d", claim.Lane): true}
				for _, e := range claim.Events {
					names[e.AggregateID] = true
				}
				mu.Lock()
				for name := range names {
					if other, held := holder[name]; held {
						t.Errorf("claimers %d and %d have %q at a time", c, other, name)
					}
					holder[name] = c
				}
				for _, e := range claim.Events {
					if events++; e.Version != versions[e.AggregateID]+1 {
						t.Errorf("version %d of %s was claimed after version %d", e.Version, e.AggregateID, versions[e.AggregateID])
					}
					versions[e.AggregateID] = e.Version
				}
				mu.Unlock()
				time.Sleep(rand.N(time.Millisecond))
				mu.Lock()
				for name := range names {
					delete(holder, name)
				}
				mu.Unlock()
				if held, err := l.SettleClaim(t.Context(), l.settlement(claim, "")); !held || err != nil {
					t.Errorf("SettleClaim() = %t, %v, want true, nil", held, err)
				}
			}
		})
	}
	wg.Wait()
	if left := l.count("SELECT count(*) FROM video_catalog.outbox_pending"); events+left != 10*aggregates {
		t.Errorf("%d events were claimed and %d are left, want %d together", events, left, 10*aggregates)
	}
}
