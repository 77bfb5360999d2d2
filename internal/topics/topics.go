// Package topics has the topics of the service for a Pub/Sub on this machine.
package topics

import (
	"fmt"
	"strings"

	"example.com/servicekit/localbroker"
	"example.com/videocatalog/api"
	"example.com/videocatalog/internal/names"
)

// All returns the topics of internal/names with their schemas and subscriptions. It includes
// foreign topics, which in production their owner creates.
func All() ([]localbroker.Topic, error) {
	var topics []localbroker.Topic
	for _, t := range names.Topics() {
		schema, err := api.Schemas.ReadFile(strings.TrimPrefix(t.Schema, "api/"))
		if err != nil {
			return nil, fmt.Errorf("schema of topic %s: %w", t.Name, err)
		}
		topic := localbroker.Topic{Name: t.Name, Schema: string(schema)}
		for _, consumer := range t.Consumers {
			topic.Subscriptions = append(topic.Subscriptions, t.Subscription(consumer))
		}
		topics = append(topics, topic)
	}
	return topics, nil
}
