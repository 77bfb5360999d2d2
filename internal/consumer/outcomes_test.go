package consumer_test

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"example.com/servicekit/localbroker"
	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/envelope"
)

// Two events of one version, as an owner makes that lost one in a failover, are
// told apart by their ids, and the later one stays.
func TestProjectorFindsTwoEventsOfOneVersion(t *testing.T) {
	t.Parallel()
	b, store, id := newBroker(t, localbroker.Resources{Schemaless: true}), &memStore{}, uuid.NewString()
	read, stop := b.start(consumer.Config{}, store)
	lost, kept := noteEvent(id, 2, edited), noteEvent(id, 2, deleted)
	lost.ID, kept.ID = uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
	for _, e := range []note{noteEvent(id, 1, written), kept, lost} {
		b.publish(message(e))
		b.waitForAcks()
	}
	stop()
	if diff := cmp.Diff(map[string]int64{"applied": 2, "conflict": 1}, read.counter("consumer.events")); diff != "" {
		t.Errorf("consumer.events (-want +got):\n%s", diff)
	}
	if got := store.entries[id]; got.ID != kept.ID || !got.deleted {
		t.Errorf("entry = %+v, want that of the later event", got)
	}
}

// Events of one note, each published when the one before is acknowledged, are
// told apart by what they meant, and the newest state stays.
func TestProjectorOutcomes(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		versions []int64 // a repeated one is the same event
		deleted  int64   // the version that deletes
		want     map[string]int64
		version  int64
	}{
		{"in order", []int64{1, 2, 3}, 0, map[string]int64{"applied": 3}, 3},
		{"twice", []int64{1, 1, 2, 1}, 0, map[string]int64{"applied": 2, "duplicate": 2}, 2},
		{"stale", []int64{1, 3, 2}, 0, map[string]int64{"applied": 1, "applied_after_gap": 1, "stale": 1}, 3},
		{"gap", []int64{1, 4, 5}, 0, map[string]int64{"applied": 2, "applied_after_gap": 1}, 5},
		{"late event after a delete", []int64{1, 3, 2}, 3, map[string]int64{"applied": 1, "applied_after_gap": 1, "stale": 1}, 3},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b, store, id := newBroker(t, localbroker.Resources{Schemaless: true}), &memStore{}, uuid.NewString()
			read, stop := b.start(consumer.Config{}, store)
			events := map[int64]*pubsub.Message{}
			for _, version := range test.versions {
				if events[version] == nil {
					typ := edited
					if version == test.deleted {
						typ = deleted
					}
					events[version] = message(noteEvent(id, version, typ))
				}
				b.publish(events[version])
				b.waitForAcks()
			}
			stop() // what is acknowledged is counted a moment later
			if diff := cmp.Diff(test.want, read.counter("consumer.events")); diff != "" {
				t.Errorf("consumer.events (-want +got):\n%s", diff)
			}
			if got := store.entry(id); got.Version != test.version || got.deleted != (test.deleted > 0) {
				t.Errorf("entry has version %d, deleted %t, want %d, %t", got.Version, got.deleted, test.version, test.deleted > 0)
			}
			applied := uint64(test.want["applied"] + test.want["applied_after_gap"])
			if got, _ := read.histogram("consumer.lag"); got != applied {
				t.Errorf("consumer.lag has %d values, want %d", got, applied)
			}
			if got, _ := read.histogram("consumer.message.duration"); got != uint64(len(test.versions)) {
				t.Errorf("consumer.message.duration has %d values, want %d", got, len(test.versions))
			}
		})
	}
}

// A message that cannot be decoded is quarantined whole, logged with its ids
// and without its payload, acknowledged, and does not block its key.
func TestProjectorQuarantinesUndecodable(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		spoil  func(*pubsub.Message)
		reason string
	}{
		{"broken bytes", func(m *pubsub.Message) { m.Data = []byte("secret\xff") }, "payload is no note"},
		{"malformed attribute", func(m *pubsub.Message) { m.Attributes[envelope.AttrVersion] = "one" }, `attribute version is "one"`},
		{"newer schema version", func(m *pubsub.Message) { m.Attributes[envelope.AttrSchemaVersion] = "2" }, "schema version 2 is newer"},
		{"no attributes", func(m *pubsub.Message) { m.Attributes = nil }, "attribute event_id is missing"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b, store, id := newBroker(t, localbroker.Resources{Schemaless: true}), &memStore{}, uuid.NewString()
			var logged lockedBuffer
			read, stop := b.startLogging(consumer.Config{}, store, slog.New(slog.NewTextHandler(&logged, nil)))
			bad := message(noteEvent(id, 1, written))
			eventID := bad.ID
			test.spoil(bad)
			if bad.Attributes == nil {
				eventID = `""`
			}
			messageID := b.publish(bad)[0]
			b.waitForAcks()
			b.publish(message(noteEvent(id, 2, edited)))
			b.waitForAcks()
			stop()

			got := store.quarantined()[messageID]
			want := envelope.Quarantined{
				MessageID: messageID, OrderingKey: id, Attributes: bad.Attributes, Payload: bad.Data,
				Reason: got.Reason, PublishTime: b.find(messageID).PublishTime,
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("quarantined (-want +got):\n%s", diff)
			}
			if !strings.Contains(got.Reason, test.reason) {
				t.Errorf("reason = %q, want it to say %q", got.Reason, test.reason)
			}
			if got := b.find(messageID); got.Nacks != 0 {
				t.Errorf("the message was nacked %d times, want never", got.Nacks)
			}
			if diff := cmp.Diff(map[string]int64{"quarantined": 1, "applied_after_gap": 1}, read.counter("consumer.events")); diff != "" {
				t.Errorf("consumer.events (-want +got):\n%s", diff)
			}
			ids := "event_id=" + eventID + " message_id=" + messageID + " ordering_key=" + id
			if !strings.Contains(logged.String(), ids) || strings.Contains(logged.String(), "secret") {
				t.Errorf("log = %s\nwant a line with %q, and no payload", logged.String(), ids)
			}
		})
	}
}

// An event of a type that this build does not know is applied for the state it
// carries, and counted.
func TestProjectorAppliesUnknownType(t *testing.T) {
	t.Parallel()
	b, store, id := newBroker(t, localbroker.Resources{Schemaless: true}), &memStore{}, uuid.NewString()
	read, _ := b.start(consumer.Config{}, store)
	m := message(noteEvent(id, 1, written))
	m.Attributes[envelope.AttrEventType] = "NoteFramed"
	b.publish(m)
	b.waitForAcks()
	if got := store.entry(id); got.Version != 1 {
		t.Errorf("version = %d, want 1", got.Version)
	}
	if got := read.counterByType("consumer.unknown_types")["note"]; got != 1 {
		t.Errorf("consumer.unknown_types = %d, want 1", got)
	}
}

// The database is unavailable for a time: the broker sees no nack and no second
// delivery, and everything is applied afterwards.
func TestProjectorHoldsMessagesDuringOutage(t *testing.T) {
	t.Parallel()
	b, store := newBroker(t, localbroker.Resources{Schemaless: true}), &memStore{}
	var away atomic.Bool
	away.Store(true)
	store.onProject = func(context.Context, []note) error {
		if away.Load() {
			return unavailable()
		}
		return nil
	}
	read, _ := b.start(consumer.Config{RetryMin: 10 * time.Millisecond, RetryMax: 100 * time.Millisecond}, store)
	b.publish(messages(20)...)
	time.Sleep(1500 * time.Millisecond)
	away.Store(false)
	b.waitForAcks()
	if got := len(store.versions()); got != 20 {
		t.Errorf("entries = %d, want 20", got)
	}
	for _, m := range b.server.Published() {
		if m.Nacks != 0 || m.Deliveries != 1 {
			t.Errorf("message %s was delivered %d times and nacked %d times, want 1 and 0", m.ID, m.Deliveries, m.Nacks)
		}
	}
	if got := read.counter("consumer.failures"); got["unavailable"] < 10 || len(got) != 1 {
		t.Errorf("consumer.failures = %v, want many unavailable and nothing else", got)
	}
	if got := store.quarantined(); len(got) != 0 {
		t.Errorf("quarantine = %v, want none", got)
	}
}
