package consumer_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel/metric/noop"

	"example.com/servicekit/localbroker"
	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/envelope"
)

// A message of an aggregate type without a handler is acknowledged and counted,
// and nothing reads it, whatever it contains. The log has one a minute.
func TestReceiverAcknowledgesUnhandledTypes(t *testing.T) {
	t.Parallel()
	b, store, id := newBroker(t, localbroker.Resources{Schemaless: true}), &memStore{}, uuid.NewString()
	var logged lockedBuffer
	read, stop := b.startLogging(consumer.Config{}, store, slog.New(slog.NewTextHandler(&logged, nil)))
	like, broken := noteEvent(id, 2, deleted), noteEvent(id, 3, edited)
	like.AggregateType, broken.AggregateType, broken.Version = "order", "order", 0
	b.publish(message(noteEvent(id, 1, written)), message(like), message(broken))
	b.waitForAcks()
	stop()
	if diff := cmp.Diff(map[string]int64{"note applied": 1, "other unhandled": 2}, read.counterByType("consumer.events")); diff != "" {
		t.Errorf("consumer.events (-want +got):\n%s", diff)
	}
	if got := store.entry(id); got.Version != 1 || len(store.quarantined()) != 0 {
		t.Errorf("note = %+v, quarantine = %v, want version 1 and nothing", got, store.quarantined())
	}
	if n := strings.Count(logged.String(), "aggregate_type=order"); n != 1 || !strings.Contains(logged.String(), "level=WARN") {
		t.Errorf("log = %s\nwant one warning of the type", logged.String())
	}
}

// The log has at most one line a minute about messages without a handler.
func TestUnhandledTypesDoNotFloodTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := messages(1000)
		for i, m := range source {
			m.Attributes[envelope.AttrAggregateType] = []string{"order", "invoice", uuid.NewString()}[min(i, 2)]
		}
		again := message(noteEvent(uuid.NewString(), 1, written))
		again.Attributes[envelope.AttrAggregateType] = "order"
		var logged lockedBuffer
		receiver, err := newFrom(consumer.Config{}, lateSource{source, again}, nil, &memStore{}, slog.New(slog.NewTextHandler(&logged, nil)), noop.Meter{})
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		if err := receiver.Run(ctx); err != nil {
			t.Errorf("Run() = %v, want nil once ctx is done", err)
		}
		if n := strings.Count(logged.String(), "\n"); n != 2 {
			t.Errorf("log has %d lines, want one at once, and one a minute later", n)
		}
	})
}

// A quarantined message is applied by the handler of its type, if there is one.
func TestReplay(t *testing.T) {
	t.Parallel()
	store := &memStore{}
	n := noteEvent(uuid.NewString(), 1, written)
	if err := store.handlers().Replay(t.Context(), "test", n.Attributes(), n.Payload); err != nil || store.entry(n.AggregateID).Version != 1 {
		t.Errorf("Replay() = %v, note %+v, want nil and version 1", err, store.entry(n.AggregateID))
	}
	order, newer := n, n
	order.AggregateType, newer.SchemaVersion = "order", 2
	for _, test := range []struct {
		attributes map[string]string
		want       string
	}{
		{nil, "attribute event_id is missing"}, {order.Attributes(), `aggregate type "order" has no handler`}, {newer.Attributes(), "schema version 2 is newer"},
	} {
		if err := store.handlers().Replay(t.Context(), "test", test.attributes, n.Payload); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("Replay() = %v, want %s", err, test.want)
		}
	}
}
