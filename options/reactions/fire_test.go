package reactions

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg/pgtest"
)

var errNotNow = errors.New("not now: \x00\xff")

// ring is the alarm of videos: it adds the name of the timer as a tag.
func ring(v domain.Video, name string, stamp domain.Stamp) (*fact, error) {
	switch name {
	case "broken":
		return nil, errNotNow
	case "panic":
		panic("of an alarm")
	}
	return tagged(v, name, stamp)
}

// now is the shortest duration of a timer: 0 would cancel it.
const now = time.Microsecond

func waiting(t testing.TB, timers Timers) int64 {
	t.Helper()
	_, n, err := timers.Waiting(t.Context(), 1_000_000)
	must(t, err)
	return n
}

// A timer fires once, with any number of processes and interruptions, and not before it is
// due. The cause of its event is the event that set the timer.
func TestTimerFiresOnce(t *testing.T) {
	t.Parallel()
	pool, videos, ids := stored(t, 8, 50)
	timers := NewTimers(videos, ring)
	set(t, videos, after{"first": now, "second": now, "later": time.Hour}, ids...)
	var clocks sync.WaitGroup
	for range 6 {
		clocks.Go(func() {
			for range 20 {
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(30*time.Millisecond))
				_, _ = timers.Fire(ctx, 1+rand.N(20))
				cancel()
			}
		})
	}
	clocks.Wait()
	for waiting(t, timers) > int64(len(ids)) {
		_, err := timers.Fire(t.Context(), 20)
		must(t, err)
	}
	for _, id := range ids {
		v, err := videos.GetVideo(t.Context(), id)
		if err != nil || v.Version != 4 || len(v.Tags) != 2 || v.Tags[0] == v.Tags[1] {
			t.Errorf("version %d with tags %v, %v, want each timer once", v.Version, v.Tags, err)
		}
	}
	if n := pgtest.Count(t, pool, `SELECT count(*) FROM video_catalog.outbox fired JOIN video_catalog.outbox set ON set.id = fired.causation_id
		WHERE fired.caller IN ('timer first', 'timer second') AND fired.version > 2 AND set.version = 2 AND fired.correlation_id = set.id AND set.aggregate_id = fired.aggregate_id`); n != 2*len(ids) {
		t.Errorf("%d events have the cause with which their timer was set, want %d", n, 2*len(ids))
	}
}

// The event of a timer belongs to the chain of causes of the event that set the timer, and
// wakes the publisher.
func TestTimerContinuesTheChain(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	commits := 0
	videos := newClips(pool, func() { commits++ })
	id, causation := someClips(t, videos, 1)[0], domain.Causation{CausationID: newID(t), CorrelationID: newID(t)}
	must(t, videos.change(t.Context(), id, func(v domain.Video) (*fact, error) {
		e, err := rename("set", after{"x": now})(v)
		if e != nil {
			e.Causation = causation
		}
		return e, err
	}))
	timers := NewTimers(videos, ring)
	if late, _, err := timers.Waiting(t.Context(), 10); err != nil || late <= 0 {
		t.Errorf("Waiting() = %s late, %v, want it late", late, err)
	}
	if fired, err := timers.Fire(t.Context(), 10); err != nil || len(fired.Late) != 1 || fired.Late[0] <= 0 {
		t.Errorf("Fire() = %+v, %v, want one fired, late", fired, err)
	}
	if n := pgtest.Count(t, pool, `SELECT count(*) FROM video_catalog.outbox fired JOIN video_catalog.outbox set ON set.id = fired.causation_id
		WHERE fired.version = 3 AND set.version = 2 AND fired.correlation_id = $1 AND set.correlation_id = $1`, causation.CorrelationID); n != 1 {
		t.Error("the event of the timer has not the cause and the chain with which it was set")
	}
	if commits != 3 {
		t.Errorf("the publisher was woken %d times, want for each of 3 events", commits)
	}
}

// Timers follow the clock of the database, not the clock of the process. If that clock jumps ahead,
// timers fire once, and not again after it was set back. If it jumps back, timers wait until it
// reaches their time. To simulate a jump, the test shifts all timers.
func TestTimersAndClocks(t *testing.T) {
	t.Parallel()
	pool, videos, ids := stored(t, 2, 2)
	timers := NewTimers(videos, ring)
	for i, wrong := range []time.Duration{-time.Hour, time.Hour} { // the clock of the process
		at, err := stamp(domain.Causation{})
		must(t, err)
		at.Time = at.Time.Add(wrong)
		var before, due, later time.Time
		must(t, pool.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&before))
		must(t, videos.change(t.Context(), ids[i], func(v domain.Video) (*fact, error) {
			e, err := retitled(v, "x", at)
			if e != nil {
				e.Timers = after{"x": 30 * time.Minute}
			}
			return e, err
		}))
		must(t, pool.QueryRow(t.Context(), "SELECT due_at, clock_timestamp() FROM video_catalog.timers WHERE aggregate_id = $1", ids[i]).Scan(&due, &later))
		if due.Before(before.Add(30*time.Minute)) || due.After(later.Add(30*time.Minute)) {
			t.Errorf("with the clock of the process off by %s, the timer of 30m is due in %s", wrong, due.Sub(before))
		}
	}
	for _, jump := range []struct {
		by   string
		want int // how many timers fire
	}{{"0", 0}, {"-1 hour", 0}, {"1 hour", 0}, {"1 hour", 2}, {"-1 day", 0}, {"1 day", 0}} {
		pgtest.Execute(t, pool, "UPDATE video_catalog.timers SET due_at = due_at - interval '"+jump.by+"'")
		fired := 0
		for range 2 {
			result, err := timers.Fire(t.Context(), 10)
			if err != nil || len(result.Failed) > 0 {
				t.Fatalf("Fire() = %+v, %v", result, err)
			}
			fired += len(result.Late)
		}
		if fired != jump.want {
			t.Errorf("after a jump of the database's clock by %s %d timers fire, want %d", jump.by, fired, jump.want)
		}
	}
}

// An event replaces and cancels timers of its aggregate, also if another timer caused the event.
// If one process cancels a timer while another process fires it, the timer is cancelled or fires,
// but not both.
func TestTimerIsCancelled(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 8)
	videos := newClips(pool, nil)
	timers := NewTimers(videos, func(v domain.Video, name string, stamp domain.Stamp) (*fact, error) {
		e, err := ring(v, name, stamp)
		if e != nil && name == "a" {
			e.Timers = after{"b": 0}
		}
		return e, err
	})
	ids := someClips(t, videos, 40)
	set(t, videos, after{"a": now, "b": time.Minute}, ids[0])
	set(t, videos, after{"x": now}, ids[1])
	set(t, videos, after{"x": time.Hour}, ids[1])
	set(t, videos, after{"x": now}, ids[2])
	set(t, videos, after{"x": 0}, ids[2])
	for range 3 {
		_, err := timers.Fire(t.Context(), 10)
		must(t, err)
	}
	if n := waiting(t, timers); n != 1 {
		t.Errorf("%d timers wait, want the one that was set to another time", n)
	}
	for i, want := range []string{"a", "", ""} {
		if v, err := videos.GetVideo(t.Context(), ids[i]); err != nil || strings.Join(v.Tags, ",") != want {
			t.Errorf("video %d has the tags %v, %v, want %q", i, v.Tags, err, want)
		}
	}

	raced := ids[3:]
	for _, id := range raced {
		set(t, videos, after{"x": now}, id)
	}
	var both sync.WaitGroup
	both.Go(func() {
		for _, id := range raced {
			_ = videos.change(t.Context(), id, func(v domain.Video) (*fact, error) {
				if len(v.Tags) > 0 {
					return nil, nil
				}
				return rename("cancelled", after{"x": 0})(v)
			})
		}
	})
	both.Go(func() {
		for range 2 * len(raced) {
			_, _ = timers.Fire(t.Context(), 1)
		}
	})
	both.Wait()
	if n := waiting(t, timers); n != 1 {
		t.Errorf("%d timers wait, want 1", n)
	}
	for _, id := range raced {
		v, err := videos.GetVideo(t.Context(), id)
		if fired := len(v.Tags) == 1; err != nil || v.Version != 3 || fired == (v.Title == "cancelled") {
			t.Errorf("title %q, tags %v, version %d, %v: want either fired or cancelled", v.Title, v.Tags, v.Version, err)
		}
	}
}

// A timer that fails is tried again later, and delays no other timer, whether its decision fails
// or the database refuses its row.
func TestTimerThatFailsIsPostponed(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 4)
	videos := newClips(pool, nil)
	timers := NewTimers(videos, func(v domain.Video, name string, stamp domain.Stamp) (*fact, error) {
		e, err := ring(v, name, stamp)
		if name == "refused" {
			e.Video.State = "unknown to the database"
		}
		return e, err
	})
	ids := someClips(t, videos, 3)
	set(t, videos, after{"broken": now}, ids[0])
	set(t, videos, after{"good": now}, ids[1])
	var before time.Time // by the clock of the database; how long this test takes must not matter
	must(t, pool.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&before))
	fired, err := timers.Fire(t.Context(), 10)
	if err != nil || len(fired.Late) != 1 || len(fired.Failed) != 1 || !errors.Is(fired.Failed[0], errNotNow) {
		t.Errorf("Fire() = %+v, %v, want one fired and %v", fired, err, errNotNow)
	}
	if n := pgtest.Count(t, pool, `SELECT count(*) FROM video_catalog.timers
		WHERE name = 'broken' AND attempts = 1 AND last_error = 'not now: \x00\xff' AND due_at >= $1::timestamptz + interval '1 s'`, before); n != 1 {
		t.Errorf("%d timers failed once and wait for a second, want the one that failed", n)
	}
	if _, err := pool.Exec(t.Context(), "UPDATE video_catalog.timers SET due_at = due_at + interval '1 hour'"); err != nil { // so that it does not fire below
		t.Fatal(err)
	}

	set(t, videos, after{"refused": now}, ids[2])
	set(t, videos, after{"good": now}, ids[1])
	fired, err = timers.Fire(t.Context(), 10)
	if err != nil || len(fired.Late) != 1 || len(fired.Failed) != 1 {
		t.Errorf("Fire() of two, of which the database refuses one = %+v, %v, want the other fired", fired, err)
	}
	pgtest.WantCount(t, pool, 2, "postponed timers", "SELECT count(*) FROM video_catalog.timers WHERE attempts = 1 AND due_at >= $1::timestamptz + interval '1 s'", before)
}

// The pause of a timer doubles with each failure, up to an hour. Setting a timer again resets
// its failures.
func TestTimerPausesLongerEachTime(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	videos := newClips(pool, nil)
	timers := NewTimers(videos, ring)
	id := someClips(t, videos, 1)[0]
	set(t, videos, after{"broken": now}, id)
	for _, test := range []struct {
		attempts int
		want     time.Duration
	}{{0, time.Second}, {3, 8 * time.Second}, {11, 2048 * time.Second}, {12, time.Hour}, {1000, time.Hour}} {
		pgtest.Execute(t, pool, fmt.Sprintf("UPDATE video_catalog.timers SET due_at = now(), attempts = %d", test.attempts))
		var before, due, later time.Time
		must(t, pool.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&before))
		if fired, err := timers.Fire(t.Context(), 10); err != nil || len(fired.Failed) != 1 {
			t.Errorf("Fire() = %+v, %v, want one failed", fired, err)
		}
		must(t, pool.QueryRow(t.Context(), "SELECT due_at, clock_timestamp() FROM video_catalog.timers WHERE attempts = $1", test.attempts+1).Scan(&due, &later))
		if due.Before(before.Add(test.want)) || due.After(later.Add(test.want)) {
			t.Errorf("after failure %d the timer waits %s, want %s", test.attempts+1, due.Sub(before), test.want)
		}
	}
	set(t, videos, after{"broken": time.Hour}, id)
	pgtest.WantCount(t, pool, 1, "timers without a failure after it was set again", "SELECT count(*) FROM video_catalog.timers WHERE attempts = 0 AND last_error IS NULL")
}

// While the database does not work, no timer counts as failed. A timer whose transaction takes
// too long counts as failed, and holds up no other.
func TestTimersAndABrokenDatabase(t *testing.T) {
	t.Parallel()
	pool, videos, ids := stored(t, 2, 3)
	timers := NewTimers(videos, ring)
	set(t, videos, after{"x": now}, ids...)
	for _, table := range []string{"timers", "outbox_pending"} { // the first statement, and the last
		pgtest.Execute(t, pool, "ALTER TABLE video_catalog."+table+" RENAME TO gone")
		if fired, err := timers.Fire(t.Context(), 10); !errors.Is(err, envelope.ErrUnavailable) || len(fired.Late)+len(fired.Failed) != 0 {
			t.Errorf("Fire() without %s = %+v, %v, want Unavailable and none fired", table, fired, err)
		}
		pgtest.Execute(t, pool, "ALTER TABLE video_catalog.gone RENAME TO "+table)
	}
	held, err := pool.Begin(t.Context())
	must(t, err)
	defer held.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it is only a lock
	pgtest.Execute(t, held, "LOCK TABLE video_catalog.timers")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if fired, err := timers.Fire(ctx, 10); err == nil {
		t.Errorf("Fire() that cannot read the timers = %+v, want an error", fired)
	}
	must(t, held.Rollback(t.Context()))
	pgtest.WantCount(t, pool, 3, "timers that are due as before", "SELECT count(*) FROM video_catalog.timers WHERE attempts = 0 AND due_at <= now()")

	pgtest.Execute(t, pool, `CREATE FUNCTION video_catalog.slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			RAISE EXCEPTION 'as after statement_timeout' USING ERRCODE = 'query_canceled';
		END $$`)
	pgtest.Execute(t, pool, "CREATE TRIGGER slow BEFORE UPDATE ON video_catalog.videos FOR EACH ROW WHEN (old.id = '"+ids[0].String()+"') EXECUTE FUNCTION video_catalog.slow()")
	fired, err := timers.Fire(t.Context(), 2)
	if err != nil || len(fired.Late) != 1 || len(fired.Failed) != 1 || !fired.More {
		t.Errorf("Fire() of two, of which one takes too long = %+v, %v, want the other fired, and more", fired, err)
	}
	pgtest.WantCount(t, pool, 1, "postponed timers that take too long", "SELECT count(*) FROM video_catalog.timers WHERE attempts = 1 AND aggregate_id = $1", ids[0])
	set(t, videos, after{"x": now}, ids[1], ids[2])
	pgtest.Execute(t, pool, "UPDATE video_catalog.videos SET create_time = 'infinity' WHERE id = $1", ids[1]) // no time of Go
	if fired, err := timers.Fire(t.Context(), 10); err != nil || len(fired.Failed) != 1 || len(fired.Late) != 1 {
		t.Errorf("Fire() behind a row that cannot be read = %+v, %v, want one failed, and the other fired", fired, err)
	}
	pgtest.WantCount(t, pool, 1, "postponed timers: it must not be the first again", "SELECT count(*) FROM video_catalog.timers WHERE attempts > 0 AND due_at > now() AND aggregate_id = $1", ids[1])
}

// A timer whose transaction does not end is postponed in time, and holds up no other.
func TestTimerThatHangsIsPostponed(t *testing.T) {
	t.Parallel()
	pool, videos, ids := stored(t, 2, 2)
	timers := NewTimers(videos, ring)
	set(t, videos, after{"x": now}, ids...)
	pgtest.Execute(t, pool, `CREATE FUNCTION video_catalog.hang() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			PERFORM pg_sleep(3600);
			RETURN new;
		END $$`)
	pgtest.Execute(t, pool, "CREATE TRIGGER hang BEFORE UPDATE ON video_catalog.videos FOR EACH ROW WHEN (old.id = '"+ids[0].String()+"') EXECUTE FUNCTION video_catalog.hang()")
	fired, failed := 0, 0
	for deadline := time.Now().Add(30 * time.Second); fired == 0 || failed == 0; { // the first call is usually enough
		if time.Now().After(deadline) {
			break
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		result, err := timers.Fire(ctx, 10)
		cancel()
		t.Log(result, err)
		if failed == 0 && len(result.Failed) > 0 && (len(result.Late) > 0 || !result.More) {
			t.Errorf("Fire() = %+v, want that the other one waits for the next call, which has time for it", result)
		}
		fired, failed = fired+len(result.Late), failed+len(result.Failed)
	}
	if fired != 1 || failed == 0 {
		t.Errorf("%d timers have fired and %d are postponed, want the other one fired, and the one that hangs postponed", fired, failed)
	}
}

// A timer that has fired, although the response to the commit was lost, does not count as failed.
func TestTimerThatHasFiredIsNotPostponed(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 3)
	videos := newClips(pool, nil)
	id := someClips(t, videos, 1)[0]
	set(t, videos, after{"x": now}, id)
	pgtest.Execute(t, pool, "ALTER TABLE video_catalog.videos ADD CHECK (version < 3) NOT VALID") // refuses the next change
	calls := 0
	fired, err := NewTimers(videos, func(v domain.Video, name string, stamp domain.Stamp) (*fact, error) {
		if calls++; calls == 2 { // alone, after the first transaction was refused
			pgtest.Execute(t, pool, "DELETE FROM video_catalog.timers")
		}
		return ring(v, name, stamp)
	}).Fire(t.Context(), 10)
	if err != nil || calls != 2 || len(fired.Late)+len(fired.Failed) != 0 {
		t.Errorf("Fire() = %+v, %v after %d calls, want none fired or failed", fired, err, calls)
	}
}

// A panic is a failure of its timer. After a refusal by the rules the timer counts as fired, without an event.
func TestTimerAndItsAggregate(t *testing.T) {
	t.Parallel()
	_, videos, ids := stored(t, 4, 2)
	set(t, videos, after{"panic": now}, ids[0])
	set(t, videos, after{"x": now}, ids[1])
	fired, err := NewTimers(videos, ring).Fire(t.Context(), 10)
	if err != nil || len(fired.Late) != 1 || len(fired.Failed) != 1 || !strings.Contains(fired.Failed[0].Error(), "panic: of an alarm") {
		t.Errorf("Fire() = %+v, %v, want one fired and one failed by its panic", fired, err)
	}
	refuse := NewTimers(videos, func(v domain.Video, _ string, stamp domain.Stamp) (*fact, error) {
		return of(domain.UndeleteVideo(domain.AnyVersion, stamp)(v)) // it is not deleted
	})
	set(t, videos, after{"x": now}, ids[1])
	if fired, err := refuse.Fire(t.Context(), 10); err != nil || len(fired.Late) != 1 || len(fired.Failed) != 0 {
		t.Errorf("Fire() that the rules refuse = %+v, %v, want it fired without an event", fired, err)
	}
}

// If more aggregates than a batch has are locked, their timers hold up no other timer, and fire later.
func TestTimersBehindManyLocks(t *testing.T) {
	t.Parallel()
	pool, videos, ids := stored(t, 4, 12)
	timers := NewTimers(videos, ring)
	set(t, videos, after{"x": now}, ids...)
	tx, err := pool.Begin(t.Context())
	must(t, err)
	defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it is only a lock
	pgtest.Execute(t, tx, "SELECT FROM video_catalog.videos WHERE id = ANY ($1) FOR UPDATE", ids[:11])
	pgtest.Execute(t, pool, "UPDATE video_catalog.timers SET due_at = now()") // all at once: only their ids are different
	fired, err := timers.Fire(t.Context(), 5)
	if err != nil || len(fired.Late) != 1 {
		t.Errorf("Fire() = %+v, %v, want the last timer, which nobody has locked", fired, err)
	}
	must(t, tx.Rollback(t.Context()))
	if fired, err := timers.Fire(t.Context(), 11); err != nil || len(fired.Late) != 11 {
		t.Errorf("Fire() = %+v, %v, want the timers that were left out", fired, err)
	}
}
