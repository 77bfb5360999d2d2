package pg_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/operate"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/problem"
)

// everything acts, as an operator, on all items that wait for a person.
func everything(ctx context.Context, s operate.Sides, action string) (operate.Result, error) {
	e := operator
	e.Action, e.ActionID = action, uuid.New()
	return s.Act(ctx, action, pg.Filter{}, operate.MostItems, e)
}

// parkMany parks n aggregates, each with one event.
func parkMany(t *testing.T, l *letters, n int) {
	t.Helper()
	execute(t, l.pool, `
		WITH parked AS (
			INSERT INTO video_catalog.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, last_error, parked_at)
			SELECT 'parcel', 'p' || n, (`+lanes("parcel", "p", n)+`)[n], 8, 'refused', now() FROM generate_series(1, $1::int) n
			RETURNING lane, aggregate_type, aggregate_id
		)
		INSERT INTO video_catalog.outbox_deferred (lane, seq, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at, repeat)
		SELECT lane, 1, gen_random_uuid(), aggregate_type, aggregate_id, 'Sent', 1, 1, '', now(), '' FROM parked`, n)
}

// Operators who act on the same items at once change each of them once, and together all.
func TestTwoOperatorsShareTheWork(t *testing.T) {
	t.Parallel()
	const parked = 2500
	for action, deferred := range map[string]int{operate.Retry: parked, operate.Skip: 0} {
		t.Run(action, func(t *testing.T) {
			t.Parallel()
			l := newLetters(t, 4)
			parkMany(t, l, parked)
			var done atomic.Int64
			var operators sync.WaitGroup
			for range 3 {
				operators.Go(func() {
					result, err := everything(t.Context(), operate.Sides{Outbox: l.Outbox}, action)
					if err != nil || (result.Done == 0) != (result.ActionID == uuid.Nil) {
						t.Errorf("%s = %+v, %v", action, result, err)
					}
					done.Add(result.Done)
				})
			}
			operators.Wait()
			pgtest.WantCount(t, l.pool, parked, "aggregates that are due", "SELECT count(*) FROM video_catalog.outbox_blocked WHERE parked_at IS NULL AND attempts = 0")
			if got := l.count("SELECT sum(items)::int FROM video_catalog.audit"); got != parked || done.Load() != parked {
				t.Errorf("the audit has %d items, and the results have %d, want %d", got, done.Load(), parked)
			}
			pgtest.WantCount(t, l.pool, deferred, "deferred events", "SELECT count(*) FROM video_catalog.outbox_deferred")
			pgtest.WantCount(t, l.pool, parked-deferred, "skipped events in the audit", "SELECT count(DISTINCT i ->> 'event_id') FROM video_catalog.audit, jsonb_array_elements(before) i")
		})
	}
}

// A retry keeps the messages that cannot be applied, and names them. If it fails before the others
// are deleted, another retry applies them again.
func TestRetryKeepsWhatCannotBeApplied(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	sides := operate.Sides{Inbox: pg.NewInbox(pool)}
	const messages = 65
	for i := range messages {
		must(t, sides.Inbox.Quarantine(t.Context(), "consumer", quarantined(time.Duration(i).String())))
	}
	applied := map[int64]int{}
	sides.Replay = func(_ context.Context, m pg.Quarantined) error {
		applied[m.ID]++
		if m.ID%4 == 0 {
			return errors.New("still unreadable")
		}
		return nil
	}
	execute(t, pool, "ALTER TABLE video_catalog_read.audit ADD CONSTRAINT broken CHECK (false)")
	if result, err := everything(t.Context(), sides, operate.Retry); err == nil || result.Done != 0 || result.ActionID != uuid.Nil {
		t.Errorf("a retry that cannot be recorded = %+v, %v, want nothing done", result, err)
	}
	execute(t, pool, "ALTER TABLE video_catalog_read.audit DROP CONSTRAINT broken")
	result, err := everything(t.Context(), sides, operate.Retry)
	if err != nil || result.Matched != messages || result.Done != messages-messages/4 || len(result.Failed) != messages/4 || applied[1] != 2 {
		t.Errorf("retry = %+v, %v, want each applied or named", result, err)
	}
	if got := count(t, pool, "SELECT count(*) FROM video_catalog_read.quarantine"); got != messages/4 {
		t.Errorf("%d messages are in quarantine, want the %d that failed", got, messages/4)
	}
	pgtest.WantCount(t, pool, int(result.Done), "items in the audit", "SELECT sum(items)::int FROM video_catalog_read.audit")
}

// Messages that differ only in numbers, ids and quoted words have one cause.
func TestCauseIgnoresWhatDiffers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	for _, test := range []struct {
		a, b string
		same bool
	}{
		{"message 12 has 99 bytes", "message 7 has 100000 bytes", true},
		{`field "title" of 0190a5d2-ac96-7a01-8b02-0c0d0e0f1011`, `field "tags" of ABCDEF00-ac96-7a01-8b02-0c0d0e0f1011`, true},
		{"quota exceeded", "permission denied", false},
		{"", "x", false},
	} {
		for _, schema := range []string{"video_catalog", "video_catalog_read"} {
			var same bool
			if err := pool.QueryRow(t.Context(), "SELECT "+schema+".cause($1) = "+schema+".cause($2)", test.a, test.b).Scan(&same); err != nil || same != test.same {
				t.Errorf("%s.cause() of %q and %q are the same: %t, %v, want %t", schema, test.a, test.b, same, err, test.same)
			}
		}
	}
}

// A skip of one aggregate must name the event, so that a second skip does not give up the next event.
func TestSkipOfOneNamesTheEvent(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	l.append(l.pool, "a1 a2")
	l.park("a1 a2", "a1")
	for _, entry := range []pg.Entry{{}, operator} {
		_, err := operate.Sides{Outbox: l.Outbox}.Act(t.Context(), operate.Skip, pg.Filter{Aggregate: l.letter("a").ID}, 10, entry)
		if kindOf(err) != problem.Invalid {
			t.Errorf("skip of an aggregate without an event = %v, want Invalid", err)
		}
	}
	pgtest.WantCount(t, l.pool, 2, "deferred events", "SELECT count(*) FROM video_catalog.outbox_deferred")
}

// A skip gives up no event that another person has retried meanwhile. A snapshot, which has the same id each time, can be skipped again.
func TestSkipOfWhatHasChanged(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	l.append(l.pool, "a1")
	l.park("a1", "a1")
	blocked, _, err := l.ListBlocked(t.Context(), pg.Filter{}, 10)
	must(t, err)
	_, err = l.RetryBlocked(t.Context(), blocked, operator)
	must(t, err)
	execute(t, l.pool, "INSERT INTO video_catalog.outbox_skipped (event_id, aggregate_type, aggregate_id, seq, actor, reason) SELECT id, aggregate_type, aggregate_id, seq, '', '' FROM video_catalog.outbox_deferred")
	for want := range int64(2) {
		if n, err := l.SkipBlocked(t.Context(), blocked, operator); err != nil || n != want {
			t.Errorf("SkipBlocked() = %d, %v, want %d", n, err, want)
		}
		blocked[0].ParkedAt = time.Time{} // named by its id
	}
}

// A retry that is interrupted deletes and audits the messages that it has applied, and no others.
func TestInterruptedRetryRecordsWhatIsApplied(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	inbox := pg.NewInbox(pool)
	for i := range 5 {
		must(t, inbox.Quarantine(t.Context(), "consumer", quarantined(time.Duration(i).String())))
	}
	ctx, cancel := context.WithCancel(t.Context())
	applied := 0
	result, err := everything(ctx, operate.Sides{Inbox: inbox, Replay: func(context.Context, pg.Quarantined) error {
		if applied++; applied == 2 {
			cancel()
		}
		return nil
	}}, operate.Retry)
	if !errors.Is(err, context.Canceled) || applied != 2 || result.Done != 2 {
		t.Errorf("retry = %+v, %v after %d messages, want 2 done and the interrupt", result, err, applied)
	}
	pgtest.WantCount(t, pool, 3, "messages in quarantine", "SELECT count(*) FROM video_catalog_read.quarantine")
	pgtest.WantCount(t, pool, 2, "items in the audit", "SELECT sum(items)::int FROM video_catalog_read.audit")
}
