package outbox_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"example.com/servicekit/pubsublocal"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
)

// When all responses of a key have been read, even errors, the topic keeps
// nothing of the key. Otherwise a long outage would leave keys closed.
func TestTopicForgetsKeys(t *testing.T) {
	t.Parallel()
	topic, server := newTopic(t, 30*time.Second, 10)
	remove := server.Inject(pubsublocal.Fault{Method: "Publish", Code: codes.PermissionDenied})
	for outage := range 2 {
		failed := 0
		var receipts []outbox.Receipt
		for i := range 100 {
			receipts = append(receipts, topic.Publish(envelope.Message{AggregateID: fmt.Sprint(i % 50), Payload: []byte("x")}))
		}
		for _, r := range receipts {
			if err := r.Wait(context.WithoutCancel(t.Context())); err != nil {
				failed++
			}
		}
		if failed != 100*(1-outage) {
			t.Errorf("%d of 100 messages failed, want %d", failed, 100*(1-outage))
		}
		remove() // and all keys are open again
	}
}
