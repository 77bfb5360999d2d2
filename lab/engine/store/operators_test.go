package store_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
)

// everything is a request for all that waits for a person.
func everything() admin.Request {
	return admin.Request{All: true, Reason: "test", Actor: admin.Actor{Name: "ann@desk", Via: "command"}}
}

// parkMany parks n aggregates, each with one event.
func parkMany(t *testing.T, l *letters, n int) {
	t.Helper()
	if _, err := l.pool.Exec(t.Context(), `
		WITH parked AS (
			INSERT INTO video_catalog.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, last_error, parked_at)
			SELECT 'parcel', 'p' || n, (`+lanes("parcel", "p", n)+`)[n], 8, 'refused', now() FROM generate_series(1, $1::int) n
			RETURNING lane, aggregate_type, aggregate_id
		)
		INSERT INTO video_catalog.outbox_deferred (lane, seq, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at, repeat)
		SELECT lane, 1, gen_random_uuid(), aggregate_type, aggregate_id, 'Sent', 1, 1, '', now(), '' FROM parked`, n); err != nil {
		t.Fatal(err)
	}
}

// Operators who act on the same items at once change each of them once, and together all.
func TestTwoOperatorsShareTheWork(t *testing.T) {
	t.Parallel()
	const parked = 2500
	for name, act := range map[string]func(context.Context, admin.Outbox, admin.Request) (admin.Result, error){"requeue": admin.Requeue, "skip": admin.Skip} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLetters(t, 4)
			parkMany(t, l, parked)
			var done atomic.Int64
			var operators sync.WaitGroup
			for range 3 {
				operators.Go(func() {
					result, err := act(t.Context(), l.Outbox, everything())
					if err != nil || result.Failures > 0 {
						t.Errorf("%s = %+v, %v", name, result, err)
					}
					done.Add(result.Done)
				})
			}
			operators.Wait()
			if got := l.count("SELECT count(*) FROM video_catalog.outbox_blocked WHERE parked_at IS NULL AND attempts = 0"); got != parked {
				t.Errorf("%d aggregates are due, want %d", got, parked)
			}
			if got := l.count("SELECT sum(items)::int FROM video_catalog.audit"); got != parked || done.Load() != parked {
				t.Errorf("the audit has %d items, and the results have %d, want %d", got, done.Load(), parked)
			}
			want := map[string]int{"requeue": parked, "skip": 0}[name]
			if got := l.count("SELECT count(*) FROM video_catalog.outbox_deferred"); got != want {
				t.Errorf("%d events are deferred, want %d", got, want)
			}
		})
	}
}

// An action for what a person has seen does not change what came later.
func TestConfirmedCountHolds(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	parkMany(t, l, 2)
	request := everything()
	request.DryRun = true
	seen, err := admin.Skip(t.Context(), l.Outbox, request)
	if err != nil || seen.Matched != 2 {
		t.Fatalf("dry run = %+v, %v, want 2", seen, err)
	}
	execute(t, l.pool, `INSERT INTO video_catalog.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, last_error, parked_at)
		VALUES ('parcel', 'p3', (`+lanes("parcel", "p", 3)+`)[3], 8, 'refused', now())`)
	request.DryRun, request.Confirmed = false, seen.Matched
	if result, err := admin.Skip(t.Context(), l.Outbox, request); kindOf(err) != problem.Precondition || result.Done != 0 {
		t.Errorf("Skip() of more than was confirmed = %+v, %v, want Precondition", result, err)
	}
}

// Replay keeps what cannot be applied, names it, and applies a message again if it crashes
// before the message is deleted.
func TestReplayKeepsWhatCannotBeApplied(t *testing.T) {
	t.Parallel()
	pool := storetest.Pool(t, 2)
	inbox := store.NewInbox(pool)
	const messages = 130 // more than the result names, and than one transaction deletes
	for i := range messages {
		m := quarantined(string(rune('a'+i%26)) + time.Duration(i).String())
		m.Attributes[envelope.AttrAggregateType] = []string{"parcel", "letter"}[i%2]
		if err := inbox.Quarantine(t.Context(), "consumer", m); err != nil {
			t.Fatal(err)
		}
	}
	request := everything()
	request.All, request.Filter.Type = false, "letter"
	applied := map[int64]int{}
	crash := errors.New("crash")
	crashed, err := admin.Replay(t.Context(), failing{inbox, crash}, func(_ context.Context, m admin.Quarantined) error {
		applied[m.ID]++
		return nil
	}, request)
	if !errors.Is(err, crash) || crashed.Done != 0 {
		t.Errorf("Replay() that crashes = %+v, %v, want nothing done", crashed, err)
	}
	result, err := admin.Replay(t.Context(), inbox, func(_ context.Context, m admin.Quarantined) error {
		if applied[m.ID]++; applied[m.ID] == 1 && m.ID%4 == 0 {
			return errors.New("still unreadable")
		}
		return nil
	}, request)
	if err != nil || result.Matched != messages/2 || result.Done+result.Failures != messages/2 || result.Failures == 0 || len(result.Failed) != int(result.Failures) {
		t.Errorf("Replay() = %+v, %v, want each applied or named", result, err)
	}
	if got := count(t, pool, "SELECT count(*) FROM video_catalog_read.quarantine"); got != messages/2+int(result.Failures) {
		t.Errorf("%d messages are in quarantine, want the other type and %d that failed", got, result.Failures)
	}
	if got := count(t, pool, "SELECT sum(items)::int FROM video_catalog_read.audit"); got != int(result.Done) {
		t.Errorf("the audit has %d items, want %d", got, result.Done)
	}
}

// failing is a quarantine that fails to delete.
type failing struct {
	admin.Quarantine
	err error
}

func (f failing) DeleteQuarantine(context.Context, []int64, admin.Entry) (int, error) {
	return 0, f.err
}

// Messages that differ only in numbers, ids and quoted words have one cause.
func TestCauseIgnoresWhatDiffers(t *testing.T) {
	t.Parallel()
	pool := storetest.Pool(t, 2)
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

// A skip of one aggregate names the event, so that a second one does not give up the next.
func TestSkipOfOneNamesTheEvent(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	l.append(l.pool, "a1 a2")
	l.park("a1 a2", "a1")
	request := operator(l.letter("a"))
	for _, request.DryRun = range []bool{true, false} {
		if _, err := admin.Skip(t.Context(), l.Outbox, request); kindOf(err) != problem.Invalid {
			t.Errorf("Skip() of an aggregate without an event = %v, want Invalid", err)
		}
	}
	if got := l.count("SELECT count(*) FROM video_catalog.outbox_deferred"); got != 2 {
		t.Errorf("%d events are deferred, want 2", got)
	}
}

// An interrupted replay deletes and audits the messages that it has applied, and no others.
func TestInterruptedReplayRecordsWhatIsApplied(t *testing.T) {
	t.Parallel()
	pool := storetest.Pool(t, 2)
	inbox := store.NewInbox(pool)
	for i := range 5 {
		if err := inbox.Quarantine(t.Context(), "consumer", quarantined(time.Duration(i).String())); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	applied := 0
	result, err := admin.Replay(ctx, inbox, func(context.Context, admin.Quarantined) error {
		if applied++; applied == 2 {
			cancel()
		}
		return nil
	}, everything())
	if !errors.Is(err, context.Canceled) || applied != 2 || result.Done != 2 {
		t.Errorf("Replay() = %+v, %v after %d messages, want 2 done and the interrupt", result, err, applied)
	}
	if got := count(t, pool, "SELECT count(*) FROM video_catalog_read.quarantine"); got != 3 {
		t.Errorf("%d messages are in quarantine, want 3", got)
	}
	if got := count(t, pool, "SELECT sum(items)::int FROM video_catalog_read.audit"); got != 2 {
		t.Errorf("the audit has %d items, want 2", got)
	}
}
