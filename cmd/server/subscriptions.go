package main

import (
	"cloud.google.com/go/pubsub/v2"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/store"
)

// subscription is one that this service consumes.
type subscription struct {
	id       string // in Pub/Sub
	consumer string // the name that the inbox and the quarantine have for it
	handlers consumer.Handlers
}

// subscriptions returns all that this service consumes. This is the only place
// where a handler is registered: serve and the commands on the quarantine use it.
func (c config) subscriptions(catalog *store.Catalog) []subscription {
	return []subscription{{
		id: names.TopicOf(event.AggregateVideo).Subscription("catalog"), consumer: c.ConsumerName,
		handlers: consumer.Handlers{
			event.AggregateVideo: consumer.Handle(event.Types, event.Decode, catalog.Project),
		},
	}}
}

// sources returns subscriptions as a projector takes them.
func sources(client *pubsub.Client, subscriptions []subscription) []consumer.Source {
	made := make([]consumer.Source, len(subscriptions))
	for i, s := range subscriptions {
		made[i] = consumer.Source{Subscriber: client.Subscriber(s.id), Consumer: s.consumer, Handlers: s.handlers}
	}
	return made
}
