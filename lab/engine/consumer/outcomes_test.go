package consumer_test

import (
	"testing"

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
