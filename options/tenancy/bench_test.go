package tenancy

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// BenchmarkTenancy measures the time of a call with a tenant ÷ without one. The calls take turns. The medians do not see a
// checkpoint.
func BenchmarkTenancy(b *testing.B) {
	f := newFixture(b)
	f.rows(b, 100_000)
	for name, call := range map[string]func(context.Context, *pgxpool.Pool) error{"page": readPage, "write": writeOne} {
		b.Run(name, func(b *testing.B) {
			var times [2][]time.Duration
			for range b.N {
				for range 2000 {
					for i, pool := range []*pgxpool.Pool{f.loops, f.calls} {
						ctx := b.Context()
						if i == 1 {
							ctx = acme(b)
						}
						began := time.Now()
						must(b, call(ctx, pool))
						times[i] = append(times[i], time.Since(began))
					}
				}
			}
			slices.Sort(times[0])
			slices.Sort(times[1])
			middle := len(times[0]) / 2
			b.ReportMetric(float64(times[1][middle])/float64(times[0][middle]), "with/without")
			b.ReportMetric(float64(times[0][middle].Microseconds()), "us-without")
		})
	}
}
