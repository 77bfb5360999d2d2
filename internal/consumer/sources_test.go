package consumer_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/pg/pgtest"
)

// slowSource hands over its messages one after the other.
type slowSource struct {
	fakeSource
	pause time.Duration
}

func (s slowSource) Receive(ctx context.Context, handle func(context.Context, consumer.Message) bool) error {
	return s.fakeSource.Receive(ctx, func(ctx context.Context, m consumer.Message) bool {
		for i := range s.fakeSource {
			if s.fakeSource[i].ID == m.ID {
				time.Sleep(time.Duration(i) * s.pause)
			}
		}
		return handle(ctx, m)
	})
}

// countingSource counts the acks and nacks of its messages.
type countingSource struct {
	fakeSource
	acks, nacks atomic.Int64
}

func (s *countingSource) Receive(ctx context.Context, handle func(context.Context, consumer.Message) bool) error {
	return s.fakeSource.Receive(ctx, func(ctx context.Context, m consumer.Message) bool {
		ack := handle(ctx, m)
		if ack {
			s.acks.Add(1)
		} else {
			s.nacks.Add(1)
		}
		return ack
	})
}

// lateSource hands over one message more after a minute.
type lateSource struct {
	fakeSource
	late consumer.Message
}

func (s lateSource) Receive(ctx context.Context, handle func(context.Context, consumer.Message) bool) error {
	var late sync.WaitGroup
	late.Go(func() {
		time.Sleep(time.Minute)
		handle(ctx, s.late)
	})
	defer late.Wait()
	return s.fakeSource.Receive(ctx, handle)
}

// hangingSource does not stop before it is released.
type hangingSource struct {
	fakeSource
	release chan struct{}
}

func (s hangingSource) Receive(ctx context.Context, handle func(context.Context, consumer.Message) bool) error {
	err := s.fakeSource.Receive(ctx, handle)
	<-s.release
	return err
}

// readings reads what a receiver has counted.
type readings struct {
	t      *testing.T
	reader *sdkmetric.ManualReader
}

// read gives the store a meter, and returns its readings.
func (s *memStore) read(t *testing.T) readings {
	reader := sdkmetric.NewManualReader()
	s.meter = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("test")
	return readings{t, reader}
}

// counter returns the values of a counter, by the values of its attributes
// without the aggregate type.
func (r readings) counter(name string) map[string]int64 {
	r.t.Helper()
	return r.counterBy(name, func(attr attribute.KeyValue) bool { return attr.Key != "aggregate_type" })
}

// counterByType returns the values of a counter, by aggregate type and the value
// of its other attribute.
func (r readings) counterByType(name string) map[string]int64 {
	r.t.Helper()
	return r.counterBy(name, func(attribute.KeyValue) bool { return true })
}

func (r readings) counterBy(name string, keep func(attribute.KeyValue) bool) map[string]int64 {
	r.t.Helper()
	values := map[string]int64{}
	for _, m := range r.collect() {
		if sum, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == name {
			for _, point := range sum.DataPoints {
				var label []string
				for _, attr := range point.Attributes.ToSlice() { // in the order of their keys
					if keep(attr) {
						label = append(label, attr.Value.AsString())
					}
				}
				values[strings.Join(label, " ")] += point.Value
			}
		}
	}
	return values
}

// histogram returns how many values a histogram has, and their sum.
func (r readings) histogram(name string) (count uint64, sum float64) {
	r.t.Helper()
	for _, m := range r.collect() {
		if m.Name != name {
			continue
		}
		switch data := m.Data.(type) {
		case metricdata.Histogram[int64]:
			for _, point := range data.DataPoints {
				count, sum = count+point.Count, sum+float64(point.Sum)
			}
		case metricdata.Histogram[float64]:
			for _, point := range data.DataPoints {
				count, sum = count+point.Count, sum+point.Sum
			}
		}
	}
	return count, sum
}

func (r readings) collect() []metricdata.Metrics {
	r.t.Helper()
	var all metricdata.ResourceMetrics
	pgtest.Must(r.t, r.reader.Collect(context.Background(), &all))
	var metrics []metricdata.Metrics
	for _, scope := range all.ScopeMetrics {
		metrics = append(metrics, scope.Metrics...)
	}
	return metrics
}
