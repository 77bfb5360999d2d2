package outbox

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/localbroker"
	"example.com/videocatalog/pubsublocal"
)

// A process lives long, and so do outages: of a key whose answers have all been
// read nothing stays, however they ended.
func TestTopicForgetsKeys(t *testing.T) {
	t.Parallel()
	server, err := localbroker.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	client, err := server.Client(t.Context(), "p")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	if err := (localbroker.Resources{Schemaless: true}).Create(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	topic := NewTopic(client.Publisher(localbroker.Topic), 30*time.Second, 10)
	t.Cleanup(topic.Stop)
	remove := server.Inject(pubsublocal.Fault{Method: "Publish", Code: codes.PermissionDenied})
	for outage := range 2 {
		failed := 0
		var receipts []Receipt
		for i := range 100 {
			receipts = append(receipts, topic.Publish(envelope.Message{AggregateID: fmt.Sprint(i % 50), Payload: []byte("x")}))
		}
		for _, r := range receipts {
			if err := r.Wait(context.WithoutCancel(t.Context())); err != nil {
				failed++
			}
		}
		topic.mu.Lock()
		if left := len(topic.keys); left > 0 || failed != 100*(1-outage) {
			t.Errorf("%d of 100 messages failed, and %d keys are left, want %d and 0", failed, left, 100*(1-outage))
		}
		topic.mu.Unlock()
		remove() // and all keys are open again
	}
}
