package store_test

import (
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/videocatalog/internal/event"
)

// scans answers how often outbox_pending and the partitions of the outbox were
// read as a whole, and how many rows of outbox_pending through an index. The
// pool must have one connection, whose statistics it brings up to date.
func (l *letters) scans() (whole map[string]int, rows int) {
	l.t.Helper()
	if _, err := l.pool.Exec(l.t.Context(), "SELECT pg_stat_force_next_flush()"); err != nil {
		l.t.Fatal(err)
	}
	whole = make(map[string]int)
	result, err := l.pool.Query(l.t.Context(), "SELECT relname, seq_scan FROM pg_stat_user_tables WHERE relname = 'outbox_pending' OR relname LIKE 'outbox\\_p2%'")
	if err != nil {
		l.t.Fatal(err)
	}
	for result.Next() {
		var name string
		var n int
		if err := result.Scan(&name, &n); err != nil {
			l.t.Fatal(err)
		}
		whole[name] = n
	}
	if err := result.Err(); err != nil {
		l.t.Fatal(err)
	}
	return whole, l.count("SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'outbox_pending'")
}

// Claims and settlements of all kinds use indexes, with a hundred thousand
// events pending, as many set aside and whatever statistics, and read few rows
// more than they claim. Sessions keep the plans that they made when the tables
// were small.
func TestClaimAndSettleUseIndexes(t *testing.T) {
	t.Parallel()
	const passes, batch = 20, 500
	const tables = "video.outbox, video.outbox_pending, video.outbox_blocked"
	tests := []struct {
		name          string
		before, after []string
	}{
		{"no statistics", nil, nil},
		{"statistics of an empty outbox", []string{"VACUUM (ANALYZE) " + tables}, nil},
		{"statistics of a full outbox", nil, []string{"VACUUM (ANALYZE) " + tables}},
		// What autovacuum leaves most of the time: many pages, few rows. The last row keeps the pages.
		{"statistics of an outbox that was emptied", []string{
			fillOutbox,
			"DELETE FROM video.outbox_pending WHERE seq < (SELECT max(seq) FROM video.outbox_pending)",
			"VACUUM (ANALYZE) " + tables,
		}, nil},
		{"the same, seen by sessions of before", nil, []string{
			"DELETE FROM video.outbox_pending WHERE seq < (SELECT max(seq) FROM video.outbox_pending WHERE lane >= 0) AND lane >= 0",
			"VACUUM (ANALYZE) " + tables,
			fillOutbox,
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := newLetters(t, 1)
			exec := func(statements ...string) {
				t.Helper()
				for _, sql := range statements {
					if _, err := l.pool.Exec(t.Context(), sql); err != nil {
						t.Fatal(err)
					}
				}
			}
			exec(test.before...)
			l.append(l.pool, "a1 b1 a2 b2 c1")
			l.passes(5, 10, 2)
			exec(fillOutbox, `
				INSERT INTO video.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, last_error, parked_at)
				SELECT 'word', n::text, video.outbox_lane('word', n::text), 10, 'refused', now() FROM generate_series(1, 2000) n`, `
				INSERT INTO video.outbox_pending (lane, outbox_id, aggregate_type, aggregate_id, version, payload_bytes)
				SELECT -1, gen_random_uuid(), 'word', (n % 2000 + 1)::text, n, 0 FROM generate_series(1, 100000) n`)
			exec(test.after...)
			wholeBefore, rowsBefore := l.scans()
			claimed, aside := l.passes(passes, batch, 50)
			wholeAfter, rowsAfter := l.scans()
			maps.DeleteFunc(wholeAfter, func(table string, n int) bool { return n == wholeBefore[table] })
			if diff := cmp.Diff(map[string]int{}, wholeAfter); diff != "" {
				t.Errorf("tables read as a whole (-want +got):\n%s", diff)
			}
			if aside == 0 || claimed < passes*batch/2 {
				t.Errorf("%d events were claimed and %d set aside: the test does not test much", claimed, aside)
			}
			// A row is read by the claim, by the settlement, and when it goes aside and comes back.
			if rows := rowsAfter - rowsBefore; rows > 12*claimed {
				t.Errorf("%d rows were read for %d events, want a few per event", rows, claimed)
			}
			t.Logf("%.1f rows per event", float64(rowsAfter-rowsBefore)/float64(claimed))
		})
	}
}

// fillOutbox appends a hundred thousand events of five thousand aggregates.
const fillOutbox = `
	WITH event AS (
		INSERT INTO video.outbox (id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
		SELECT (substr(video.uuid7_floor(now())::text, 1, 14) || substr(gen_random_uuid()::text, 15))::uuid, 'number', (n % 5000)::text, 'NumberDrawn', n / 5000 + 1, 1, '', now()
		FROM generate_series(1, 100000) n
		RETURNING id, aggregate_type, aggregate_id, version, payload
	)
	INSERT INTO video.outbox_pending (lane, outbox_id, aggregate_type, aggregate_id, version, payload_bytes)
	SELECT video.outbox_lane(aggregate_type, aggregate_id), id, aggregate_type, aggregate_id, version, octet_length(payload) FROM event ORDER BY version, id`

// passes makes passes of a publisher whose broker refuses, in the first half of
// them, one event in so many, and answers how many were claimed and how many of
// them set aside.
func (l *letters) passes(n, batch, refuse int) (claimed, aside int) {
	l.t.Helper()
	for i := range n {
		claim := l.claim(batch, hour)
		if claim.Token == 0 {
			continue
		}
		claimed += len(claim.Events)
		seen := 0
		s := settlement(claim, func(e event.Claimed) bool {
			seen++
			return i < n/2 && !e.Retry && seen%refuse == 0
		})
		for j := range s.Failed {
			s.Failed[j].RetryIn = time.Millisecond
		}
		aside += len(s.Aside)
		l.settle(s)
	}
	return claimed, aside
}
