package pubsublocal_test

import (
	"context"
	"testing"

	"cloud.google.com/go/pubsub/v2"
	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"example.com/servicekit/pubsublocal"
)

// With the tracing of the client library, publish and receive of a message are one trace.
func TestTraceOfClientLibrary(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)))
	t.Cleanup(func() { otel.SetTracerProvider(before) })

	server, _ := start(t, pubsublocal.Config{})
	client, err := pubsub.NewClientWithConfig(t.Context(), "test", &pubsub.ClientConfig{EnableOpenTelemetryTracing: true}, server.Options()...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	publisher := client.Publisher(testTopic)
	if _, err := publisher.Publish(t.Context(), &pubsub.Message{Data: []byte("hello")}).Get(t.Context()); err != nil {
		t.Fatal(err)
	}
	publisher.Stop() // waits until its spans have ended
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := client.Subscriber(testSub).Receive(ctx, func(_ context.Context, m *pubsub.Message) {
		m.Ack()
		cancel()
	}); err != nil {
		t.Fatal(err)
	}
	traces := map[string]trace.TraceID{}
	for _, span := range spans.GetSpans() {
		traces[span.Name] = span.SpanContext.TraceID()
	}
	if created, received := traces["topic create"], traces["subscription subscribe"]; !created.IsValid() || created != received {
		t.Errorf("traces are %v, want one for create and subscribe", traces)
	}
}
