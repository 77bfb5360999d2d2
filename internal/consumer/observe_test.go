package consumer_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg/pgtest"
)

// Messages in sampled traces are spans from arrival to ack. Their transaction
// is under the first of a batch, and the others link to it.
func TestSampledMessagesAreTraced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := messages(4)
		for i, m := range source {
			flags := "00"
			if i < 2 {
				flags = "01"
			}
			m.Attributes[envelope.AttrTraceparent] = fmt.Sprintf("00-%032x-%016x-%s", i+1, 0xabc, flags)
		}
		delete(source[3].Attributes, envelope.AttrTraceparent)
		store, exporter := newStore(), tracetest.NewInMemoryExporter()
		var transactions []trace.SpanContext
		store.before = func(ctx context.Context, _ []note) error {
			transactions = append(transactions, trace.SpanContextFromContext(ctx))
			return nil
		}
		project(t, consumer.Config{Tracing: sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))}, store, source, time.Second)

		var got []string
		names := make(map[trace.SpanID]string)
		links := 0
		for _, span := range exporter.GetSpans() {
			names[span.SpanContext.SpanID()] = span.Name
		}
		names[trace.SpanID{6: 0xa, 7: 0xbc}] = "the publisher"
		for _, span := range exporter.GetSpans() {
			got = append(got, span.SpanContext.TraceID().String()[31:]+" "+span.Name+" under "+names[span.Parent.SpanID()])
			for _, link := range span.Links {
				links++
				if len(transactions) != 1 || !link.SpanContext.Equal(transactions[0]) {
					t.Errorf("%s links to %v, want the transaction %v", span.Name, link.SpanContext, transactions)
				}
			}
		}
		slices.Sort(got)
		want := []string{
			"1 consumer.process under the publisher",
			"2 consumer.process under the publisher",
		}
		pgtest.Same(t, "spans", want, got)
		if links != 1 || len(transactions) != 1 || !transactions[0].IsSampled() {
			t.Errorf("%d links, transactions under %v, want one and one", links, transactions)
		}
	})
}

// The lag of an event is measured, and refers to its trace. It is not negative if the clock of the command is ahead.
func TestLagIsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := messages(3)
		source[0].Attributes[envelope.AttrTraceparent] = fmt.Sprintf("00-%032x-%016x-01", 1, 0xabc)
		ahead := newNote(uuid.NewString(), 1)
		ahead.Attributes[envelope.AttrOccurredAt] = time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
		store := newStore()
		store.before = func(context.Context, []note) error {
			time.Sleep(200 * time.Millisecond)
			return nil
		}
		read := store.read(t)
		project(t, consumer.Config{Tracing: sdktrace.NewTracerProvider()}, store, append(source, ahead), time.Second)
		if n, sum := read.histogram("consumer.lag"); n != 4 || sum < 0.6 || sum > 1 {
			t.Errorf("consumer.lag = %d times, %.2f s in all, want 3 of a little over 0.2 s, and 0", n, sum)
		}
		exemplars := make(map[string]int)
		for _, m := range read.collect() {
			if data, ok := m.Data.(metricdata.Histogram[float64]); ok {
				exemplars[m.Name] = len(data.DataPoints[0].Exemplars)
			}
		}
		want := map[string]int{"consumer.lag": 1}
		pgtest.Same(t, "exemplars", want, exemplars)
	})
}

// A worker whose call of the store never comes back is stuck. One that waits
// for messages, or for a database that is unavailable, is not.
func TestHangingTransactionIsStuck(t *testing.T) {
	const interval = 10*time.Second + 5*time.Second // the timeout of a transaction, and the longest pause
	for _, test := range []struct {
		name     string
		messages int
		call     func(hang <-chan struct{}) error
		stuck    bool
	}{
		{"hangs", 1, func(hang <-chan struct{}) error { <-hang; return nil }, true},
		{"no database", 1, func(<-chan struct{}) error { time.Sleep(10 * time.Second); return unavailable() }, false},
		{"no messages", 0, nil, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hang := make(chan struct{})
				store := newStore()
				store.before = func(context.Context, []note) error { return test.call(hang) }
				checkStuck(t, newReceiver(t, consumer.Config{}, store, messages(test.messages)), interval, test.stuck, "consumer test: worker", func() { close(hang) })
			})
		})
	}
}

// checkStuck runs a receiver, checks whether its loop is stuck after three
// intervals and not before, releases the loop, and ends the receiver.
func checkStuck(t *testing.T, receiver *consumer.Receiver, interval time.Duration, want bool, loop string, release func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = receiver.Run(ctx) }) // other tests check its error
	time.Sleep(3 * interval)
	pgtest.Must(t, receiver.Stuck()) // within three intervals
	for range 100 {
		time.Sleep(time.Second)
		if err := receiver.Stuck(); (err != nil) != want || err != nil && !strings.Contains(err.Error(), loop) {
			t.Fatalf("Stuck() = %v, want an error: %t", err, want)
		}
	}
	release()
	stop()
	running.Wait()
	if err := receiver.Stuck(); err != nil {
		t.Errorf("Stuck() = %v once it has ended, want nil", err)
	}
}
