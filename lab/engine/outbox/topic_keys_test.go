package outbox_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"google.golang.org/grpc/codes"

	"example.com/servicekit/pubsublocal"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
)

// A process lives long, and so do outages: of a key whose answers have all been
// read nothing stays, however they ended. Until then it counts as paused, once.
func TestTopicForgetsKeys(t *testing.T) {
	t.Parallel()
	topic, server := newTopic(t, 30*time.Second, 10)
	reader := sdkmetric.NewManualReader()
	topics := outbox.Topics{"order": topic, "cart": topic}
	if err := topics.Observe(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("test")); err != nil {
		t.Fatal(err)
	}
	remove := server.Inject(pubsublocal.Fault{Method: "Publish", Code: codes.PermissionDenied})
	for outage := range 2 {
		failed := 0
		var receipts []outbox.Receipt
		for i := range 100 {
			receipts = append(receipts, topic.Publish(envelope.Message{AggregateID: fmt.Sprint(i % 50), Payload: []byte("x")}))
		}
		for i, r := range receipts {
			if err := r.Wait(context.WithoutCancel(t.Context())); err != nil {
				failed++
			}
			if got, want := pausedIn(t, reader), int64(min(i+1, 99-i)*(1-outage)); got != want { // each key has two answers
				t.Fatalf("after %d answers %d keys are paused, want %d", i+1, got, want)
			}
		}
		if failed != 100*(1-outage) {
			t.Errorf("%d of 100 messages failed, want %d", failed, 100*(1-outage))
		}
		remove() // and all keys are open again
	}
}

// pausedIn returns the number of paused keys that a reader sees.
func pausedIn(t *testing.T, reader *sdkmetric.ManualReader) int64 {
	t.Helper()
	var collected metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &collected); err != nil {
		t.Fatal(err)
	}
	for _, scope := range collected.ScopeMetrics {
		for _, m := range scope.Metrics {
			if gauge, ok := m.Data.(metricdata.Gauge[int64]); ok && m.Name == "outbox.paused_keys" {
				return gauge.DataPoints[0].Value
			}
		}
	}
	t.Fatal("outbox.paused_keys was not observed")
	return 0
}
