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
// events pending, thousands of aggregates blocked and whatever statistics, and
// read few rows more than they claim.
func TestClaimAndSettleUseIndexes(t *testing.T) {
	t.Parallel()
	const passes, batch = 20, 500
	tests := []struct{ name, before, after string }{
		{"no statistics", "SELECT 1", "SELECT 1"},
		{"statistics of an empty outbox", "ANALYZE video.outbox, video.outbox_pending, video.outbox_blocked", "SELECT 1"},
		{"statistics of a full outbox", "SELECT 1", "ANALYZE video.outbox, video.outbox_pending, video.outbox_blocked"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := newLetters(t, 1)
			for _, sql := range []string{
				test.before,
				`WITH event AS (
					INSERT INTO video.outbox (id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
					SELECT (substr(video.uuid7_floor(now())::text, 1, 14) || substr(gen_random_uuid()::text, 15))::uuid, 'number', (n % 5000)::text, 'NumberDrawn', n / 5000 + 1, 1, '', now()
					FROM generate_series(1, 100000) n
					RETURNING id, aggregate_type, aggregate_id, version, payload
				)
				INSERT INTO video.outbox_pending (lane, outbox_id, aggregate_type, aggregate_id, version, payload_bytes)
				SELECT video.outbox_lane(aggregate_type, aggregate_id), id, aggregate_type, aggregate_id, version, octet_length(payload) FROM event ORDER BY version, id`,
				`INSERT INTO video.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, last_error, parked_at)
				SELECT 'word', n::text, video.outbox_lane('word', n::text), 10, 'refused', now() FROM generate_series(1, 2000) n`,
				test.after,
			} {
				if _, err := l.pool.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			wholeBefore, rowsBefore := l.scans()
			claimed, aside := 0, 0
			for i := range passes {
				claim := l.claim(batch, hour)
				claimed += len(claim.Events)
				settlement := event.Settlement{Lane: claim.Lane, Token: claim.Token, Recovered: claim.Recovered}
				refused := make(map[event.Aggregate]bool)
				for j, e := range claim.Events {
					switch {
					case e.Retry:
						settlement.Retried = append(settlement.Retried, e.Seq)
						settlement.Recovered = append(settlement.Recovered, e.Aggregate())
					case refused[e.Aggregate()]:
						settlement.Aside = append(settlement.Aside, e.Seq)
						aside++
					case i < passes/2 && j%50 == 0:
						refused[e.Aggregate()] = true
						settlement.Failed = append(settlement.Failed, event.Failure{Aggregate: e.Aggregate(), Attempts: e.Attempts + 1, Error: "refused", RetryIn: time.Millisecond})
						settlement.Aside = append(settlement.Aside, e.Seq)
						aside++
					default:
						settlement.Done = append(settlement.Done, e.Seq)
					}
				}
				l.settle(settlement)
			}
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
