package pg_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
)

// partitions returns the days that have a partition, relative to today (UTC).
func (l *letters) partitions() []int {
	l.t.Helper()
	return pgtest.Column[int](l.t, l.pool, `
		SELECT to_date(substr(c.relname, 9), 'YYYYMMDD') - (now() AT TIME ZONE 'UTC')::date AS day
		FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'video_catalog.outbox'::regclass ORDER BY day`)
}

// wantPartitions fails the test unless these days have a partition.
func (l *letters) wantPartitions(days ...int) {
	l.t.Helper()
	same(l.t, "partitions", days, l.partitions())
}

// addPartition makes the partition of a day as maintenance would have made it,
// appends an event there, and returns the event's id.
func (l *letters) addPartition(day int, name string) (id uuid.UUID) {
	l.t.Helper()
	execute(l.t, l.pool, fmt.Sprintf(`
		DO $$ DECLARE day date := (now() AT TIME ZONE 'UTC')::date + %d; BEGIN
			EXECUTE format('CREATE TABLE video_catalog.outbox_p%%s PARTITION OF video_catalog.outbox FOR VALUES FROM (%%L) TO (%%L)',
				to_char(day, 'YYYYMMDD'), video_catalog.uuid7_floor(day::timestamp AT TIME ZONE 'UTC'), video_catalog.uuid7_floor((day + 1)::timestamp AT TIME ZONE 'UTC'));
		END $$`, day))
	return l.appendOn(day, name)
}

// appendOn appends an event with an id of the last second of a day.
func (l *letters) appendOn(day int, name string) (id uuid.UUID) {
	l.t.Helper()
	id = pgtest.Column[uuid.UUID](l.t, l.pool, `
		SELECT (substr(video_catalog.uuid7_floor(((now() AT TIME ZONE 'UTC')::date + $1::int + 1)::timestamp AT TIME ZONE 'UTC' - interval '1 second')::text, 1, 14) || substr(gen_random_uuid()::text, 15))::uuid`,
		day)[0]
	l.appendAs(l.pool, id, name)
	return id
}

func days(from, to int) (days []int) {
	for day := from; day <= to; day++ {
		days = append(days, day)
	}
	return days
}

// maintain runs a maintenance.
func (l *letters) maintain(daysAhead int, keep time.Duration) {
	l.t.Helper()
	if err := l.Maintain(l.t.Context(), daysAhead, keep); err != nil {
		l.t.Fatalf("Maintain() = %v", err)
	}
}

const week = 7 * 24 * time.Hour

// Maintenance makes the partitions of the days to come, so that an append into
// the last of them works. A second run does nothing.
func TestMaintenanceMakesPartitionsAhead(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	l.wantPartitions(days(-1, 7)...)
	l.maintain(9, week)
	l.maintain(9, week)
	for day := -1; day <= 9; day++ {
		l.appendOn(day, fmt.Sprintf("a%d", day+2))
	}
	if claim := l.claim(100, hour); len(claim.Events) != 11 {
		t.Errorf("claimed %d events, want 11", len(claim.Events))
	}
	l.wantPartitions(days(-1, 9)...)
	// The new ones are like the old ones: an id is unique.
	pgtest.WantCount(t, l.pool, 1, "different primary keys of the partitions", `SELECT count(DISTINCT pg_get_constraintdef(c.oid)) FROM pg_constraint c JOIN pg_inherits i ON i.inhrelid = c.conrelid WHERE i.inhparent = 'video_catalog.outbox'::regclass AND c.contype = 'p'`)
	pgtest.WantCount(t, l.pool, 11, "partitions with a primary key", `SELECT count(*) FROM pg_constraint c JOIN pg_inherits i ON i.inhrelid = c.conrelid WHERE i.inhparent = 'video_catalog.outbox'::regclass AND c.contype = 'p'`)
}

// Maintenance drops partitions that are older than it should keep. Their pending
// events, deferred or not, are published all the same.
func TestMaintenanceDropsOldPartitions(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	l.addPartition(-12, "a1")
	l.addPartition(-11, "b1")
	l.settle(l.settlement(l.claimNames(10, "a1 b1"), "b1")) // b1 is deferred
	l.addPartition(-10, "c1")
	l.addPartition(-9, "d1")
	l.settle(l.settlement(l.claimNames(1, "c1"), "")) // d1 waits
	l.addPartition(-8, "A1")
	l.addPartition(-7, "B1")
	l.addPartition(-2, "C1")
	l.settle(l.settlement(l.claimNames(10, "A1 B1 C1"), ""))

	l.append(l.pool, "D1") // today
	// -8 ended a week ago at midnight; -7 becomes a week old only at the next midnight.
	l.maintain(7, week)
	l.wantPartitions(append([]int{-7, -2}, days(-1, 7)...)...)
	l.due("b")
	l.settle(l.settlement(l.claimNames(10, "b1/1 d1"), ""))
	l.maintain(7, 3*24*time.Hour)
	l.wantPartitions(append([]int{-2}, days(-1, 7)...)...)
}

// A clock that is ten days ahead of the newest event drops nothing. The note of a skipped event goes after the partition of
// the event.
func TestMaintenanceUnderAWrongClock(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	l.addPartition(-12, "a1")
	l.addPartition(-10, "b1")
	l.settle(l.settlement(l.claimNames(10, "a1 b1"), ""))
	execute(t, l.pool, `INSERT INTO video_catalog.outbox_skipped (event_id, aggregate_type, aggregate_id, seq, actor, reason, create_time)
		SELECT id, aggregate_type, aggregate_id, 1, 'ada', 'wrong', now() - interval '11 days' FROM video_catalog.outbox
		UNION ALL SELECT gen_random_uuid(), 'letter', 'a', 2, 'ada', 'wrong', now() - days * interval '1 day' FROM unnest('{7,9}'::int[]) days`)
	l.maintain(7, week)
	l.wantPartitions(append([]int{-12, -10}, days(-1, 7)...)...)
	pgtest.WantCount(t, l.pool, 4, "notes of skipped events that are left", "SELECT count(*) FROM video_catalog.outbox_skipped")
	l.append(l.pool, "a2") // now there is an event of today
	l.maintain(7, week)
	if ages := column(t, l.pool, "SELECT extract(days FROM now() - create_time)::text FROM video_catalog.outbox_skipped"); !slices.Equal(ages, []string{"7"}) {
		t.Errorf("notes of %q days are left, want only the one whose event may be there", ages)
	}
	l.wantPartitions(days(-1, 7)...)
}

// A partition that cannot be dropped stays, and so does one that maintenance has
// not made; the others are made and dropped all the same.
func TestMaintenanceLeavesWhatCannotBeDropped(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 4)
	l.addPartition(-12, "a1")
	l.addPartition(-11, "b1")
	l.settle(l.settlement(l.claimNames(10, "a1 b1"), ""))
	l.append(l.pool, "c1") // today
	oldest := time.Now().UTC().AddDate(0, 0, -12).Format("20060102")
	left := func() int {
		return l.count("SELECT count(*) FROM pg_inherits WHERE inhparent = 'video_catalog.outbox'::regclass")
	}
	execute(t, l.pool, "CREATE VIEW public.audit AS SELECT * FROM video_catalog.outbox_p"+oldest)
	execute(t, l.pool, "CREATE TABLE video_catalog.outbox_default PARTITION OF video_catalog.outbox DEFAULT")
	if l.maintain(9, week); left() != 13 {
		t.Errorf("%d partitions, want 13: the one with a view, eleven days, and the one that is not ours", left())
	}
	execute(t, l.pool, "DROP VIEW public.audit")
	if l.maintain(9, week); left() != 12 {
		t.Errorf("%d partitions, want 12: eleven days and the one that is not ours", left())
	}
}

// A reader of an old day, or a long transaction of a writer, does not stop the
// writers while maintenance waits for it: maintenance gives up soon, and does
// its work another time.
func TestMaintenanceGivesWay(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, sql string }{
		{"reader of an old day", "SELECT count(*) FROM video_catalog.outbox_p%s"},
		{"reader of the outbox", "SELECT count(*) FROM video_catalog.outbox -- %s"},
		{"writer", "INSERT INTO video_catalog.outbox SELECT (substr(video_catalog.uuid7_floor(now())::text, 1, 14) || substr(gen_random_uuid()::text, 15))::uuid, 'letter', 'x', 'LetterWritten', 1, 1, '', now() -- %s"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := newLetters(t, 8)
			for i := range 3 {
				l.addPartition(-20+i, fmt.Sprintf("a%d", i+1))
			}
			l.settle(l.settlement(l.claimNames(10, "a1 a2 a3"), ""))
			holder := l.begin()
			oldest := time.Now().UTC().AddDate(0, 0, -20).Format("20060102")
			execute(t, holder, fmt.Sprintf(test.sql, oldest))

			var slowest atomic.Int64
			done := make(chan struct{})
			var writing sync.WaitGroup
			writing.Go(func() {
				for version := 1; ; version++ {
					select {
					case <-done:
						return
					default:
					}
					start := time.Now()
					l.append(l.pool, fmt.Sprintf("b%d", version))
					slowest.Store(max(slowest.Load(), int64(time.Since(start))))
				}
			})
			start := time.Now()
			l.maintain(8, week)
			took := time.Since(start)
			close(done)
			writing.Wait()
			if days := l.partitions(); slices.Max(days) != 8 {
				t.Errorf("partitions: %v, want one in 8 days: that needs no lock that is held", days)
			}
			pgtest.WantCount(t, l.pool, 1, "partitions in use", "SELECT count(*) FROM pg_class WHERE relname = 'outbox_p' || $1", oldest)
			// The limit is three times lock_timeout, 200 ms, and much more for a busy machine. Without lock_timeout,
			// maintenance would wait for the holder until the end of the test.
			if took > 3*time.Second {
				t.Errorf("maintenance took %s, want it to give up soon", took)
			}
			if slowest := time.Duration(slowest.Load()); slowest > 3*time.Second {
				t.Errorf("the slowest append took %s, want little more than 200ms", slowest)
			}
			t.Logf("maintenance took %s, the slowest append %s", took.Round(time.Millisecond), time.Duration(slowest.Load()).Round(time.Millisecond))
			must(t, holder.Rollback(t.Context()))
			if l.maintain(8, week); slices.Min(l.partitions()) < -7 {
				t.Errorf("partitions afterwards: %v, want none of the old ones", l.partitions())
			}
		})
	}
}

// Every process may run maintenance, all at once, and while events are written
// and claimed: nobody fails, and the work is done.
func TestMaintenanceRunsEverywhere(t *testing.T) {
	t.Parallel()
	l := newLetters(t, 12)
	for i := range 7 {
		l.addPartition(-30+i, fmt.Sprintf("a%d", i+1))
	}
	l.append(l.pool, "c1") // today
	l.settle(l.settlement(l.claimNames(10, "a1 a2 a3 a4 a5 a6 a7 c1"), ""))
	if l.maintain(12, week); len(l.partitions()) != 2+len(days(-1, 12)) {
		t.Errorf("partitions after one call: %v, want five of the seven old ones dropped", l.partitions())
	}
	stop := make(chan struct{})
	var busy, processes sync.WaitGroup
	for _, name := range []string{"b", "B"} {
		busy.Go(func() {
			for version := 1; ; version++ {
				select {
				case <-stop:
					return
				default:
					l.append(l.pool, fmt.Sprintf("%s%d", name, version))
				}
			}
		})
		busy.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					claim := l.claim(100, hour)
					if claim.Token != 0 {
						l.settle(l.settlement(claim, ""))
					}
				}
			}
		})
	}
	for range 4 {
		events := pg.NewOutbox(l.pool)
		processes.Go(func() {
			for range 10 {
				if err := events.Maintain(t.Context(), 12, week); err != nil {
					t.Errorf("Maintain() = %v", err)
				}
			}
		})
	}
	processes.Wait()
	close(stop)
	busy.Wait()
	l.wantPartitions(days(-1, 12)...)
}
