package consumer_test

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/metric/noop"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg/pgtest"
)

// A message of an aggregate type without a handler is acknowledged and counted,
// and nothing reads it, whatever it contains. The log has one a minute.
func TestReceiverAcknowledgesUnhandledTypes(t *testing.T) {
	t.Parallel()
	b, store, id := newBroker(t), newStore(), uuid.NewString()
	var logged bytes.Buffer
	store.log = slog.NewTextHandler(&logged, nil)
	read := store.read(t)
	stop := b.start(consumer.Config{}, store)
	like, broken := newNote(id, 2), newNote(id, 3)
	like.Attributes[envelope.AttrAggregateType], broken.Attributes[envelope.AttrAggregateType] = "order", "order"
	broken.Attributes[envelope.AttrVersion] = "0"
	b.publish(newNote(id, 1), like, broken)
	b.waitForAcks()
	stop()
	pgtest.Same(t, "consumer.events", map[string]int64{"note applied": 1, "other unhandled": 2}, read.counterByType("consumer.events"))
	if versions, _, quarantine := store.state(); versions[id] != 1 || len(quarantine) != 0 {
		t.Errorf("version = %d, quarantine = %v, want 1 and nothing", versions[id], quarantine)
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
		again := newNote(uuid.NewString(), 1)
		again.Attributes[envelope.AttrAggregateType] = "order"
		var logged bytes.Buffer
		from := consumer.Input{Source: lateSource{source, again}, Consumer: "test"} // without handlers
		receiver, err := consumer.New(consumer.Config{}, from, newStore(), slog.New(slog.NewTextHandler(&logged, nil)), noop.Meter{})
		pgtest.Must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		pgtest.Must(t, receiver.Run(ctx))
		if n := strings.Count(logged.String(), "\n"); n != 2 {
			t.Errorf("log has %d lines, want one at once, and one a minute later", n)
		}
	})
}

// A quarantined message is applied by the handler of its type, if there is one.
func TestReplay(t *testing.T) {
	t.Parallel()
	store := newStore()
	n := newNote(uuid.NewString(), 1)
	if err := store.handlers().Replay(t.Context(), "test", n.Attributes, n.Data); err != nil || store.versions[n.Key] != 1 {
		t.Errorf("Replay() = %v, version %d, want nil and 1", err, store.versions[n.Key])
	}
	with := func(name, value string) map[string]string {
		attributes := maps.Clone(n.Attributes)
		attributes[name] = value
		return attributes
	}
	for _, test := range []struct {
		attributes map[string]string
		want       string
	}{
		{nil, "attribute event_id is missing"}, {with(envelope.AttrAggregateType, "order"), `aggregate type "order" has no handler`},
		{with(envelope.AttrSchemaVersion, "2"), "schema version 2 is newer"},
	} {
		if err := store.handlers().Replay(t.Context(), "test", test.attributes, n.Data); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("Replay() = %v, want %s", err, test.want)
		}
	}
	panics := consumer.Handlers{n.Attributes[envelope.AttrAggregateType]: consumer.Handle(func(envelope.Message) (int, error) { panic("broken") }, nil)}
	if err := panics.Replay(t.Context(), "test", n.Attributes, n.Data); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("Replay() with a panic = %v, want it as an error", err)
	}
}
