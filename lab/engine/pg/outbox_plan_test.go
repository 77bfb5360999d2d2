package pg_test

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg/pgtest"
)

// read returns which of the tables that a publisher uses were read as a whole,
// how often, and how many blocks of them and of their indexes were read. The pool
// must have one connection, whose statistics it brings up to date.
func (l *letters) read() (whole map[string]int, blocks int) {
	l.t.Helper()
	execute(l.t, l.pool, "SELECT pg_stat_force_next_flush()")
	whole = make(map[string]int)
	result, err := l.pool.Query(l.t.Context(), `
		SELECT relname, seq_scan, heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read
		FROM pg_stat_user_tables JOIN pg_statio_user_tables USING (relid, relname)
		WHERE relname IN ('outbox_deferred', 'outbox_blocked') OR relname LIKE 'outbox\_lane\__' OR relname LIKE 'outbox\_p2%'`)
	must(l.t, err)
	for result.Next() {
		var name string
		var scans, read int
		must(l.t, result.Scan(&name, &scans, &read))
		whole[name] = scans
		blocks += read
	}
	must(l.t, result.Err())
	return whole, blocks
}

// Claims, settlements and measurements of all kinds use the index that is meant
// for them, with a hundred thousand events pending, as many deferred, and with
// any statistics. They read few blocks per event. Sessions keep the plans that
// they made when the tables were small.
func TestClaimAndSettleUseIndexes(t *testing.T) {
	t.Parallel()
	const passes, batch = 20, 500
	const tables = "video_catalog.outbox, video_catalog.outbox_pending, video_catalog.outbox_deferred, video_catalog.outbox_blocked"
	// Not empty: the last row keeps the pages.
	empty := func(table string) string {
		return fmt.Sprintf("DELETE FROM video_catalog.%[1]s WHERE seq < (SELECT max(seq) FROM video_catalog.%[1]s)", table)
	}
	tests := []struct {
		name          string
		before, after []string
	}{
		{"no statistics", nil, nil},
		{"statistics of an empty outbox", []string{"VACUUM (ANALYZE) " + tables}, nil},
		{"statistics of a full outbox", nil, []string{"VACUUM (ANALYZE) " + tables}},
		// The state that autovacuum leaves most of the time: many pages, few rows.
		{"statistics of an outbox that was emptied", []string{fillOutbox, empty("outbox_pending"), "VACUUM (ANALYZE) " + tables}, nil},
		{"statistics of a storm that is over", []string{fillAside, empty("outbox_deferred"), "VACUUM video_catalog.outbox_pending, video_catalog.outbox_deferred"}, nil},
		{"the same, and the session is older", nil, []string{
			empty("outbox_pending"), empty("outbox_deferred"), "VACUUM video_catalog.outbox_pending, video_catalog.outbox_deferred", fillOutbox, fillAside,
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := newLetters(t, 1)
			exec := func(statements ...string) {
				t.Helper()
				for _, sql := range statements {
					execute(t, l.pool, sql)
				}
			}
			// Otherwise the blocks that autovacuum reads would count.
			exec("ALTER TABLE video_catalog.outbox_deferred SET (autovacuum_enabled = off)")
			for lane := range outbox.Lanes {
				exec(fmt.Sprintf("ALTER TABLE video_catalog.outbox_lane_%d SET (autovacuum_enabled = off)", lane))
			}
			exec(test.before...)
			l.append(l.pool, "a1 b1 a2 b2 c1")
			l.passes(5, 10, 2)
			l.passesOfAll(5, 10)
			exec(fillOutbox, fillAside, `
				INSERT INTO video_catalog.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, last_error, parked_at, next_retry_at)
				SELECT 'word', n::text, (`+lanes("word", "", 2000)+`)[n], n % 2, 'refused', CASE WHEN n > 50 THEN now() END, CASE WHEN n <= 50 THEN now() END
				FROM generate_series(1, 2000) n`)
			exec(test.after...)
			wholeBefore, blocksBefore := l.read()
			claimed, aside := l.passes(passes, batch, 50)
			ofAll := l.passesOfAll(passes, batch)
			for range 10 {
				_, err := l.Measure(t.Context(), 1000)
				must(t, err)
			}
			wholeAfter, blocksAfter := l.read()
			maps.DeleteFunc(wholeAfter, func(table string, n int) bool { return n == wholeBefore[table] })
			same(t, "tables read as a whole", map[string]int{}, wholeAfter)
			if aside == 0 || claimed < passes*batch/2 || ofAll < passes*batch/2 {
				t.Errorf("%d and %d events were claimed and %d deferred: the test does not test much", claimed, ofAll, aside)
			}
			claimed += ofAll
			t.Logf("%.1f blocks per event", float64(blocksAfter-blocksBefore)/float64(claimed))
			if blocks := blocksAfter - blocksBefore; blocks > 10*claimed {
				t.Errorf("%d blocks were read for %d events, want a few per event", blocks, claimed)
			}
		})
	}
}

// Later passes do not read deferred events again that were published, although a
// long transaction keeps their dead rows.
func TestLongTransactionDoesNotSlowRetries(t *testing.T) {
	t.Parallel()
	const events, batch = 10_000, 500
	l := newLetters(t, 1)
	// Autovacuum could remove nothing, but the blocks that it reads would count.
	execute(t, l.pool, `ALTER TABLE video_catalog.outbox_deferred SET (autovacuum_enabled = off)`)
	execute(t, l.pool, `
		INSERT INTO video_catalog.outbox_deferred (lane, seq, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at, repeat)
		SELECT 3, nextval('video_catalog.outbox_pending_seq_seq'), gen_random_uuid(), 'letter', $1, 'LetterWritten', n, 1, decode(repeat('ab', 300), 'hex'), now(), '' FROM generate_series(1, $2::int) n`, l.ids["a"], events)
	execute(t, l.pool, `
		INSERT INTO video_catalog.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, next_retry_at, last_error) VALUES ('letter', $1, 3, 0, now(), 'refused')`, l.ids["a"])
	l.hold("BEGIN; SELECT pg_current_xact_id()")
	pass := func() (blocks int) {
		_, before := l.read()
		claim := l.claim(2*batch, hour)
		if len(claim.Events) != batch {
			t.Fatalf("claimed %d events, want %d", len(claim.Events), batch)
		}
		l.settle(pgtest.Settlement(claim, func(outbox.Claimed) bool { return false }))
		_, after := l.read()
		return after - before
	}
	first := pass()
	for range events/batch - 2 {
		pass()
	}
	last := pass()
	if last > first*5/4 {
		t.Errorf("the first pass read %d blocks, and the last one %d", first, last)
	}
	// If a is blocked again, claims begin behind the dead rows, too.
	l.appendAs(l.pool, newID(t), "a10001")
	l.settle(l.settlement(l.claimNames(10, "a10001"), "a10001"))
	l.due("a")
	_, before := l.read()
	l.settle(l.settlement(l.claimNames(10, "a10001/1"), ""))
	_, after := l.read()
	if after-before > first/5 {
		t.Errorf("%d blocks were read for one event that was blocked again", after-before)
	}
	t.Logf("%d, %d and %d blocks", first, last, after-before)
}

// While one process claims a lane, the lane looks free to the others. Their claims return
// nothing, and read no settled events, even while a transaction holds back the floor.
func TestVainLookReadsNothingThatIsSettled(t *testing.T) {
	t.Parallel()
	const events, batch = 20_000, 2000
	l := newLetters(t, 1)
	// Autovacuum could remove nothing, but the blocks that it reads would count.
	execute(t, l.pool, "ALTER TABLE video_catalog.outbox_lane_3 SET (autovacuum_enabled = off)")
	execute(t, l.pool, `
		INSERT INTO video_catalog.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
		SELECT 3, gen_random_uuid(), 'letter', $1, 'LetterWritten', n, 1, decode(repeat('ab', 300), 'hex'), now() FROM generate_series(1, $2::int) n`, l.ids["a"], events)
	l.hold("BEGIN; SELECT pg_current_xact_id()")
	for range events/batch - 1 {
		claim := l.claim(batch, hour)
		if len(claim.Events) != batch {
			t.Fatalf("claimed %d events, want %d", len(claim.Events), batch)
		}
		l.settle(pgtest.Settlement(claim, func(outbox.Claimed) bool { return false }))
	}
	l.hold("BEGIN; SELECT FROM video_catalog.outbox_lanes WHERE lane = 3 FOR UPDATE")
	_, before := l.read()
	if claim := l.claim(batch, hour); claim.Token != 0 {
		t.Errorf("lanes %v were claimed, want none", claim.Spans)
	}
	if _, after := l.read(); after-before > 300 { // 45, and 66 through a pooler
		t.Errorf("%d blocks were read by a look in vain, want a few", after-before)
	} else {
		t.Logf("%d blocks", after-before)
	}
}

// hold begins a transaction in a session of its own; release, or the end of the
// test, ends it.
func (l *letters) hold(sql string) (release func()) {
	l.t.Helper()
	holder, err := pgx.Connect(l.t.Context(), l.pool.Config().ConnString())
	must(l.t, err)
	l.t.Cleanup(func() { _ = holder.Close(context.WithoutCancel(l.t.Context())) })
	execute(l.t, holder, sql)
	return func() { execute(l.t, holder, "ROLLBACK") }
}

// fillAside defers a hundred thousand events of 300 bytes, of two thousand
// aggregates.
const fillAside = `
	INSERT INTO video_catalog.outbox_deferred (lane, seq, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at, repeat)
	SELECT 3, nextval('video_catalog.outbox_pending_seq_seq'), gen_random_uuid(), 'word', (n % 2000 + 1)::text, 'WordSaid', n, 1, decode(repeat('ab', 300), 'hex'), now(), '' FROM generate_series(1, 100000) n`

// fillOutbox appends a hundred thousand events of 300 bytes, of five thousand
// aggregates.
var fillOutbox = `
	WITH event AS (
		INSERT INTO video_catalog.outbox (id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
		SELECT (substr(video_catalog.uuid7_floor(now())::text, 1, 14) || substr(gen_random_uuid()::text, 15))::uuid, 'number', (n % 5000 + 1)::text, 'NumberDrawn', n / 5000 + 1, 1, decode(repeat('ab', 300), 'hex'), now()
		FROM generate_series(1, 100000) n
		RETURNING id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at
	)
	INSERT INTO video_catalog.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
	SELECT (` + lanes("number", "", 5000) + `)[aggregate_id::int], event.* FROM event ORDER BY version, id`

// passesOfAll makes passes over all lanes at once, and returns how many events were claimed.
func (l *letters) passesOfAll(n, batch int) (claimed int) {
	l.t.Helper()
	for range n {
		claim := l.claimOf(outbox.Lanes, batch, hour)
		if claim.Token != 0 {
			l.settle(pgtest.Settlement(claim, func(outbox.Claimed) bool { return false }))
		}
		claimed += len(claim.Events)
	}
	return claimed
}

// passes makes n passes of a publisher over one lane each. In the first half of them, its broker
// refuses one event in refuse. passes returns how many events were claimed and
// how many of them deferred.
func (l *letters) passes(n, batch, refuse int) (claimed, aside int) {
	l.t.Helper()
	for i := range n {
		claim := l.claim(batch, hour)
		if claim.Token == 0 {
			continue
		}
		claimed += len(claim.Events)
		seen := 0
		s := pgtest.Settlement(claim, func(e outbox.Claimed) bool {
			seen++
			return i < n/2 && !e.Deferred && seen%refuse == 0
		})
		for j := range s.Refused {
			s.Refused[j].RetryIn = time.Millisecond
		}
		aside += len(s.Defer)
		l.settle(s)
	}
	return claimed, aside
}
