package consumer

import (
	"context"
	"time"

	"cloud.google.com/go/pubsub/v2"
)

// pubSub is a subscription of Pub/Sub.
type pubSub struct{ *pubsub.Subscriber }

// PubSub returns a subscription of Pub/Sub, and sets its ReceiveSettings. It may hold a share of the
// messages in hand of the process, which has that many subscriptions.
func PubSub(subscriber *pubsub.Subscriber, subscriptions int) Source {
	subscriber.ReceiveSettings = pubsub.ReceiveSettings{
		// If an outage of the database lasts longer, healthy messages count as failed
		// deliveries. Pub/Sub keeps messages for 7 days by default.
		MaxExtension: 7 * 24 * time.Hour,
		// By default, the client derives the time of a lease from how long earlier messages
		// took. After an outage of the database that would be ten minutes, and the messages
		// of a crashed instance would wait that long.
		MaxDurationPerAckExtension: time.Minute,
		// The limits of the messages in hand. As the client sends acks every 100 ms, at most
		// ten times as many messages come per second. Two batches keep a worker busy.
		MaxOutstandingMessages: max(200, 4000/subscriptions),
		MaxOutstandingBytes:    64 << 20 / subscriptions, // a larger message comes alone
		// No timeout: with one, the client (v2.8.1) breaks the stream as soon as it is
		// stopped. That ends the goroutine that sends acks, so messages committed during
		// the stop would never be acknowledged. Without one, the client waits for the
		// calls and sends their acks. Run still ends in time: every call returns within
		// StopTimeout, and Run does not wait longer for the client.
		ShutdownOptions: &pubsub.ShutdownOptions{Timeout: -1, Behavior: pubsub.ShutdownBehaviorWaitForProcessing},
	}
	return pubSub{subscriber}
}

// Receive implements Source. The client runs the callbacks of a key one after the other, and
// reconnects by itself. It returns an error if the broker refuses, for example because the
// subscription does not exist.
func (s pubSub) Receive(ctx context.Context, handle func(context.Context, Message) bool) error {
	return s.Subscriber.Receive(ctx, func(received context.Context, m *pubsub.Message) {
		// The client continues with the next message of a key after a nack. So a nack comes only when
		// receiving has ended, and then all messages that follow are nacked, too.
		over := ctx.Err() != nil || received.Err() != nil
		if !over && handle(received, Message{ID: m.ID, Key: m.OrderingKey, Attributes: m.Attributes, Data: m.Data, PublishTime: m.PublishTime}) {
			m.Ack()
		} else {
			m.Nack()
		}
	})
}
