package outbox

import (
	"context"
	"fmt"

	"example.com/videocatalog/internal/envelope"
)

// Topics is a Broker that publishes a message to the topic of its aggregate
// type. Several types may share a topic. Do not change it while it is in use.
type Topics map[string]*Topic

// Publish implements Broker. It refuses a message whose aggregate type has no topic. The
// event then blocks its aggregate only, and is parked after Config.MaxAttempts.
func (t Topics) Publish(m envelope.Message) Receipt {
	topic := t[m.AggregateType]
	if topic == nil {
		return noTopic(m.AggregateType)
	}
	return topic.Publish(m)
}

// Stop stops every topic.
func (t Topics) Stop() {
	stopped := make(map[*Topic]bool)
	for _, topic := range t {
		if !stopped[topic] {
			topic.Stop()
		}
		stopped[topic] = true
	}
}

// noTopic is the receipt of a message of an aggregate type without a topic.
type noTopic string

func (aggregateType noTopic) Wait(context.Context) error {
	return &RefusedError{fmt.Errorf("no topic has the aggregate type %q", string(aggregateType))}
}
