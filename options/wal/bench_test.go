package wal

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg/pgtest"
)

// timed is a broker that takes everything, and notes when.
type timed struct {
	mu   sync.Mutex
	ages []time.Duration
}

func (k *timed) Publish(m envelope.Message) outbox.Receipt {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ages = append(k.ages, time.Since(m.OccurredAt))
	return written{}
}

// taken waits until the broker has some messages, and returns their ages.
func (k *timed) taken(b *testing.B, n int) (ages []time.Duration) {
	pgtest.Eventually(b, time.Minute, "all are sent", func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		ages = k.ages
		return len(ages) >= n
	})
	k.ages = nil
	return ages
}

// BenchmarkModeWAL divides mode wal by the lanes, in turns: appends of eight writers, log per event with its settlement, the time from the
// append of an event until it is sent (at 1,000/s, p50), and events per second out of a backlog. It also divides the appends in mode lanes by
// those without the trigger of the option.
func BenchmarkModeWAL(b *testing.B) {
	for b.Loop() {
		services := [3]*service{newService(b), newService(b), newService(b)} // lanes, wal, and lanes without the trigger
		services[1].must(wal)
		pgtest.Execute(b, services[2].pool, "DROP TRIGGER outbox_relayed ON video_catalog.outbox_pending")
		var figures [3][4]float64
		k := &timed{}
		begin := func(s *service) (wake, stop func()) { // one process at a time: the sender of the log reads what all databases write
			run, wake, err := process(b.Context(), s.connect(s.url), k)
			pgtest.Must(b, err)
			return wake, s.background(run)
		}
		position := func() float64 {
			return float64(pgtest.Count(b, services[0].pool, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"))
		}
		const turns = 10
		for turn := range turns {
			for i, s := range services {
				wake, stop := begin(s)
				before := position()
				s.appends(8, time.Second, 0, fmt.Sprint("busy", turn), wake)
				n := float64(s.total.Swap(0))
				k.taken(b, int(n))
				stop() // and with it the last settlements
				figures[i][0], figures[i][1] = figures[i][0]+n/turns, figures[i][1]+(position()-before)/n/turns
			}
		}
		for i, s := range services {
			wake, stop := begin(s)
			s.appends(8, 5*time.Second, 8*time.Millisecond, "steady", wake)
			ages := slices.Sorted(slices.Values(k.taken(b, int(s.total.Swap(0)))))
			figures[i][2] = ages[len(ages)/2].Seconds() * 1e3
			stop()
			const backlog = 100_000
			pgtest.Execute(b, s.pool, `WITH e AS (
					INSERT INTO video_catalog.outbox (id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
					SELECT (left(video_catalog.uuid7_floor(now())::text, 14) || right(gen_random_uuid()::text, 22))::uuid, 'letter', 'big' || i % 1000,
						'Posted', 1 + i / 1000, 1, decode(repeat('ab', 300), 'hex'), now()
					FROM generate_series(0, $1::int - 1) i RETURNING *)
				INSERT INTO video_catalog.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
				SELECT hashtext(aggregate_id) & 7, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at FROM e`, backlog)
			begun := time.Now()
			_, stop = begin(s)
			k.taken(b, backlog)
			figures[i][3] = backlog / time.Since(begun).Seconds()
			stop()
		}
		for i, unit := range []string{"appends/s", "WAL-B/event", "ms-to-sent", "drained/s"} {
			b.ReportMetric(figures[1][i], unit)
			b.ReportMetric(figures[1][i]/figures[0][i], unit+"-ratio")
		}
		b.ReportMetric(figures[0][0]/figures[2][0], "installed-ratio")
	}
}

// appends adds events for a while, from some writers that wait some time between two events.
func (s *service) appends(writers int, during, pause time.Duration, name string, wake func()) {
	var all sync.WaitGroup
	end := time.Now().Add(during)
	for i := range writers {
		all.Go(func() {
			for v := int64(1); time.Now().Before(end); v++ {
				m := message(fmt.Sprint(name, i), v)
				m.Payload = make([]byte, 300)
				if err := pgtest.TryAppend(context.Background(), s.pool, m); err != nil {
					s.Error(err)
					return
				}
				wake()
				s.total.Add(1)
				time.Sleep(pause)
			}
		})
	}
	all.Wait()
}
