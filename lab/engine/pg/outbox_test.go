package pg_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
)

// The reason of a refusal is any text of the broker. A text that PostgreSQL cannot store
// as it is must not prevent the settlement of the claim.
func TestRefusalOfAnyTextIsSettled(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 2)
	l.append(l.pool, "a1 b1")
	settlement := l.settlement(l.claimNames(10, "a1 b1"), "a1")
	settlement.Refused[0].Error = "refused: \x00\xff"
	l.settle(settlement)
	l.due("a")
	l.claimNames(10, "a1/1")
	pgtest.WantCount(t, l.pool, 1, "reasons that are stored in characters", `SELECT count(*) FROM video_catalog.outbox_blocked WHERE last_error = 'refused: \x00\xff'`)
	if blocked, err := l.listBlocked(1); err != nil || len(blocked) != 1 || blocked[0].LastError != settlement.Refused[0].Error {
		t.Errorf("ListBlocked() = %+v, %v, want the broker's words", blocked, err)
	}
}

// A crash of the server, or a failover, may forget a claim, which is committed
// asynchronously. Its token is not given again. Otherwise the settlement of the
// forgotten claim could settle the next claim, which may have other rows.
func TestForgottenClaimIsFenced(t *testing.T) {
	t.Parallel()
	for name, token := range map[string]int64{
		"released": 0,
		// The token if tokens were made of the time.
		"given when the clock was an hour ahead": time.Now().Add(time.Hour).UnixMicro(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLetters(t, 4)
			l.append(l.pool, "a1")
			setToken := func() {
				execute(t, l.pool, "UPDATE video_catalog.outbox_lanes SET token = $1, leased_until = '-infinity' WHERE lane = 3", token)
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

// A claim may choose its lane by a snapshot older than the lane's last settlement.
// It returns the events that this settlement left, or nothing. It returns no
// deleted events, and marks no events as blocked whose aggregate is blocked no
// longer: they would be deferred, and never found again.
//
// The moment is rare: a settlement after its lease has ended is executed before the
// claim begins, and committed after the claim's snapshot and before the claim reads
// the row of the lane. Here a trigger stops the commit, and a policy the claim.
func TestClaimAnswersWhatTheLastSettlementLeft(t *testing.T) {
	t.Parallel()
	for _, lanes := range []int{1, outbox.Lanes} {
		t.Run(strconv.Itoa(lanes), func(t *testing.T) {
			t.Parallel()
			claimAfterLateSettlement(t, lanes)
		})
	}
}

func claimAfterLateSettlement(t *testing.T, lanes int) {
	t.Helper()
	l := newLetters(t, 4)
	l.append(l.pool, "a1 b1 b2")
	l.settle(l.settlement(l.claimNames(10, "a1 b1 b2"), "b1"))
	l.append(l.pool, "a2")
	must(t, l.RequeueEvent(t.Context(), l.letter("b")))
	late := l.claim(10, time.Millisecond)
	if got := l.namesOf(late); got != "b1/0 b2/0 a2" {
		t.Fatalf("claimed %q, want b1/0 b2/0 a2", got)
	}
	l.append(l.pool, "b3")
	time.Sleep(20 * time.Millisecond)
	execute(t, l.pool, `
		CREATE FUNCTION video_catalog.stop() RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
			PERFORM pg_advisory_lock_shared(42);
			PERFORM pg_advisory_unlock_shared(42);
			RETURN true;
		END $$;
		CREATE FUNCTION video_catalog.hold() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(43); RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER hold AFTER UPDATE ON video_catalog.outbox_lanes DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION video_catalog.hold();
		GRANT EXECUTE ON FUNCTION video_catalog.stop() TO video_catalog_rw;
		ALTER TABLE video_catalog.outbox_pending ENABLE ROW LEVEL SECURITY;
		CREATE POLICY stop ON video_catalog.outbox_pending USING (video_catalog.stop()) WITH CHECK (true)`)

	lock := func(key int) (unlock func()) {
		tx, err := l.pool.Begin(t.Context())
		must(t, err)
		unlock = sync.OnceFunc(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
		t.Cleanup(unlock)
		execute(t, tx, "SELECT pg_advisory_xact_lock($1)", key)
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
		names := ""
		defer func() { claimed <- names }()
		cfg, err := pgxpool.ParseConfig(pgtest.Direct(t, l.pool.Config().ConnString())) // SET ROLE needs a session
		if err != nil {
			t.Error(err)
			return
		}
		cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "SET ROLE video_catalog_rw") // policies are not for superusers
			return err
		}
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Error(err)
			return
		}
		defer pool.Close()
		// The first claim may find that the row has moved, and take nothing.
		for attempt := 1; attempt <= 2 && names == ""; attempt++ {
			claim, err := pg.NewOutbox(pool).ClaimEvents(t.Context(), outbox.Limits{Lanes: lanes, Events: 10, Bytes: 1 << 20, Lease: hour})
			if err != nil {
				t.Error(err)
			}
			names = l.namesOf(claim)
			t.Logf("attempt %d: %q", attempt, names)
		}
	}()
	l.reaches(2, waiting) // the claim has got to the policy
	letSettle()
	settling.Wait()
	letClaim()
	if got, want := <-claimed, "b3"; got != want {
		t.Errorf("claimed %q, want %q", got, want)
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
		must(t, err)
		claim, err := pg.NewOutbox(pool).ClaimEvents(t.Context(), outbox.Limits{Lanes: 1, Events: 10, Bytes: 1 << 20, Lease: 0})
		pool.Close()
		if diff := l.differ(claim); err != nil || l.namesOf(claim) != "a1 a2 a3" || diff != "" {
			t.Errorf("%s: ClaimEvents() = %q, %v, want a1 a2 a3 (-appended +claimed):\n%s", mode, l.namesOf(claim), err, diff)
		}
	}
}

// After the clock was set back, a lease that ends far in the future does not count. A
// lease a little longer than the requested one counts. A released lane is free at once.
func TestClaimAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 1)
	l.append(l.pool, "a1")
	held := l.claim(10, 3*time.Minute)
	if got := l.namesOf(l.claim(10, 2*time.Minute)); got != "" {
		t.Errorf("claim for 2m beside a lease of 3m = %q, want nothing", got)
	}
	execute(t, l.pool, "UPDATE video_catalog.outbox_lanes SET leased_until = leased_until + interval '3 hours' WHERE lane = 3")
	next := l.claimNames(10, "a1")
	if held, err := l.SettleClaim(t.Context(), l.settlement(held, "")); held || err != nil {
		t.Errorf("SettleClaim() of the lease of the other clock = %t, %v, want false, nil", held, err)
	}
	l.settle(l.settlement(next, ""))

	l.append(l.pool, "a2")
	l.setClockBack(25 * time.Second)
	if got := l.namesOf(l.claim(10, 15*time.Second)); got != "a2" {
		t.Errorf("claim of a lane that was released 25s ahead = %q, want a2", got)
	}
	l.append(l.pool, "A1")
	if got := l.namesOf(l.claimOf(outbox.Lanes, 10, 15*time.Second)); got != "A1" {
		t.Errorf("claim of all lanes beside a lease = %q, want A1", got)
	}
}

// setClockBack makes all lanes as they are after the clock of the database was set back.
func (l *letters) setClockBack(by time.Duration) {
	l.t.Helper()
	execute(l.t, l.pool, "UPDATE video_catalog.outbox_lanes SET leased_until = leased_until + $1::interval", by)
}

// A lane that was released before the clock was set back does not wait for lanes that
// were released since, and they do not wait for it.
func TestClaimGoesRoundAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{10 * time.Second, 25 * time.Second, 3 * time.Hour} {
		t.Run(by.String(), func(t *testing.T) {
			t.Parallel()
			l := newLetters(t, 1)
			l.append(l.pool, "a1 A1")
			pass := func() int16 {
				t.Helper()
				claim := l.claim(10, 15*time.Second)
				if len(claim.Spans) != 1 {
					t.Fatalf("claimed %v, want one lane", claim.Spans)
				}
				l.settle(outbox.Settlement{Lease: claim.Lease}) // nothing was published
				return claim.Spans[0].Lane
			}
			pass()
			pass()
			l.setClockBack(by)
			last := pass()
			for n := range 6 {
				lane := pass()
				if lane == last {
					t.Errorf("pass %d: lane %d was claimed twice, while %q waits in another", n, lane, "a1 A1")
				}
				last = lane
			}
			l.setClockBack(by)
			if claim := l.claimOf(outbox.Lanes, 10, 15*time.Second); len(claim.Spans) != 2 {
				t.Errorf("claimed %v of all lanes, want both with work", claim.Spans)
			}
		})
	}
}
