package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store"
)

// A blocked aggregate waits with all its events, old and new, and holds
// up nobody; when its time has come the first is tried, alone; and when that is
// acknowledged the others follow in order, a batch at a time, and new ones behind
// the last of them.
func TestBlockedAggregateWaitsAside(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	l.append(l.pool, "a1 b1 a2 b2 a3")
	l.settle(l.settlement(l.claimNames(4, "a1 b1 a2 b2"), "a1"))
	l.append(l.pool, "a4 b3")
	l.settle(l.settlement(l.claimNames(10, "a3! a4! b3"), ""))
	if got := l.count("SELECT count(*) FROM video_catalog.outbox_pending WHERE lane = -1"); got != 4 {
		t.Errorf("%d events are set aside, want a1 to a4", got)
	}
	if claim := l.claim(10, hour); claim.Token != 0 {
		t.Errorf("claimed %q, want nothing: a is not due", l.namesOf(claim))
	}
	l.append(l.pool, "a5")
	l.settle(l.settlement(l.claimNames(10, "a5!"), ""))
	l.due("a")
	l.settle(l.settlement(l.claimNames(10, "a1/1"), "a1"))
	l.due("a")
	l.append(l.pool, "a6 b4")
	l.settle(l.settlement(l.claimNames(10, "a1/2 a6! b4"), ""))
	l.append(l.pool, "a7 b5")
	l.settle(l.settlement(l.claimNames(5, "a2/0 a3/0 a4/0 a5/0 a6/0 a7! b5"), ""))
	l.append(l.pool, "a8 b6")
	l.settle(l.settlement(l.claimNames(3, "a7/0 a8 b6"), ""))
	if n := l.count("SELECT count(*) FROM video_catalog.outbox_pending") + l.count("SELECT count(*) FROM video_catalog.outbox_blocked"); n != 0 {
		t.Errorf("%d rows are left, want none", n)
	}
}

// So it is beside more blocked aggregates than a claim takes at a time.
func TestBlockedAmongMany(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	l.append(l.pool, "a1 b1")
	l.settle(l.settlement(l.claimNames(10, "a1 b1"), "a1"))
	if _, err := l.pool.Exec(t.Context(), `
		INSERT INTO video_catalog.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, last_error, parked_at)
		SELECT 'letter', 'other ' || n, 3, 10, 'refused', now() FROM generate_series(1, 1500) n`); err != nil {
		t.Fatal(err)
	}
	l.append(l.pool, "b2 a2 c1 a3 b3")
	l.settle(l.settlement(l.claimNames(4, "b2 a2! c1 a3!"), ""))
	l.due("a")
	l.settle(l.settlement(l.claimNames(10, "a1/1 b3"), ""))
	l.settle(l.settlement(l.claimNames(10, "a2/0 a3/0"), ""))
	if n := l.count("SELECT count(*) FROM video_catalog.outbox_blocked"); n != 1500 {
		t.Errorf("%d aggregates are blocked, want the others", n)
	}
}

// A blocked event is left out when it is behind the event that filled the claim,
// like any other.
func TestBlockedEventsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	refused := l.append(l.pool, "a1")
	l.park("a1", "a1")
	l.append(l.pool, "c3 c4 a2 a3") // two bytes each, but for those of version 3, which have 3,002
	claim, err := l.ClaimEvents(t.Context(), 10, 3, hour, envelope.Aggregate{})
	if err != nil || l.namesOf(claim) != "c3" {
		t.Fatalf("claimed %q, %v, want c3", l.namesOf(claim), err)
	}
	l.settle(l.settlement(claim, ""))
	if err := l.SkipEvent(t.Context(), l.letter("a"), refused); err != nil {
		t.Fatal(err)
	}
	l.settle(l.settlement(l.claimNames(10, "c4 a2 a3"), ""))
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
	l.settle(outbox.Settlement{Lane: claim.Lane, Token: claim.Token, Head: 6, Tail: 6}) // unknown
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

// park lets the first event of an aggregate be refused for the last time.
func (l *letters) park(names, refused string) {
	l.t.Helper()
	settlement := l.settlement(l.claimNames(1000, names), refused)
	settlement.Failed[0].Park, settlement.Failed[0].RetryIn = true, 0
	l.settle(settlement)
}

// An attempt counts for the event that was refused: behind one that the broker
// took it is the first of another one, also where it was not aside before.
func TestAttemptsAreOfOneEvent(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	l.append(l.pool, "a1 a2 a3")
	l.settle(l.settlement(l.claimNames(10, "a1 a2 a3"), "a1"))
	l.due("a")
	l.settle(l.settlement(l.claimNames(10, "a1/1"), ""))
	l.settle(l.settlement(l.claimNames(10, "a2/0 a3/0"), "a3"))
	l.append(l.pool, "a4 a5")
	l.settle(l.settlement(l.claimNames(10, "a3/0 a4 a5"), "a4"))
	l.settle(l.settlement(l.claimNames(10, "a4/0 a5/0"), "a4"))
	l.due("a")
	l.append(l.pool, "a6")
	l.settle(l.settlement(l.claimNames(10, "a4/1 a6!"), ""))
	l.settle(l.settlement(l.claimNames(10, "a5/0 a6/0"), ""))
}

// An aggregate that is being published from aside holds no error of an event
// that the broker has.
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

// What is set aside is tried within the bytes of a claim, and what is behind it
// waits for the rest of it.
func TestRetriesHaveBytes(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	l.append(l.pool, "a1 a2 a3 a4 b1") // two bytes each, but for a3, which has 3,002
	l.settle(l.settlement(l.claimNames(10, "a1 a2 a3 a4 b1"), "a1"))
	l.due("a")
	l.settle(l.settlement(l.claimNames(10, "a1/1"), ""))
	l.append(l.pool, "a5 b2")
	claim, err := l.ClaimEvents(t.Context(), 10, 3, hour, envelope.Aggregate{})
	if got := l.namesOf(claim); got != "a2/0 a3/0 a5! b2" || err != nil {
		t.Fatalf("claimed %q, %v, want up to the event with the third byte, of each kind", got, err)
	}
	l.settle(l.settlement(claim, ""))
	l.settle(l.settlement(l.claimNames(10, "a4/0 a5/0"), ""))
}

// An event that was refused is tried without those behind it, so others that are
// due have their places, also where it is never answered.
func TestRetriesShareTheirPlaces(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	l.append(l.pool, "a1 a2 a3 b1 b2")
	l.settle(l.settlement(l.claimNames(10, "a1 a2 a3 b1 b2"), "a1 b1"))
	l.due("a")
	l.due("b")
	claim := l.claimNames(2, "a1/1 b1/1")
	l.settle(outbox.Settlement{Lane: claim.Lane, Token: claim.Token})
	l.settle(l.settlement(l.claimNames(2, "a1/1 b1/1"), "b1"))
	l.due("b")
	// Now a batch of a is tried, and not answered.
	claim = l.claimNames(2, "a2/0 a3/0")
	l.settle(outbox.Settlement{Lane: claim.Lane, Token: claim.Token, Recovered: []envelope.Aggregate{l.letter("a")}})
	l.claimNames(2, "a2/0 b1/2")
}

// A claim tries a hundred aggregates at most.
func TestClaimTriesAHundredAggregates(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 1)
	if _, err := l.pool.Exec(t.Context(), `
		INSERT INTO video_catalog.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, next_retry_at, last_error)
		SELECT 'letter', 'other ' || n, 3, 0, now(), 'refused' FROM generate_series(1, 150) n`); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{100, 50} {
		claim := l.claimNames(1000, "")
		if len(claim.Recovered) != want {
			t.Errorf("%d aggregates are tried, want %d", len(claim.Recovered), want)
		}
		l.settle(l.settlement(claim, ""))
	}
}

// Aggregates that were skipped empty take a place each: who fits in no more may
// have more aside than the claim has.
func TestRecoveredTakePlaces(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	gone := l.append(l.pool, "a1")
	l.append(l.pool, "b1 b2")
	l.settle(l.settlement(l.claimNames(10, "a1 b1 b2"), "a1 b1"))
	if err := l.SkipEvent(t.Context(), l.letter("a"), gone); err != nil {
		t.Fatal(err)
	}
	if err := l.RequeueEvent(t.Context(), l.letter("b")); err != nil {
		t.Fatal(err)
	}
	l.append(l.pool, "b3")
	l.settle(l.settlement(l.claimNames(2, "b1/0 b3!"), ""))
	l.settle(l.settlement(l.claimNames(3, "b2/0 b3/0"), ""))
}

// Who skips an event while the settlement of its publication is under way, because
// somebody else had skipped the one before, is told that there is nothing to skip.
func TestSkipWhatIsPublished(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	first, second := l.append(l.pool, "a1"), l.append(l.pool, "a2")
	l.settle(l.settlement(l.claimNames(10, "a1 a2"), "a1"))
	if err := l.RequeueEvent(t.Context(), l.letter("a")); err != nil {
		t.Fatal(err)
	}
	claim := l.claimNames(10, "a1/0 a2/0")
	if err := l.SkipEvent(t.Context(), l.letter("a"), first); err != nil {
		t.Fatal(err)
	}
	// The settlement waits here, behind what it deletes.
	hold, err := l.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // committed by then, or nobody cares
	if _, err := hold.Exec(t.Context(), "SELECT FROM video_catalog.outbox_blocked FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
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
	if err := hold.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-settled; err != nil {
		t.Fatal(err)
	}
	if err := <-skipped; kindOf(err) != problem.NotFound {
		t.Errorf("SkipEvent() of what was published = %v, want NotFound", err)
	}
	if n := l.count("SELECT count(*) FROM video_catalog.outbox_blocked"); n != 0 {
		t.Errorf("%d aggregates are blocked, want none", n)
	}
}

// ListBlocked returns what is wrong, in the order of the keys.
func TestListBlocked(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	first := l.append(l.pool, "a1")
	l.append(l.pool, "a2")
	l.settle(l.settlement(l.claimNames(10, "a1 a2"), "a1"))
	second := l.append(l.pool, "b1")
	l.park("b1", "b1")
	got, err := l.listBlocked(10)
	if err != nil {
		t.Fatal(err)
	}
	want := []admin.Blocked{
		{Aggregate: l.letter("a"), EventID: first, Version: 1, Attempts: 1, LastError: "refused"},
		{Aggregate: l.letter("b"), EventID: second, Version: 1, Attempts: 1, LastError: "refused"},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(admin.Blocked{}, "EventType", "EventTime", "NextRetry", "ParkedAt", "Cause")); diff != "" {
		t.Errorf("blocked (-want +got):\n%s", diff)
	}
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
		next string
	}{
		{"requeue", func(ctx context.Context, l *letters, _ uuid.UUID) error { return l.RequeueEvent(ctx, l.letter("a")) }, "a1/0 a2/0 a3/0 a4"},
		{"skip", func(ctx context.Context, l *letters, parked uuid.UUID) error {
			return l.SkipEvent(ctx, l.letter("a"), parked)
		}, "a2/0 a3/0 a4"},
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
			l.settle(l.settlement(l.claimNames(10, "a3! b2"), ""))
			if claim := l.claim(10, hour); claim.Token != 0 {
				t.Fatalf("claimed %q, want nothing: a is parked", l.namesOf(claim))
			}
			before := l.dump()
			if err := l.SkipEvent(t.Context(), l.letter("a"), other); kindOf(err) != problem.NotFound {
				t.Errorf("SkipEvent() of another event = %v, want NotFound", err)
			}
			if err := l.SkipEvent(t.Context(), l.letter("b"), parked); kindOf(err) != problem.NotFound {
				t.Errorf("SkipEvent() of another aggregate = %v, want NotFound", err)
			}
			if err := l.RequeueEvent(t.Context(), l.letter("b")); kindOf(err) != problem.NotFound {
				t.Errorf("RequeueEvent() of an aggregate that is not blocked = %v, want NotFound", err)
			}
			if diff := cmp.Diff(before, l.dump()); diff != "" {
				t.Errorf("changed (-before +after):\n%s", diff)
			}
			if err := test.act(t.Context(), l, parked); err != nil {
				t.Fatal(err)
			}
			l.append(l.pool, "a4")
			l.settle(l.settlement(l.claimNames(10, test.next), ""))
			if n := l.count("SELECT count(*) FROM video_catalog.outbox_blocked"); n != 0 {
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
	if diff := cmp.Diff([]envelope.Aggregate{l.letter("a")}, claim.Recovered); diff != "" {
		t.Errorf("recovered (-want +got):\n%s", diff)
	}
	l.append(l.pool, "a2") // meanwhile
	l.settle(l.settlement(claim, ""))
	l.settle(l.settlement(l.claimNames(10, "a2"), ""))
	if n := l.count("SELECT count(*) FROM video_catalog.outbox_blocked"); n != 0 {
		t.Errorf("%d aggregates are blocked, want none", n)
	}
}

// Ten thousand events behind a parked one leave the lane once, a batch per
// claim, and are then read by nobody; requeued, they are published as they left.
func TestParkedBacklogDoesNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	const behind, batch = 10_000, 1000
	l := newLetters(t, 4)
	l.append(l.pool, "a1")
	l.park("a1", "a1")
	if _, err := l.pool.Exec(t.Context(), `
		INSERT INTO video_catalog.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
		SELECT video_catalog.outbox_lane('letter', $1), gen_random_uuid(), 'letter', $1, 'LetterWritten', n + 1, 1, '', now()
		FROM generate_series(1, $2::int) n`, l.ids["a"], behind); err != nil {
		t.Fatal(err)
	}
	l.append(l.pool, "b1")
	for range behind / batch {
		claim := l.claim(batch, hour)
		for _, e := range claim.Events {
			if !e.Blocked || len(claim.Events) != batch {
				t.Fatalf("claimed %q, want %d blocked events", l.namesOf(claim), batch)
			}
		}
		l.settle(l.settlement(claim, ""))
	}
	l.settle(l.settlement(l.claimNames(batch, "b1"), ""))
	if n := l.count("SELECT count(*) FROM video_catalog.outbox_pending WHERE lane >= 0"); n != 0 {
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
	for next := int64(1); next <= behind+1; {
		claim := l.claim(batch, hour)
		if want := min(batch, behind+2-int(next)); len(claim.Events) != want {
			t.Fatalf("the claim at version %d has %d events, want %d", next, len(claim.Events), want)
		}
		for _, e := range claim.Events {
			if e.Version != next || !e.Retry {
				t.Fatalf("claimed version %d, want %d, for a retry", e.Version, next)
			}
			next++
		}
		l.settle(l.settlement(claim, ""))
	}
	if n := l.count("SELECT count(*) FROM video_catalog.outbox_blocked"); n != 0 {
		t.Errorf("%d aggregates are blocked, want none", n)
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
				claim, err := l.ClaimEvents(t.Context(), 1+rand.N(20), 1<<20, hour, envelope.Aggregate{})
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
				blocked, err := l.listBlocked(100)
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
					if err != nil && kindOf(err) != problem.NotFound {
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
	for deadline := time.Now().Add(20 * time.Second); l.count("SELECT (SELECT count(*) FROM video_catalog.outbox_pending) + (SELECT count(*) FROM video_catalog.outbox_blocked)") > 0; {
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
