package main

import (
	"cloud.google.com/go/pubsub/v2"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/store"
)

// subscription is one subscription that this service consumes.
type subscription struct {
	id       string // in Pub/Sub
	consumer string // its name in the inbox and the quarantine
	handlers consumer.Handlers
}

// subscriptions returns all subscriptions that this service consumes. Handlers are
// registered only here: serve and the quarantine commands both use this list.
func (c config) subscriptions(catalog *store.Catalog) []subscription {
	return []subscription{{
		id: names.TopicOf(event.AggregateVideo).Subscription("catalog"), consumer: c.ConsumerName,
		handlers: consumer.Handlers{
			event.AggregateVideo: consumer.Handle(event.Types, event.Decode, catalog.Project),
		},
	}}
}

// sources returns subscriptions in the form that a projector takes.
func sources(client *pubsub.Client, subscriptions []subscription) []consumer.Source {
	made := make([]consumer.Source, len(subscriptions))
	for i, s := range subscriptions {
		made[i] = consumer.Source{Subscriber: client.Subscriber(s.id), Consumer: s.consumer, Handlers: s.handlers}
	}
	return made
}
