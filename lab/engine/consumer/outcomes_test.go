package consumer_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"example.com/servicekit/localbroker"
	"example.com/videocatalog/internal/consumer"
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
