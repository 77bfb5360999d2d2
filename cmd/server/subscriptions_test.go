package main

import (
	"slices"
	"testing"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/pg/pgtest"
)

// The table of each registration exists, so the console finds its aggregates.
func TestTablesAreInTheSchema(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 1)
	for _, r := range registrations() {
		if r.Table != "" {
			pgtest.Execute(t, pool, "SELECT id FROM video_catalog."+r.Table)
		}
	}
}

// Every subscription of the service is one that internal/names has, so it is provisioned.
func TestSubscriptionsAreInNames(t *testing.T) {
	t.Parallel()
	var known []string
	for _, topic := range names.Topics() {
		for _, consumer := range topic.Consumers {
			known = append(known, topic.Subscription(consumer))
		}
	}
	var subscribed []app.Subscription
	for _, r := range registrations() {
		subscribed = append(subscribed, r.Subscriptions...)
	}
	for _, option := range options() {
		if option.Subscriptions != nil {
			subscribed = append(subscribed, option.Subscriptions(registrations())...)
		}
	}
	for _, s := range subscribed {
		if !slices.Contains(known, s.ID) {
			t.Errorf("subscription %s is not among %q of internal/names", s.ID, known)
		}
	}
}
