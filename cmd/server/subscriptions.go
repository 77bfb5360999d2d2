package main

import (
	"context"
	"time"

	"cloud.google.com/go/pubsub/v2"

	"example.com/videocatalog/internal/consumer"
)

// subscription is one subscription that this service consumes.
type subscription struct {
	id       string // in Pub/Sub
	consumer string // its name in the inbox and the quarantine
	handlers consumer.Handlers
	// prune deletes some of the tombstones that its handlers have written longer ago than
	// olderThan. Nil: there are none.
	prune func(ctx context.Context, olderThan time.Duration, maxRows int) (int64, error)
}

// subscriptions returns all subscriptions that this service consumes.
func subscriptions(registered []registration) []subscription {
	var all []subscription
	for _, r := range registered {
		all = append(all, r.subscriptions...)
	}
	return all
}

// sources returns subscriptions in the form that a projector takes.
func sources(client *pubsub.Client, subscriptions []subscription) []consumer.Source {
	made := make([]consumer.Source, len(subscriptions))
	for i, s := range subscriptions {
		made[i] = consumer.Source{Subscriber: client.Subscriber(s.id), Consumer: s.consumer, Handlers: s.handlers}
	}
	return made
}
