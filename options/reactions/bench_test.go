package store_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
	"example.com/videocatalog/internal/timer"
)

// BenchmarkReaction measures a reaction to an event, alone and in a batch of events that
// concern different aggregates.
func BenchmarkReaction(b *testing.B) {
	for _, size := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			videos := store.NewVideos(storetest.Pool(b, 4), nil)
			react := store.ReactVideos(videos, addReview(), realStamp)
			ids := newVideos(b, videos, size)
			n := 0
			b.ResetTimer()
			for b.Loop() {
				batch := make([]envelope.Received[review], size)
				for i, id := range ids {
					n++
					batch[i] = reviewed(b, "x", id)
					batch[i].Event.title = fmt.Sprint(n)
				}
				if _, err := react(b.Context(), "reviews", batch); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/event")
		})
	}
}

// retitle is what videos do when a timer fires: each time they have another title.
func retitle(v domain.Video, _ string, stamp domain.Stamp) (*domain.Event, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	return domain.Update([]domain.Field{domain.FieldTitle}, domain.Details{Title: id.String()}, domain.AnyVersion, stamp)(v)
}

// BenchmarkTimers measures a transaction that fires 100 timers, with few and with a million
// others that wait.
func BenchmarkTimers(b *testing.B) {
	for _, others := range []int{0, 1_000_000} {
		b.Run(fmt.Sprintf("waiting=%d", others), func(b *testing.B) {
			pool := storetest.Pool(b, 4)
			videos := store.NewVideos(pool, nil)
			timers := videos.Timers(retitle, realStamp)
			ids := newVideos(b, videos, 100)
			if _, err := pool.Exec(b.Context(), `INSERT INTO video_catalog.timers (aggregate_type, aggregate_id, name, due_at, causation_id, correlation_id)
				SELECT 'video', gen_random_uuid(), 'x', now() + n * interval '1 s', gen_random_uuid(), gen_random_uuid() FROM generate_series(3600, 3600 + $1::int) n`, others); err != nil {
				b.Fatal(err)
			}
			if _, err := pool.Exec(b.Context(), "VACUUM ANALYZE video_catalog.timers"); err != nil {
				b.Fatal(err)
			}
			var spent time.Duration
			b.ResetTimer()
			for b.Loop() {
				for _, id := range ids {
					at(b, videos, id, domain.Timer{Name: "x", After: now})
				}
				start := time.Now()
				if fired, err := timers.Fire(b.Context(), 100); err != nil || len(fired.Late) != 100 {
					b.Fatalf("Fire() = %+v, %v, want 100", fired, err)
				}
				spent += time.Since(start)
			}
			b.ReportMetric(float64(spent.Nanoseconds())/float64(100*b.N), "ns/timer")
		})
	}
}

// BenchmarkClock measures how late timers fire, of which 1,000 become due in a second, with the
// clocks of some processes.
func BenchmarkClock(b *testing.B) {
	const perSecond, seconds = 1000, 10
	for _, processes := range []int32{1, 3} {
		b.Run(fmt.Sprintf("processes=%d", processes), func(b *testing.B) {
			pool := storetest.Pool(b, 4*processes)
			videos := store.NewVideos(pool, nil)
			ids := newVideos(b, videos, perSecond*seconds)
			for b.Loop() {
				if _, err := pool.Exec(b.Context(), `INSERT INTO video_catalog.timers (aggregate_type, aggregate_id, name, due_at, causation_id, correlation_id)
					SELECT 'video', id, 'x', now() + interval '1 s' + n * interval '1 s' / $2, gen_random_uuid(), gen_random_uuid()
					FROM unnest($1::uuid[]) WITH ORDINALITY AS due (id, n)`, ids, perSecond); err != nil {
					b.Fatal(err)
				}
				late := make(chan time.Duration, len(ids))
				ctx, cancel := context.WithCancel(b.Context())
				var clocks sync.WaitGroup
				for range processes {
					clock, err := timer.New(timer.Config{}, map[string]timer.Timers{"video": measuredFires{videos.Timers(retitle, realStamp), late}}, slog.New(slog.DiscardHandler), nil)
					if err != nil {
						b.Fatal(err)
					}
					clocks.Go(func() { _ = clock.Run(ctx) }) // always nil
				}
				all := make([]time.Duration, len(ids))
				for i := range all {
					all[i] = <-late
				}
				cancel()
				clocks.Wait()
				slices.Sort(all)
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(float64(all[len(all)/2].Milliseconds()), "p50-ms")
				b.ReportMetric(float64(all[len(all)*99/100].Milliseconds()), "p99-ms")
				b.ReportMetric(float64(all[len(all)-1].Milliseconds()), "max-ms")
			}
		})
	}
}

// measuredFires are timers that report how late each has fired.
type measuredFires struct {
	timer.Timers
	late chan<- time.Duration
}

func (m measuredFires) Fire(ctx context.Context, maxTimers int) (timer.Fired, error) {
	fired, err := m.Timers.Fire(ctx, maxTimers)
	for _, late := range fired.Late {
		m.late <- late
	}
	return fired, err
}
