package catalog_test

import (
	"context"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
	"example.com/videocatalog/internal/telemetry"
)

// nowhere is where the spans of a benchmark go.
type nowhere struct{}

func (nowhere) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
func (nowhere) Shutdown(context.Context) error                             { return nil }

// BenchmarkTrace measures what tracing costs a command's transaction, over 8
// connections: the processor time of this process when one in a hundred, and
// when every one, is sampled, over that when tracing is off, as the median of
// rounds in which the three take turns. Time rather than rate, because it is the
// same on a busy machine; the rate changes less, for most of a transaction is
// the time of the database. What is sampled has the spans of the call, the
// transaction and the statements.
func BenchmarkTrace(b *testing.B) {
	const writers, count, rounds = 8, 1000, 40
	const turn = 160 // transactions
	off := storetest.Pool(b, writers)
	ids := make([]uuid.UUID, count)
	for i := range ids {
		e, err := domain.Create(uuid.Must(uuid.NewV7()), domain.Details{Title: "Seven Samurai"}, domain.Stamp{EventID: uuid.Must(uuid.NewV7()), Time: time.Now()})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := store.NewVideos(off, nil).CreateVideo(b.Context(), uuid.Nil, nil, e); err != nil {
			b.Fatal(err)
		}
		ids[i] = e.Video.ID
	}
	change := func(ctx context.Context, videos *store.Videos, i int) error {
		_, err := videos.ChangeVideo(ctx, ids[i%count], domain.Update([]domain.Field{domain.FieldTitle}, domain.Details{Title: "Title " + uuid.NewString()}, domain.AnyVersion,
			domain.Stamp{EventID: uuid.Must(uuid.NewV7()), Time: time.Now()}))
		return err
	}
	at := func(ratio float64) func(ctx context.Context, i int) error {
		provider := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(ratio))), sdktrace.WithBatcher(nowhere{}))
		b.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
		cfg := off.Config()
		cfg.ConnConfig.Tracer = (&telemetry.Telemetry{Tracing: provider}).QueryTracer()
		pool, err := pgxpool.NewWithConfig(b.Context(), cfg)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(pool.Close)
		own, tracer := store.NewVideos(pool, nil), provider.Tracer("bench")
		return func(ctx context.Context, i int) error {
			// As the call of a server does.
			ctx, span := tracer.Start(propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{}), "call", trace.WithSpanKind(trace.SpanKindServer))
			defer span.End()
			return change(ctx, own, i)
		}
	}
	plain := store.NewVideos(off, nil)
	without := func(ctx context.Context, i int) error { return change(ctx, plain, i) }
	some, all := at(0.01), at(1)

	kinds := []func(context.Context, int) error{without, some, all}
	var offTimes, someRatios, allRatios []float64
	for b.Loop() {
		for round := range rounds {
			var times [3]float64
			for i := range kinds {
				kind := (i + round) % len(kinds) // whoever is first, is so in turn
				times[kind] = processorTime(b, writers, turn, kinds[kind])
			}
			offTimes = append(offTimes, times[0])
			someRatios, allRatios = append(someRatios, times[1]/times[0]), append(allRatios, times[2]/times[0])
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(offTimes)*1e6, "µs-off")
	b.ReportMetric(median(someRatios), "x-sampled-1%")
	b.ReportMetric(median(allRatios), "x-sampled-all")
}

// processorTime returns the seconds of a processor that this process takes for
// one of n transactions.
func processorTime(b *testing.B, workers, n int, do func(ctx context.Context, i int) error) float64 {
	b.Helper()
	used := func() float64 {
		var usage syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
			b.Fatal(err)
		}
		return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
	}
	before := used()
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < n; i += workers {
				if err := do(b.Context(), i*7919); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	return (used() - before) / float64(n)
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}
