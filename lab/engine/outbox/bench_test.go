package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
)

// sink is a broker that acknowledges everything, each message a while after it
// was handed over.
type sink struct {
	delay time.Duration
	seen  func(envelope.Message)
}

type sinkReceipt struct{ at time.Time }

func (s sink) Publish(m envelope.Message) outbox.Receipt {
	if s.seen != nil {
		s.seen(m)
	}
	if s.delay == 0 {
		return sinkReceipt{}
	}
	return sinkReceipt{time.Now().Add(s.delay)}
}

func (r sinkReceipt) Wait(context.Context) error {
	if !r.at.IsZero() {
		time.Sleep(time.Until(r.at))
	}
	return nil
}

// BenchmarkDrain measures how fast a backlog leaves, with one process, and the
// ratio to the loop that everybody writes first: claim 200 rows with SKIP
// LOCKED, publish one, wait, mark it, publish the next. The two take turns in
// one run; sink=… is how long the broker takes to answer.
func BenchmarkDrain(b *testing.B) {
	for _, bench := range []struct {
		delay         time.Duration
		events, naive int
	}{
		{0, 200_000, 10_000},
		{10 * time.Millisecond, 200_000, 200},
	} {
		b.Run(fmt.Sprintf("sink=%s", bench.delay), func(b *testing.B) {
			pool := storetest.Pool(b, 10)
			const rounds = 3
			var ours, naive float64
			for b.Loop() {
				for range rounds {
					appendEvents(b, pool, bench.events, 1000)
					ours += drainRate(b, pool, sink{delay: bench.delay}, bench.events)
					naive += naiveRate(b, pool, bench.delay, bench.naive)
				}
			}
			n := float64(b.N * rounds)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(ours/n, "events/s")
			b.ReportMetric(naive/n, "naive-events/s")
			b.ReportMetric(ours/naive, "x-naive")
		})
	}
}

// BenchmarkDrainRetained measures a drain beside a million published events
// that are still retained, and the ratio to one beside ten thousand.
func BenchmarkDrainRetained(b *testing.B) {
	small, large := storetest.Pool(b, 10), storetest.Pool(b, 10)
	retain(b, small, 10_000)
	retain(b, large, 1_000_000)
	const events, rounds = 100_000, 3
	var few, many float64
	for b.Loop() {
		for range rounds {
			appendEvents(b, small, events, 1000)
			few += drainRate(b, small, sink{}, events)
			appendEvents(b, large, events, 1000)
			many += drainRate(b, large, sink{}, events)
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(many/float64(b.N*rounds), "events/s")
	b.ReportMetric(many/few, "x-10k-retained")
}

// BenchmarkLatency measures the time from the commit of an event until the
// broker's client has it, while 1,000 events a second are committed.
func BenchmarkLatency(b *testing.B) {
	pool := storetest.Pool(b, 16)
	const perSecond, seconds = 1000, 5
	for b.Loop() {
		b.ReportMetric(0, "ns/op")
		latencies := latency(b, pool, perSecond, seconds)
		slices.Sort(latencies)
		for _, q := range []struct {
			name string
			at   float64
		}{{"p50-ms", 0.5}, {"p99-ms", 0.99}} {
			b.ReportMetric(latencies[int(q.at*float64(len(latencies)-1))].Seconds()*1000, q.name)
		}
	}
}

func latency(b *testing.B, pool *pgxpool.Pool, perSecond, seconds int) []time.Duration {
	b.Helper()
	var mu sync.Mutex
	committed, sent := map[uuid.UUID]time.Time{}, map[uuid.UUID]time.Time{}
	publisher := newPublisher(b, store.NewOutbox(pool), sink{seen: func(m envelope.Message) {
		now := time.Now()
		mu.Lock()
		defer mu.Unlock()
		sent[m.ID] = now
	}})
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	var running, writers sync.WaitGroup
	running.Go(func() {
		if err := publisher.Run(ctx); err != nil {
			b.Error(err)
		}
	})
	const workers = 8
	for range workers {
		writers.Go(func() {
			next := time.Now()
			for range perSecond * seconds / workers {
				next = next.Add(time.Second * workers / time.Duration(perSecond))
				time.Sleep(time.Until(next))
				e := newEvent(uuid.Must(uuid.NewV7()))
				if err := storetest.TryAppend(ctx, pool, e); err != nil {
					b.Error(err)
					return
				}
				publisher.Wake(e.Aggregate())
				now := time.Now()
				mu.Lock()
				committed[e.ID] = now
				mu.Unlock()
			}
		})
	}
	writers.Wait()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		mu.Lock()
		done := len(sent) == len(committed)
		mu.Unlock()
		if done {
			break
		}
	}
	stop()
	running.Wait()
	latencies := make([]time.Duration, 0, len(committed))
	for id, at := range committed {
		if sent[id].IsZero() {
			b.Fatalf("event %s was not sent", id)
		}
		latencies = append(latencies, max(0, sent[id].Sub(at)))
	}
	return latencies
}

func newPublisher(b *testing.B, s outbox.Store, broker outbox.Broker) *outbox.Publisher {
	b.Helper()
	publisher, err := outbox.New(s, broker, outbox.Config{}, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		b.Fatal(err)
	}
	return publisher
}

// drainRate publishes events that are pending and returns how many a second.
func drainRate(b *testing.B, pool *pgxpool.Pool, broker sink, events int) float64 {
	b.Helper()
	var sent atomic.Int64
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	broker.seen = func(envelope.Message) { sent.Add(1) }
	publisher := newPublisher(b, store.NewOutbox(pool), broker)
	start := time.Now()
	go func() {
		for sent.Load() < int64(events) && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		stop() // Run settles what is in hand
	}()
	if err := publisher.Run(ctx); err != nil {
		b.Fatal(err)
	}
	elapsed := time.Since(start)
	var left int
	if err := pool.QueryRow(b.Context(), "SELECT count(*) FROM video_catalog.outbox_pending").Scan(&left); err != nil {
		b.Fatal(err)
	}
	if left != 0 {
		b.Fatalf("%d events are left", left)
	}
	return float64(events) / elapsed.Seconds()
}

// appendEvents appends events of 300 bytes to aggregates of their own.
func appendEvents(b *testing.B, pool *pgxpool.Pool, events, aggregates int) {
	b.Helper()
	_, err := pool.Exec(b.Context(), `
		WITH event AS (
			INSERT INTO video_catalog.outbox (id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
			SELECT (substr(video_catalog.uuid7_floor(now())::text, 1, 14) || substr(gen_random_uuid()::text, 15))::uuid, 'letter', md5((n % $2)::text)::uuid::text,
				'LetterChanged', n / $2 + 1, 1, decode(repeat('ab', 300), 'hex'), now()
			FROM generate_series(0, $1 - 1) n
			RETURNING id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at
		)
		INSERT INTO video_catalog.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
		SELECT video_catalog.outbox_lane(aggregate_type, aggregate_id), event.* FROM event`, events, aggregates)
	if err != nil {
		b.Fatal(err)
	}
}

// retain leaves events that were published.
func retain(b *testing.B, pool *pgxpool.Pool, events int) {
	b.Helper()
	appendEvents(b, pool, events, 1000)
	if _, err := pool.Exec(b.Context(), "DELETE FROM video_catalog.outbox_pending"); err != nil {
		b.Fatal(err)
	}
	if _, err := pool.Exec(b.Context(), "VACUUM video_catalog.outbox_pending, video_catalog.outbox"); err != nil {
		b.Fatal(err)
	}
}

// naiveRate is the loop of a thousand blog posts, on a table of its own.
func naiveRate(b *testing.B, pool *pgxpool.Pool, delay time.Duration, events int) float64 {
	b.Helper()
	ctx := b.Context()
	if _, err := pool.Exec(ctx, `
		DROP TABLE IF EXISTS naive_outbox;
		CREATE TABLE naive_outbox (id uuid PRIMARY KEY, aggregate_id text NOT NULL, payload bytea NOT NULL,
			occurred_at timestamptz NOT NULL DEFAULT now(), published_at timestamptz, locked_at timestamptz);
		CREATE INDEX ON naive_outbox (occurred_at) WHERE published_at IS NULL`); err != nil {
		b.Fatal(err)
	}
	if _, err := pool.Exec(ctx, `INSERT INTO naive_outbox (id, aggregate_id, payload) SELECT gen_random_uuid(), n::text, decode(repeat('ab', 300), 'hex') FROM generate_series(1, $1) n`, events); err != nil {
		b.Fatal(err)
	}
	published := 0
	start := time.Now()
	for published < events {
		rows, err := pool.Query(ctx, `
			UPDATE naive_outbox SET locked_at = now() WHERE id IN (
				SELECT id FROM naive_outbox WHERE published_at IS NULL ORDER BY occurred_at LIMIT 200 FOR UPDATE SKIP LOCKED)
			RETURNING id`)
		if err != nil {
			b.Fatal(err)
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		if err != nil {
			b.Fatal(err)
		}
		for _, id := range ids {
			if err := (sink{delay: delay}).Publish(envelope.Message{}).Wait(ctx); err != nil {
				b.Fatal(err)
			}
			if _, err := pool.Exec(ctx, "UPDATE naive_outbox SET published_at = now() WHERE id = $1", id); err != nil {
				b.Fatal(err)
			}
			published++
		}
		if len(ids) == 0 {
			b.Fatal(errors.New("the naive loop is stuck"))
		}
	}
	return float64(events) / time.Since(start).Seconds()
}
