package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
)

// letters is an outbox with events named like a1, which is version 1 of
// aggregate a. Small letters are in one lane, capital ones in another.
type letters struct {
	t    testing.TB
	pool *pgxpool.Pool
	*store.Videos
	ids   map[string]string // of the aggregates, by letter
	names map[string]string // and the other way round
}

func newLetters(t testing.TB, maxConns int32) *letters {
	t.Helper()
	pool := storetest.Pool(t, maxConns)
	l := &letters{t: t, pool: pool, Videos: store.NewVideos(pool, nil), ids: make(map[string]string), names: make(map[string]string)}
	rows, err := pool.Query(t.Context(), `
		SELECT DISTINCT ON (c) chr(c), chr(c) || n
		FROM generate_series(65, 122) c, generate_series(1, 200) n
		WHERE c NOT BETWEEN 91 AND 96 AND video.outbox_lane('letter', chr(c) || n) = CASE WHEN c > 96 THEN 3 ELSE 5 END
		ORDER BY c, n`)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var letter, id string
		if err := rows.Scan(&letter, &id); err != nil {
			t.Fatal(err)
		}
		l.ids[letter], l.names[id] = id, letter
	}
	if err := rows.Err(); err != nil || len(l.ids) != 52 {
		t.Fatalf("%d letters, %v, want 52", len(l.ids), err)
	}
	t.Cleanup(func() { l.checkInvariants() })
	return l
}

// letter is the aggregate of a name.
func (l *letters) letter(name string) event.Aggregate {
	return event.Aggregate{Type: "letter", ID: l.ids[name[:1]]}
}

// nameOf is the name of an event.
func (l *letters) nameOf(e event.Claimed) string {
	return l.names[e.AggregateID] + strconv.FormatInt(e.Version, 10)
}

// execer is a pool or a transaction.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// append appends events, in one transaction each if to is the pool, and answers
// the id of the last.
func (l *letters) append(to execer, names string) (id uuid.UUID) {
	l.t.Helper()
	for name := range strings.FieldsSeq(names) {
		version, err := strconv.Atoi(name[1:])
		if err != nil {
			l.t.Fatal(err)
		}
		id = newID(l.t)
		if _, err := to.Exec(l.t.Context(), "SELECT video.outbox_append($1, 'letter', $2, 'LetterWritten', $3, 1, $4, $5, NULL)",
			id, l.ids[name[:1]], version, []byte(name), epoch); err != nil {
			l.t.Fatal(err)
		}
	}
	return id
}

const hour = time.Hour

// claim makes a claim of at most batch events.
func (l *letters) claim(batch int, lease time.Duration) event.Claim {
	l.t.Helper()
	claim, err := l.ClaimEvents(l.t.Context(), batch, 1<<20, lease)
	if err != nil {
		l.t.Fatal(err)
	}
	return claim
}

// claimNames makes a claim, which must answer the events that are named.
func (l *letters) claimNames(batch int, want string) event.Claim {
	l.t.Helper()
	claim := l.claim(batch, hour)
	if got := l.namesOf(claim); got != want {
		l.t.Fatalf("claimed %q, want %q", got, want)
	}
	return claim
}

// namesOf is what a claim answered; a retried head has its attempts behind it.
func (l *letters) namesOf(claim event.Claim) string {
	var names []string
	for _, e := range claim.Events {
		name := l.nameOf(e)
		if e.Retry {
			name += "/" + strconv.Itoa(e.Attempts)
		}
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

// settle records what became of a claim, and must hold the lease.
func (l *letters) settle(settlement event.Settlement) {
	l.t.Helper()
	held, err := l.SettleClaim(l.t.Context(), settlement)
	if err != nil || !held {
		l.t.Fatalf("SettleClaim() = %t, %v, want true, nil", held, err)
	}
}

// settlement is the one of a claim of which the broker acknowledged all but
// the events named, which it refused.
func (l *letters) settlement(claim event.Claim, refused string) event.Settlement {
	s := event.Settlement{Lane: claim.Lane, Token: claim.Token, Recovered: claim.Recovered}
	stopped := make(map[event.Aggregate]bool)
	for _, e := range claim.Events {
		if !e.Retry {
			if s.Head == 0 {
				s.Head = e.Seq
			}
			s.Tail = e.Seq
		}
		switch {
		case stopped[e.Aggregate()]:
			s.Aside = append(s.Aside, e.Seq)
		case slices.Contains(strings.Fields(refused), l.nameOf(e)):
			stopped[e.Aggregate()] = true
			s.Failed = append(s.Failed, event.Failure{Aggregate: e.Aggregate(), Attempts: e.Attempts + 1, Error: "refused", RetryIn: hour})
			if !e.Retry {
				s.Aside = append(s.Aside, e.Seq)
			}
		case e.Retry:
			s.Retried = append(s.Retried, e.Seq)
			s.Recovered = append(s.Recovered, e.Aggregate())
		default:
			s.Done = append(s.Done, e.Seq)
		}
	}
	return s
}

// due makes a blocked aggregate due now.
func (l *letters) due(name string) {
	l.t.Helper()
	if _, err := l.pool.Exec(l.t.Context(), "UPDATE video.outbox_blocked SET next_retry_at = now() WHERE aggregate_id = $1", l.letter(name).ID); err != nil {
		l.t.Fatal(err)
	}
}

// count answers a number from the database.
func (l *letters) count(sql string, args ...any) int {
	l.t.Helper()
	return count(l.t, l.pool, sql, args...)
}

// dump is everything that a claim or a settlement can change.
func (l *letters) dump() (dump string) {
	l.t.Helper()
	if err := l.pool.QueryRow(l.t.Context(), `SELECT concat(
		(SELECT string_agg(p::text, E'\n' ORDER BY p.seq) FROM video.outbox_pending p), E'\n--\n',
		(SELECT string_agg(n::text, E'\n' ORDER BY n.lane) FROM video.outbox_lanes n), E'\n--\n',
		(SELECT string_agg(b::text, E'\n' ORDER BY b.aggregate_id) FROM video.outbox_blocked b))`).Scan(&dump); err != nil {
		l.t.Fatal(err)
	}
	return dump
}

// checkInvariants holds what must always hold of the tables.
func (l *letters) checkInvariants() {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for what, sql := range map[string]string{
		"orphans: set aside, and their aggregate not blocked": `SELECT count(*) FROM video.outbox_pending p WHERE lane = -1 AND NOT EXISTS (
			SELECT 1 FROM video.outbox_blocked b WHERE b.aggregate_type = p.aggregate_type AND b.aggregate_id = p.aggregate_id)`,
		"in another lane than their aggregate": `SELECT count(*) FROM video.outbox_pending WHERE lane NOT IN (-1, video.outbox_lane(aggregate_type, aggregate_id))`,
		"out of the order of versions":         `SELECT count(*) FROM (SELECT version, lag(version) OVER (PARTITION BY aggregate_type, aggregate_id ORDER BY seq) AS before FROM video.outbox_pending) p WHERE version <= before`,
		"below the floor of their lane":        `SELECT count(*) FROM video.outbox_pending p JOIN video.outbox_lanes l ON l.lane = p.lane WHERE p.seq <= l.floor_seq`,
	} {
		var n int
		if err := l.pool.QueryRow(ctx, sql).Scan(&n); err != nil || n != 0 {
			l.t.Errorf("pending rows that are %s: %d, %v, want 0", what, n, err)
		}
	}
}

// A claim answers the oldest events of one lane, whole and in order, and the
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
	want := event.Claimed{Seq: 6, Message: event.Message{
		ID: id, AggregateType: "letter", AggregateID: l.ids["a"], Type: "LetterWritten", Version: 3, SchemaVersion: 1, Payload: []byte("a3"), OccurredAt: epoch,
	}}
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

// P-A1, P-A2, P-D2: a lease keeps everybody else away, however often they ask,
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

// P-A3, P-D3: the settlement of a lost lease changes nothing, whatever is in
// it, and says so; that of the new owner counts.
func TestSettlementIsFenced(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	l.append(l.pool, "a1 b1 c1 d1 d2")
	l.settle(l.settlement(l.claimNames(10, "a1 b1 c1 d1 d2"), "a1 b1 d1"))
	l.append(l.pool, "c2 e1 e2 f1")
	l.due("a")
	l.due("b")

	zombie := l.claim(10, time.Millisecond)
	if got := l.namesOf(zombie); got != "a1/1 b1/1 c2 e1 e2 f1" {
		t.Fatalf("claimed %q", got)
	}
	time.Sleep(20 * time.Millisecond)
	owner := l.claimNames(10, "a1/1 b1/1 c2 e1 e2 f1")
	if owner.Token == zombie.Token || owner.Lane != zombie.Lane {
		t.Fatalf("lanes and tokens %d/%d and %d/%d, want one lane and two tokens", zombie.Lane, zombie.Token, owner.Lane, owner.Token)
	}
	before := l.dump()
	for name, settlement := range map[string]event.Settlement{
		"everything":    l.settlement(zombie, "b1 e1"),
		"nothing":       {Lane: zombie.Lane, Token: zombie.Token},
		"a later token": {Lane: zombie.Lane, Token: owner.Token + 1},
		"no token":      {Lane: zombie.Lane},
		"no lane":       {Lane: 99, Token: owner.Token},
	} {
		if held, err := l.SettleClaim(t.Context(), settlement); held || err != nil {
			t.Errorf("%s: SettleClaim() = %t, %v, want false, nil", name, held, err)
		}
		if diff := cmp.Diff(before, l.dump()); diff != "" {
			t.Errorf("%s: changed (-before +after):\n%s", name, diff)
		}
	}
	l.settle(l.settlement(owner, "b1 e1"))
	if held, err := l.SettleClaim(t.Context(), l.settlement(owner, "")); held || err != nil {
		t.Errorf("a second settlement = %t, %v, want false, nil", held, err)
	}
	got := l.count("SELECT count(*) FROM video.outbox_pending WHERE lane = -1")
	if want := 5; got != want { // b1, d1, d2, e1, e2
		t.Errorf("%d events are set aside, want %d", got, want)
	}
}

// A crash of the server, or a failover, may forget a claim, which is committed
// asynchronously. Its token is not given again: the settlement of the claim
// that was forgotten must not pass for that of the next one, whose rows may be
// others by now.
func TestForgottenClaimIsFenced(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	l.append(l.pool, "a1")
	var token int64
	if err := l.pool.QueryRow(t.Context(), "SELECT lease_token FROM video.outbox_lanes WHERE lane = 3").Scan(&token); err != nil {
		t.Fatal(err)
	}
	forgotten := l.claimNames(10, "a1")
	if _, err := l.pool.Exec(t.Context(), "UPDATE video.outbox_lanes SET lease_token = $1, leased_until = '-infinity' WHERE lane = 3", token); err != nil {
		t.Fatal(err)
	}
	next := l.claimNames(10, "a1")
	if held, err := l.SettleClaim(t.Context(), l.settlement(forgotten, "")); held || err != nil {
		t.Errorf("SettleClaim() of the forgotten claim = %t, %v, want false, nil", held, err)
	}
	l.settle(l.settlement(next, ""))
}

// A claim that chose its lane by a snapshot older than the last settlement of it
// answers what that settlement left: neither events that it deleted, nor does it
// set events aside whose aggregate is blocked no longer, where nobody would find
// them again.
//
// The moment is rare: a settlement after its lease has ended is executed before
// the claim begins, and committed after the claim's snapshot and before its look
// at the row of the lane. Here a policy stops the claim in between.
func TestClaimAnswersWhatTheLastSettlementLeft(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	l.append(l.pool, "a1 b1 b2")
	l.settle(l.settlement(l.claimNames(10, "a1 b1 b2"), "b1"))
	l.append(l.pool, "a2")
	l.due("b")
	late := l.claim(10, time.Millisecond)
	if got := l.namesOf(late); got != "b1/1 a2" {
		t.Fatalf("claimed %q, want b1/1 a2", got)
	}
	time.Sleep(20 * time.Millisecond)
	if _, err := l.pool.Exec(t.Context(), `
		CREATE FUNCTION video.stop() RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
			PERFORM pg_advisory_lock_shared(42);
			PERFORM pg_advisory_unlock_shared(42);
			RETURN true;
		END $$;
		GRANT EXECUTE ON FUNCTION video.stop() TO video_rw;
		ALTER TABLE video.outbox_pending ENABLE ROW LEVEL SECURITY;
		CREATE POLICY stop ON video.outbox_pending USING (video.stop()) WITH CHECK (true)`); err != nil {
		t.Fatal(err)
	}

	settling, err := l.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer settling.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it is committed below
	if _, err := settling.Exec(t.Context(), "SELECT pg_advisory_xact_lock(42)"); err != nil {
		t.Fatal(err)
	}
	recovered, seqs := []string{l.ids["b"]}, []int64{late.Events[0].Seq}
	if _, err := settling.Exec(t.Context(), "SELECT video.outbox_settle($1, $2, $3, $4, '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{letter}', $5, $6, $6)",
		late.Lane, late.Token, []int64{late.Events[1].Seq}, seqs, recovered, late.Events[1].Seq); err != nil {
		t.Fatal(err)
	}
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
		if _, err := conn.Exec(t.Context(), "SET ROLE video_rw"); err != nil { // policies are not for superusers
			t.Error(err)
			return
		}
		if err := conn.QueryRow(t.Context(), "SELECT string_agg(aggregate_id || ' ' || version, ', ') FROM video.outbox_claim(10, 1000000, '1 hour')").Scan(&rows); err != nil {
			t.Error(err)
		}
	}()
	for deadline := time.Now().Add(20 * time.Second); l.count("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the claim does not get to the policy")
		}
	}
	if err := settling.Commit(t.Context()); err != nil { // and let the claim go on
		t.Fatal(err)
	}
	if got, want := <-claimed, l.ids["b"]+" 2"; got != want {
		t.Errorf("claimed %q, want %q", got, want)
	}
}

// A claim ends with the event that fills its bytes, retried ones counted apart,
// and what it leaves out is claimed next.
func TestClaimIsBoundedByBytes(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 1)
	claim := func(maxBytes int64) event.Claim {
		t.Helper()
		claim, err := l.ClaimEvents(t.Context(), 10, maxBytes, hour)
		if err != nil {
			t.Fatal(err)
		}
		return claim
	}
	l.append(l.pool, "a1 b1 c1 c2 c3 c4") // two bytes each
	for _, test := range []struct {
		maxBytes int64
		want     string
	}{{1, "a1"}, {2, "a1"}, {3, "a1 b1"}, {8, "a1 b1 c1 c2"}, {100, "a1 b1 c1 c2 c3 c4"}} {
		got := claim(test.maxBytes)
		if l.namesOf(got) != test.want {
			t.Errorf("claim of %d bytes = %q, want %q", test.maxBytes, l.namesOf(got), test.want)
		}
		l.settle(event.Settlement{Lane: got.Lane, Token: got.Token, Head: got.Events[0].Seq, Tail: got.Events[len(got.Events)-1].Seq})
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
		l.settle(event.Settlement{Lane: got.Lane, Token: got.Token})
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
	if _, err := l.pool.Exec(t.Context(), "UPDATE video.outbox_lanes SET leased_until = leased_until + interval '1 hour' WHERE lane = 3"); err != nil {
		t.Fatal(err)
	}
	next := l.claimNames(10, "a1")
	if held, err := l.SettleClaim(t.Context(), l.settlement(held, "")); held || err != nil {
		t.Errorf("SettleClaim() of the lease of the other clock = %t, %v, want false, nil", held, err)
	}
	l.settle(l.settlement(next, ""))
}

// What a person decides about a blocked aggregate while its event is with the
// broker for the last time, is not undone by the broker's answer.
func TestSkipAndRequeueOutliveAFailure(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		do   func(l *letters, head uuid.UUID) error
		want string
	}{
		{"skip", func(l *letters, head uuid.UUID) error { return l.SkipEvent(l.t.Context(), l.letter("a"), head) }, "a2/0"},
		{"requeue", func(l *letters, _ uuid.UUID) error { return l.RequeueEvent(l.t.Context(), l.letter("a")) }, "a1/0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := newLetters(t, 1)
			l.append(l.pool, "a1 a2")
			l.settle(l.settlement(l.claimNames(10, "a1 a2"), "a1"))
			l.due("a")
			last := l.claimNames(10, "a1/1")
			if err := test.do(l, last.Events[0].ID); err != nil {
				t.Fatal(err)
			}
			settlement := l.settlement(last, "a1")
			settlement.Failed[0].Park = true
			l.settle(settlement)
			l.claimNames(10, test.want)
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

// P-A1, P-A4, P-B1: however many claim at a time, no two have the same event,
// nor the same aggregate, nor the same lane.
func TestConcurrentClaimsShareNothing(t *testing.T) {
	t.Parallel()
	const claimers, aggregates = 16, 100
	l := newLetters(t, claimers)
	for i := range aggregates {
		for version := range 10 {
			if _, err := l.pool.Exec(t.Context(), "SELECT video.outbox_append($1, 'number', $2, 'NumberDrawn', $3, 1, '', now(), NULL)", newID(t), strconv.Itoa(i), version+1); err != nil {
				t.Fatal(err)
			}
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
				claim, err := l.ClaimEvents(t.Context(), 7, 1<<20, hour)
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
	if left := l.count("SELECT count(*) FROM video.outbox_pending"); events+left != 10*aggregates {
		t.Errorf("%d events were claimed and %d are left, want %d together", events, left, 10*aggregates)
	}
}

// P-A5: a transaction that drew its place early and commits late is not
// overlooked, however many passes went by, and whichever transaction has the
// lower id.
func TestLateCommitIsNotLost(t *testing.T) {
	t.Parallel()
	for _, idFirst := range []bool{true, false} {
		t.Run(fmt.Sprintf("idFirst=%t", idFirst), func(t *testing.T) {
			t.Parallel()
			l := newLetters(t, 4)
			version := 0
			pass := func() {
				version++
				l.append(l.pool, fmt.Sprintf("b%d", version))
				l.settle(l.settlement(l.claimNames(10, fmt.Sprintf("b%d", version)), ""))
			}
			floor := func() int { return l.count("SELECT floor_seq FROM video.outbox_lanes WHERE lane = 3") }
			pass()
			late, err := l.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer late.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it is committed below
			if idFirst {
				if _, err := late.Exec(t.Context(), "SELECT pg_current_xact_id()"); err != nil {
					t.Fatal(err)
				}
			}
			for range 20 {
				pass()
			}
			l.append(late, "a1")
			seq := version + 1
			for range 50 {
				pass()
				if got := floor(); got >= seq {
					t.Fatalf("the floor is %d while the event at %d is not committed", got, seq)
				}
			}
			if err := late.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			l.settle(l.settlement(l.claimNames(10, "a1"), ""))
			for deadline := time.Now().Add(20 * time.Second); floor() <= seq; pass() {
				if time.Now().After(deadline) {
					t.Fatalf("the floor is %d, want it above %d once the late transaction has ended", floor(), seq)
				}
			}
		})
	}
}

// A transaction that begins to write while a claim has its lease and not yet its
// events has a higher id than the claim, and may draw a lower seq than what the
// claim then answers. The floor waits for it all the same.
//
// The moment is short. Here a lock stops the claim where it opens the partitions;
// it is on the last one, into which nobody writes. Not parallel, because ids are
// those of the whole server, and the next one of another test would hide it.
func TestFloorWaitsForWhoCameDuringAClaim(t *testing.T) { //nolint:paralleltest // see above
	l := newLetters(t, 8)
	begin := func() pgx.Tx {
		t.Helper()
		tx, err := l.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { tx.Rollback(context.WithoutCancel(t.Context())) }) //nolint:errcheck // it has ended, or the test has failed
		return tx
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	l.append(l.pool, "a1")
	var last string
	do(l.pool.QueryRow(t.Context(), "SELECT max(inhrelid::regclass::text) FROM pg_inherits WHERE inhparent = 'video.outbox'::regclass").Scan(&last))
	lock := begin()
	_, err := lock.Exec(t.Context(), "LOCK TABLE "+last+" IN ACCESS EXCLUSIVE MODE")
	do(err)
	early := begin()
	_, err = early.Exec(t.Context(), "SELECT pg_current_xact_id()")
	do(err)
	claims := make(chan event.Claim, 1)
	go func() {
		claim, err := l.ClaimEvents(t.Context(), 10, 1<<20, hour)
		if err != nil {
			t.Error(err)
		}
		claims <- claim
	}()
	for deadline := time.Now().Add(20 * time.Second); l.count("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = $1::regclass", last) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the claim does not get to the partitions")
		}
	}
	late := begin()
	l.append(late, "b1")
	l.append(early, "c1")
	do(early.Commit(t.Context()))
	do(lock.Rollback(t.Context()))
	claim := <-claims
	if got := l.namesOf(claim); got != "a1 c1" {
		t.Fatalf("claimed %q, want a1 c1", got)
	}
	l.settle(l.settlement(claim, ""))
	l.append(l.pool, "d1")
	l.settle(l.settlement(l.claimNames(10, "d1"), ""))
	do(late.Commit(t.Context()))
	l.settle(l.settlement(l.claimNames(10, "b1"), ""))
}

// P-A5, section 3.4 of the publisher's design: many late commits into one lane,
// while passes follow one another as fast as they can and the floor moves; each
// event is claimed, in the order of its aggregate.
func TestLateCommitsAreNotLost(t *testing.T) {
	t.Parallel()
	const writers, events = 12, 60
	l := newLetters(t, writers+2)
	var running, writing sync.WaitGroup
	for w := range writers {
		name := string(rune('a' + w))
		writing.Go(func() {
			for version := range events {
				tx, err := l.pool.Begin(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				l.append(tx, fmt.Sprintf("%s%d", name, version+1))
				if rand.N(3) == 0 {
					time.Sleep(rand.N(10 * time.Millisecond))
				}
				if rand.N(10) == 0 {
					err = tx.Rollback(t.Context()) // leaves a gap
					l.append(l.pool, fmt.Sprintf("%s%d", name, version+1))
				} else {
					err = tx.Commit(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	versions := make(map[string]int64)
	claimed, floors := 0, make(map[int]bool)
	running.Go(func() {
		for {
			last := false
			select {
			case <-done:
				last = true
			default:
			}
			claim, err := l.ClaimEvents(t.Context(), 5, 1<<20, hour)
			if err != nil {
				t.Error(err)
				return
			}
			if claim.Token == 0 {
				if last {
					return
				}
				continue
			}
			settlement := l.settlement(claim, "")
			for i, e := range claim.Events {
				if rand.N(10) == 0 { // unknown: this one and what follows stay
					settlement.Done = settlement.Done[:i]
					break
				}
				if claimed++; e.Version != versions[e.AggregateID]+1 {
					t.Errorf("version %d of %s was claimed after version %d", e.Version, l.names[e.AggregateID], versions[e.AggregateID])
				}
				versions[e.AggregateID] = e.Version
			}
			if held, err := l.SettleClaim(t.Context(), settlement); !held || err != nil {
				t.Errorf("SettleClaim() = %t, %v, want true, nil", held, err)
			}
			floors[l.count("SELECT floor_seq FROM video.outbox_lanes WHERE lane = 3")] = true
		}
	})
	writing.Wait()
	close(done)
	running.Wait()
	if claimed != writers*events {
		t.Errorf("%d events were claimed, want %d", claimed, writers*events)
	}
	t.Logf("the floor had %d values", len(floors))
}

// The floor of a lane follows its events, so that a claim does not walk over
// what was deleted; a recovery, which brings back old events, takes it down.
func TestFloorFollowsAndComesDown(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	floor := func() int { return l.count("SELECT floor_seq FROM video.outbox_lanes WHERE lane = 3") }
	pass := func(name, refused string) {
		l.append(l.pool, name)
		l.settle(l.settlement(l.claimNames(10, name), refused))
	}
	// follow makes passes until the floor is above some seq. It takes more than a
	// few only while a transaction is open in the database of another test.
	version := 0
	follow := func(seq int) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); floor() <= seq; {
			if time.Now().After(deadline) {
				t.Fatalf("the floor is %d, want it above %d", floor(), seq)
			}
			version++
			pass(fmt.Sprintf("a%d", version), "")
		}
	}
	pass("z1", "z1")
	for seq := range 20 {
		follow(seq)
	}
	l.append(l.pool, "z2")
	l.settle(l.settlement(l.claimNames(10, ""), ""))
	l.due("z")
	l.settle(l.settlement(l.claimNames(10, "z1/1"), ""))
	if got := floor(); got != 0 {
		t.Errorf("after the recovery the floor is %d, want 0", got)
	}
	l.settle(l.settlement(l.claimNames(10, "z2"), ""))
	follow(version)
}

// P-A6: a blocked aggregate waits with all its events, old and new, and holds
// up nobody; when its time has come its first event is tried, alone; and when
// that is acknowledged the others follow in order.
func TestBlockedAggregateWaitsAside(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	l.append(l.pool, "a1 b1 a2 b2 a3")
	l.settle(l.settlement(l.claimNames(4, "a1 b1 a2 b2"), "a1"))
	l.append(l.pool, "a4 b3")
	l.settle(l.settlement(l.claimNames(10, "b3"), "")) // a3 and a4 are set aside
	if got := l.count("SELECT count(*) FROM video.outbox_pending WHERE lane = -1"); got != 4 {
		t.Errorf("%d events are set aside, want a1 to a4", got)
	}
	if claim := l.claim(10, hour); claim.Token != 0 {
		t.Errorf("claimed %q, want nothing: a is not due", l.namesOf(claim))
	}
	l.append(l.pool, "a5")
	l.settle(l.settlement(l.claimNames(10, ""), "")) // it only sets aside
	l.due("a")
	l.settle(l.settlement(l.claimNames(10, "a1/1"), "a1"))
	l.due("a")
	l.append(l.pool, "a6 b4")
	l.settle(l.settlement(l.claimNames(10, "a1/2 b4"), ""))
	l.settle(l.settlement(l.claimNames(3, "a2 a3 a4"), ""))
	l.settle(l.settlement(l.claimNames(10, "a5 a6"), ""))
	if n := l.count("SELECT count(*) FROM video.outbox_pending") + l.count("SELECT count(*) FROM video.outbox_blocked"); n != 0 {
		t.Errorf("%d rows are left, want none", n)
	}
}

// A claim of one event, a probe, brings at most one retried head along,
// however many are due.
func TestSmallClaimRetriesFew(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	l.append(l.pool, "a1 b1 c1 d1 e1")
	l.settle(l.settlement(l.claimNames(10, "a1 b1 c1 d1 e1"), "a1 b1 c1 d1"))
	l.append(l.pool, "e2 e3")
	for _, name := range []string{"d", "b", "c", "a"} {
		l.due(name)
	}
	claim := l.claimNames(1, "d1/1 e2")
	l.settle(event.Settlement{Lane: claim.Lane, Token: claim.Token, Head: 6, Tail: 6}) // unknown
	l.settle(l.settlement(l.claimNames(3, "b1/1 c1/1 d1/1 e2 e3"), ""))
}

// An unknown event stays where it is, and so does what is behind it.
func TestUnknownEventsStay(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	l.append(l.pool, "a1 a2 a3 b1")
	claim := l.claimNames(10, "a1 a2 a3 b1")
	settlement := l.settlement(claim, "")
	settlement.Done = []int64{1, 4}
	l.settle(settlement)
	l.settle(l.settlement(l.claimNames(10, "a2 a3"), ""))
}

// A pending row whose event is gone is claimed as missing, so that somebody
// hears of it; parked, it can be skipped.
func TestMissingEventIsClaimedAsMissing(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	id := l.append(l.pool, "a1")
	l.append(l.pool, "a2")
	if _, err := l.pool.Exec(t.Context(), "DELETE FROM video.outbox WHERE id = $1", id); err != nil {
		t.Fatal(err)
	}
	claim := l.claimNames(10, "a1 a2")
	want := event.Claimed{Seq: 1, Missing: true, Message: event.Message{ID: id, AggregateType: "letter", AggregateID: l.ids["a"], Version: 1}}
	if diff := cmp.Diff(want, claim.Events[0], cmpopts.IgnoreFields(event.Message{}, "OccurredAt"), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("missing event (-want +got):\n%s", diff)
	}
	settlement := l.settlement(claim, "a1")
	settlement.Failed[0].Park = true
	l.settle(settlement)
	if err := l.SkipEvent(t.Context(), l.letter("a"), id); err != nil {
		t.Fatal(err)
	}
	l.settle(l.settlement(l.claimNames(10, "a2/0"), ""))
}

// park lets the first event of an aggregate be refused for the last time.
func (l *letters) park(names, refused string) {
	l.t.Helper()
	settlement := l.settlement(l.claimNames(1000, names), refused)
	settlement.Failed[0].Park, settlement.Failed[0].RetryIn = true, 0
	l.settle(settlement)
}

// ListBlocked tells what is wrong, parked ones first.
func TestListBlocked(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	first := l.append(l.pool, "a1")
	l.append(l.pool, "a2")
	l.settle(l.settlement(l.claimNames(10, "a1 a2"), "a1"))
	second := l.append(l.pool, "b1")
	l.park("b1", "b1")
	got, err := l.Videos.ListBlocked(t.Context(), 10)
	if err != nil {
		t.Fatal(err)
	}
	want := []store.Blocked{
		{Aggregate: l.letter("b"), EventID: second, Version: 1, Attempts: 1, LastError: "refused"},
		{Aggregate: l.letter("a"), EventID: first, Version: 1, Attempts: 1, LastError: "refused"},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(store.Blocked{}, "NextRetry", "ParkedAt")); diff != "" {
		t.Errorf("blocked (-want +got):\n%s", diff)
	}
	if got[0].ParkedAt.IsZero() || !got[0].NextRetry.IsZero() || !got[1].ParkedAt.IsZero() {
		t.Errorf("blocked = %+v, want the first one parked and the other not", got)
	}
	if until := time.Until(got[1].NextRetry); until < 59*time.Minute || until > time.Hour {
		t.Errorf("next retry in %s, want the hour of the settlement", until)
	}
	if got, err := l.Videos.ListBlocked(t.Context(), 1); len(got) != 1 || err != nil {
		t.Errorf("ListBlocked(1) = %+v, %v, want one", got, err)
	}
	backlog, err := l.MeasureOutbox(t.Context(), 2)
	wantBacklog := store.Backlog{OldestBlocked: epoch, Pending: 2, Blocked: 2, Parked: 1}
	if diff := cmp.Diff(wantBacklog, backlog); diff != "" || err != nil {
		t.Errorf("backlog (-want +got), %v:\n%s", err, diff)
	}
}

// Requeuing a parked event publishes it and everything behind it, in order;
// skipping it drops that one event and no other.
func TestParkedEventIsRequeuedOrSkipped(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		act  func(ctx context.Context, l *letters, parked uuid.UUID) error
		head string // retried next; then the rest
		rest string
	}{
		{"requeue", func(ctx context.Context, l *letters, _ uuid.UUID) error { return l.RequeueEvent(ctx, l.letter("a")) }, "a1/0", "a2 a3 a4"},
		{"skip", func(ctx context.Context, l *letters, parked uuid.UUID) error {
			return l.SkipEvent(ctx, l.letter("a"), parked)
		}, "a2/0", "a3 a4"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := newLetters(t, 4)
			parked := l.append(l.pool, "a1")
			other := l.append(l.pool, "a2")
			l.append(l.pool, "b1")
			l.park("a1 a2 b1", "a1")
			l.append(l.pool, "a3 b2")
			l.settle(l.settlement(l.claimNames(10, "b2"), ""))
			if claim := l.claim(10, hour); claim.Token != 0 {
				t.Fatalf("claimed %q, want nothing: a is parked", l.namesOf(claim))
			}
			before := l.dump()
			if err := l.SkipEvent(t.Context(), l.letter("a"), other); kindOf(err) != domain.NotFound {
				t.Errorf("SkipEvent() of another event = %v, want NotFound", err)
			}
			if err := l.SkipEvent(t.Context(), l.letter("b"), parked); kindOf(err) != domain.NotFound {
				t.Errorf("SkipEvent() of another aggregate = %v, want NotFound", err)
			}
			if err := l.RequeueEvent(t.Context(), l.letter("b")); kindOf(err) != domain.NotFound {
				t.Errorf("RequeueEvent() of an aggregate that is not blocked = %v, want NotFound", err)
			}
			if diff := cmp.Diff(before, l.dump()); diff != "" {
				t.Errorf("changed (-before +after):\n%s", diff)
			}
			if err := test.act(t.Context(), l, parked); err != nil {
				t.Fatal(err)
			}
			l.append(l.pool, "a4")
			l.settle(l.settlement(l.claimNames(10, test.head), ""))
			l.settle(l.settlement(l.claimNames(10, test.rest), ""))
			if n := l.count("SELECT count(*) FROM video.outbox_blocked"); n != 0 {
				t.Errorf("%d aggregates are blocked, want none", n)
			}
		})
	}
}

// When the skipped event was the last one, the aggregate recovers by itself.
func TestSkippingTheLastEventRecovers(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	parked := l.append(l.pool, "a1")
	l.park("a1", "a1")
	if err := l.SkipEvent(t.Context(), l.letter("a"), parked); err != nil {
		t.Fatal(err)
	}
	claim := l.claimNames(10, "")
	if diff := cmp.Diff([]event.Aggregate{l.letter("a")}, claim.Recovered); diff != "" {
		t.Errorf("recovered (-want +got):\n%s", diff)
	}
	l.append(l.pool, "a2") // meanwhile
	l.settle(l.settlement(claim, ""))
	l.settle(l.settlement(l.claimNames(10, "a2"), ""))
	if n := l.count("SELECT count(*) FROM video.outbox_blocked"); n != 0 {
		t.Errorf("%d aggregates are blocked, want none", n)
	}
}

// Ten thousand events behind a parked one leave the lane once, a batch per
// claim, and are then read by nobody; they come back in order.
func TestParkedBacklogDoesNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	const behind, batch = 10_000, 1000
	l := newLetters(t, 4)
	l.append(l.pool, "a1")
	l.park("a1", "a1")
	if _, err := l.pool.Exec(t.Context(), `
		SELECT video.outbox_append((substr(video.uuid7_floor(now())::text, 1, 14) || substr(gen_random_uuid()::text, 15))::uuid, 'letter', $1, 'LetterWritten', n + 1, 1, '', now(), NULL)
		FROM generate_series(1, $2::int) n`, l.ids["a"], behind); err != nil {
		t.Fatal(err)
	}
	l.append(l.pool, "b1")
	for range behind / batch {
		l.settle(l.settlement(l.claimNames(batch, ""), ""))
	}
	l.settle(l.settlement(l.claimNames(batch, "b1"), ""))
	if n := l.count("SELECT count(*) FROM video.outbox_pending WHERE lane >= 0"); n != 0 {
		t.Errorf("%d events are in their lane, want none", n)
	}
	if claim := l.claim(batch, hour); claim.Token != 0 {
		t.Errorf("a claim answers %d events, want nothing", len(claim.Events))
	}
	l.append(l.pool, "b2")
	l.settle(l.settlement(l.claimNames(1, "b2"), "")) // the first one read

	if err := l.RequeueEvent(t.Context(), l.letter("a")); err != nil {
		t.Fatal(err)
	}
	l.settle(l.settlement(l.claimNames(batch, "a1/0"), ""))
	for next := int64(2); next <= behind+1; {
		claim := l.claim(batch, hour)
		if len(claim.Events) == 0 {
			t.Fatalf("the claim at version %d is empty", next)
		}
		for _, e := range claim.Events {
			if e.Version != next {
				t.Fatalf("claimed version %d, want %d", e.Version, next)
			}
			next++
		}
		l.settle(l.settlement(claim, ""))
	}
}

// Whatever the broker answers, and whoever requeues and skips meanwhile, no
// event is orphaned, lost, or claimed before the one in front of it.
func TestRandomAnswersLeaveNoOrphan(t *testing.T) {
	t.Parallel()
	const publishers, operators, writers, events = 3, 2, 6, 40
	l := newLetters(t, publishers+operators+writers)
	var mu sync.Mutex
	published := make(map[string]int64)
	skipped := make(map[string][]int64)
	stop := make(chan struct{})
	stopped := func() bool {
		select {
		case <-stop:
			return true
		default:
			return false
		}
	}
	chance := 5 // of a refusal, one in
	var writing, running sync.WaitGroup
	for w := range writers {
		names := string(rune('a'+w)) + string(rune('A'+w))
		writing.Go(func() {
			for version := range events {
				l.append(l.pool, fmt.Sprintf("%c%d %c%d", names[0], version+1, names[1], version+1))
				time.Sleep(rand.N(2 * time.Millisecond))
			}
		})
	}
	for range publishers {
		running.Go(func() {
			for !stopped() {
				claim, err := l.ClaimEvents(t.Context(), 1+rand.N(20), 1<<20, hour)
				if err != nil {
					t.Error(err)
					return
				}
				if claim.Token == 0 {
					time.Sleep(time.Millisecond)
					continue
				}
				mu.Lock()
				odds := chance
				mu.Unlock()
				var refused []string
				for _, e := range claim.Events {
					if odds > 0 && rand.N(odds) == 0 {
						refused = append(refused, l.nameOf(e))
					}
				}
				settlement := l.settlement(claim, strings.Join(refused, " "))
				for i := range settlement.Failed {
					settlement.Failed[i].RetryIn, settlement.Failed[i].Park = rand.N(5*time.Millisecond), rand.N(3) == 0
				}
				mu.Lock()
				for _, e := range claim.Events {
					if !slices.Contains(settlement.Done, e.Seq) && !slices.Contains(settlement.Retried, e.Seq) {
						continue
					}
					name, before := l.names[e.AggregateID], published[l.names[e.AggregateID]]
					for v := before + 1; v < e.Version; v++ {
						if !slices.Contains(skipped[name], v) {
							t.Errorf("version %d of %s was claimed before version %d", e.Version, name, v)
						}
					}
					published[name] = max(before, e.Version)
				}
				mu.Unlock()
				if held, err := l.SettleClaim(t.Context(), settlement); !held || err != nil {
					t.Errorf("SettleClaim() = %t, %v, want true, nil", held, err)
				}
			}
		})
	}
	for range operators {
		running.Go(func() {
			for !stopped() {
				blocked, err := l.Videos.ListBlocked(t.Context(), 100)
				if err != nil {
					t.Error(err)
					return
				}
				for _, b := range blocked {
					if b.ParkedAt.IsZero() || b.EventID == uuid.Nil {
						continue
					}
					if rand.N(10) > 0 {
						err = l.RequeueEvent(t.Context(), b.Aggregate)
					} else {
						mu.Lock() // noted before it can be seen
						name := l.names[b.ID]
						skipped[name] = append(skipped[name], b.Version)
						mu.Unlock()
						err = l.SkipEvent(t.Context(), b.Aggregate, b.EventID)
					}
					if err != nil && kindOf(err) != domain.NotFound {
						t.Error(err)
					}
				}
				time.Sleep(3 * time.Millisecond)
			}
		})
	}
	writing.Wait()
	time.Sleep(100 * time.Millisecond)
	mu.Lock()
	chance = 0 // now everything is acknowledged
	mu.Unlock()
	for deadline := time.Now().Add(20 * time.Second); l.count("SELECT (SELECT count(*) FROM video.outbox_pending) + (SELECT count(*) FROM video.outbox_blocked)") > 0; {
		if time.Now().After(deadline) {
			t.Errorf("left after 20s:\n%s", l.dump())
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	close(stop)
	running.Wait()
	for w := range writers {
		for _, name := range []string{string(rune('a' + w)), string(rune('A' + w))} {
			if published[name] < events && !slices.Contains(skipped[name], events) {
				t.Errorf("%s was published up to version %d, want %d", name, published[name], events)
			}
		}
	}
}
