package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
)

// traced gives each event of a claim its own trace. The traces of the events
// named in sampled are sampled.
func traced(events []outbox.Claimed, sampled string) []outbox.Claimed {
	for i := range events {
		flags := "00"
		if slices.Contains(strings.Fields(sampled), nameOf(events[i].Message)) {
			flags = "01"
		}
		events[i].Traceparent = fmt.Sprintf("00-%032x-%016x-%s", i+1, 0xabc, flags)
	}
	return events
}

// An event in a sampled trace gets a publish span, whose context goes with the
// message. Others are left as they are, and a blocked one has no span.
func TestSampledEventsAreTraced(t *testing.T) {
	t.Parallel()
	exporter := tracetest.NewInMemoryExporter()
	store := &oneClaim{claim: outbox.Claim{Lease: outbox.Lease{Token: 1}, Events: traced(claimed("a1 b1 c1 d2"), "a1 c1 d2")}}
	store.claim.Events[3].Behind = true
	sent := make(map[string]string)
	publisher := mustNew(t, store, broker(func(m envelope.Message) outbox.Receipt {
		sent[nameOf(m)] = m.Traceparent
		if nameOf(m) == "c1" {
			return responded(errRefused)
		}
		return responded(nil)
	}), outbox.Config{Tracing: sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))})
	once(t, publisher)
	var got []string
	for _, span := range exporter.GetSpans() {
		trace, name := span.SpanContext.TraceID().String(), span.Name
		got = append(got, fmt.Sprintf("%s %s %s under %s", trace[31:], name, span.Status.Code, span.Parent.SpanID()))
		if want := envelope.Traceparent(tracedContext(span)); name == "outbox.publish" && !slices.Contains([]string{sent["a1"], sent["c1"]}, want) {
			t.Errorf("no message carries %s: %v", want, sent)
		}
	}
	slices.Sort(got)
	want := []string{"1 outbox.publish Unset under 0000000000000abc", "3 outbox.publish Error under 0000000000000abc"}
	same(t, "spans", want, got)
	if want := fmt.Sprintf("00-%032x-%016x-00", 2, 0xabc); sent["b1"] != want {
		t.Errorf("b1 carries %q, want %q as it was", sent["b1"], want)
	}
}

func tracedContext(span tracetest.SpanStub) context.Context {
	ctx, _ := envelope.ContinueTrace(context.Background(), "00-"+span.SpanContext.TraceID().String()+"-"+span.SpanContext.SpanID().String()+"-01")
	return ctx
}

// The delay of an event has an exemplar with its trace, if the trace is sampled.
func TestPublishDelayHasExemplars(t *testing.T) {
	t.Parallel()
	for sampled, want := range map[string]int{"a1": 1, "": 0} {
		store := &oneClaim{claim: outbox.Claim{Lease: outbox.Lease{Token: 1}, Events: traced(claimed("a1"), sampled)}}
		publisher, reader := metered(t, store, &recorder{}, outbox.Config{Tracing: sdktrace.NewTracerProvider()})
		once(t, publisher)
		seen := 0
		for _, m := range measured(t, reader) {
			if data, ok := m.Data.(metricdata.Histogram[float64]); ok && m.Name == "outbox.publish.delay" {
				for _, exemplar := range data.DataPoints[0].Exemplars {
					seen++
					if got := fmt.Sprintf("%x", exemplar.TraceID); got != fmt.Sprintf("%032x", 1) {
						t.Errorf("the exemplar is in trace %s", got)
					}
				}
			}
		}
		if seen != want {
			t.Errorf("sampled %q: %d exemplars, want %d", sampled, seen, want)
		}
	}
}

// metered returns a publisher, and a reader of its metrics.
func metered(t *testing.T, store outbox.Store, to outbox.Broker, cfg outbox.Config) (*outbox.Publisher, metric.Reader) {
	t.Helper()
	reader := metric.NewManualReader()
	publisher, err := outbox.New(store, to, cfg, discard, metric.NewMeterProvider(metric.WithReader(reader)).Meter("test"))
	must(t, err)
	return publisher, reader
}

func measured(t *testing.T, reader metric.Reader) []metricdata.Metrics {
	t.Helper()
	var data metricdata.ResourceMetrics
	must(t, reader.Collect(t.Context(), &data))
	var all []metricdata.Metrics
	for _, scope := range data.ScopeMetrics {
		all = append(all, scope.Metrics...)
	}
	return all
}

// Events are counted by what became of them, and the delay of a published one is measured. It is not negative if the clock of
// the command is ahead.
func TestEventsAreCounted(t *testing.T) {
	t.Parallel()
	answers := map[string]error{
		"b1": &outbox.RefusedError{Err: pubsub.ErrOversizedMessage},
		"c1": &outbox.RefusedError{Err: status.Error(codes.InvalidArgument, "bad 4711")},
		"d1": status.Error(codes.Unavailable, "away"),
		"d2": pubsub.ErrPublishingPaused{OrderingKey: "d"},
		"e1": context.DeadlineExceeded,
	}
	events := claimed("a1 b1 c1 d1 d2 e1 b2 f1")
	events[0].Deferred, events[0].Attempts, events[0].OccurredAt = true, 2, time.Now().Add(-time.Hour)
	events[6].Behind = true // never an attempt
	events[7].OccurredAt = time.Now().Add(time.Hour)
	publisher, reader := metered(t, &oneClaim{claim: outbox.Claim{Lease: outbox.Lease{Token: 1}, Events: events}}, broker(func(m envelope.Message) outbox.Receipt {
		return responded(answers[nameOf(m)])
	}), outbox.Config{})
	once(t, publisher)
	got := make(map[string]int64)
	for _, m := range measured(t, reader) {
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, point := range data.DataPoints {
				for _, attr := range point.Attributes.ToSlice() {
					got[m.Name+" "+attr.Value.AsString()] = point.Value
				}
			}
		case metricdata.Histogram[float64]:
			got[m.Name] = int64(data.DataPoints[0].Count)
			got[m.Name+" hours"] = int64(data.DataPoints[0].Sum) / 3600
		case metricdata.Gauge[int64]:
			got[m.Name] = data.DataPoints[0].Value
		}
	}
	want := map[string]int64{
		"outbox.publish.delay": 2, "outbox.publish.delay hours": 1, "outbox.breaker.open": 0,
		"outbox.events published": 2, "outbox.events refused": 2, "outbox.events unknown": 3,
	}
	same(t, "metrics", want, got)
}

// outbox.breaker.open is 1 while the breaker is open, and 0 when the broker is back.
func TestOpenBreakerShows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, topic := newMemory(1), &flaky{back: time.Now().Add(90 * time.Second)}
		store.add(0, "a1")
		publisher, reader := metered(t, store, topic, outbox.Config{Workers: 1})
		open := func() (value int64) {
			for _, m := range measured(t, reader) {
				if m.Name == "outbox.breaker.open" {
					value = m.Data.(metricdata.Gauge[int64]).DataPoints[0].Value
				}
			}
			return value
		}
		stop := run(t, publisher)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := open(); got != 1 {
			t.Errorf("outbox.breaker.open = %d after a minute of outage, want 1", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := open(); got != 0 {
			t.Errorf("outbox.breaker.open = %d half a minute after the outage, want 0", got)
		}
		stop()
	})
}

// hangingStore has claims that return only when hang is closed, even if their context ends.
type hangingStore struct {
	outbox.Store
	hang chan struct{}
}

func (s hangingStore) ClaimEvents(context.Context, outbox.Limits) (outbox.Claim, error) {
	<-s.hang
	return outbox.Claim{}, nil
}

// A worker that hangs is found after three times as long as a pass may take. A
// publisher without work, without a database or without a broker is not stuck.
func TestHangingWorkerIsStuck(t *testing.T) {
	t.Parallel()
	const interval = 15 * time.Second // the lease
	t.Run("hangs", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			store := hangingStore{hang: make(chan struct{})}
			publisher := mustNew(t, store, nil, outbox.Config{Workers: 2})
			stop := run(t, publisher)
			time.Sleep(3 * interval)
			if err := publisher.Stuck(); err != nil {
				t.Errorf("Stuck() = %v within three intervals, want nil", err)
			}
			time.Sleep(2 * time.Second) // the second began a second later
			if err := publisher.Stuck(); err == nil || !strings.Contains(err.Error(), "worker 0") || !strings.Contains(err.Error(), "worker 1") {
				t.Errorf("Stuck() = %v, want both workers", err)
			}
			close(store.hang)
			stop()
			if err := publisher.Stuck(); err != nil {
				t.Errorf("Stuck() = %v after Run returned, want nil", err)
			}
		})
	})
	healthy := map[string]func(*memory) (outbox.Store, outbox.Broker){
		"idle": func(s *memory) (outbox.Store, outbox.Broker) { return s, nil },
		"no database": func(*memory) (outbox.Store, outbox.Broker) {
			return silentStore{}, nil
		},
		"no broker": func(s *memory) (outbox.Store, outbox.Broker) {
			s.add(0, "a1 b1")
			return s, broker(func(envelope.Message) outbox.Receipt { return responded(errUnavailable) })
		},
	}
	for name, make := range healthy {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, broker := make(newMemory(2))
				// The turn of an idle worker comes every eight minutes.
				publisher := mustNew(t, store, broker, outbox.Config{Workers: 8, PollInterval: time.Minute})
				stop := run(t, publisher)
				for range 360 {
					time.Sleep(10 * time.Second)
					if err := publisher.Stuck(); err != nil {
						t.Fatalf("Stuck() = %v, want nil", err)
					}
				}
				stop()
			})
		})
	}
}
