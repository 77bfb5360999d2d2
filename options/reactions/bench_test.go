package reactions

import (
	"fmt"
	"testing"
	"time"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/pg/pgtest"
)

// BenchmarkReaction measures a reaction to an event, alone and in a batch of events that
// concern different aggregates.
func BenchmarkReaction(b *testing.B) {
	for _, size := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			videos := newClips(pgtest.Pool(b, 4), nil)
			react := addReview(videos).react
			ids := someClips(b, videos, size)
			n := 0
			b.ResetTimer()
			for b.Loop() {
				batch := make([]received[review], size)
				for i, id := range ids {
					n++
					batch[i] = reviewed(b, "x", id)
					batch[i].Event.title = fmt.Sprint(n)
				}
				_, err := react(b.Context(), "reviews", batch)
				must(b, err)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/event")
		})
	}
}

// retitle is the alarm of videos: it gives a video another title each time.
func retitle(v domain.Video, _ string, stamp domain.Stamp) (*fact, error) {
	return retitled(v, stamp.EventID.String(), stamp)
}

// BenchmarkTimers measures a transaction that fires 100 timers, while few or a million others
// wait.
func BenchmarkTimers(b *testing.B) {
	for _, others := range []int{0, 1_000_000} {
		b.Run(fmt.Sprintf("waiting=%d", others), func(b *testing.B) {
			pool := pgtest.Pool(b, 4)
			videos := newClips(pool, nil)
			timers := NewTimers(videos, retitle)
			ids := someClips(b, videos, 100)
			pgtest.Execute(b, pool, `INSERT INTO video_catalog.timers (aggregate_type, aggregate_id, name, due_at, causation_id, correlation_id)
				SELECT 'video', gen_random_uuid(), 'x', now() + n * interval '1 s', gen_random_uuid(), gen_random_uuid() FROM generate_series(3600, 3600 + $1::int) n`, others)
			pgtest.Execute(b, pool, "VACUUM ANALYZE video_catalog.timers")
			var spent time.Duration
			b.ResetTimer()
			for b.Loop() {
				for _, id := range ids {
					set(b, videos, after{"x": now}, id)
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
