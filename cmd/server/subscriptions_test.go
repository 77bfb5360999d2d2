package main

import (
	"slices"
	"testing"

	"example.com/videocatalog/internal/names"
)

// Every subscription of the service is one that internal/names has, so it is
// provisioned. Each has a consumer of its own.
func TestSubscriptionsAreInNames(t *testing.T) {
	t.Parallel()
	var known []string
	for _, topic := range names.Topics() {
		for _, consumer := range topic.Consumers {
			known = append(known, topic.Subscription(consumer))
		}
	}
	registered := registrations(config{}, nil)
	consumers := make(map[string]bool)
	for _, s := range append(subscriptions(registered), reactions(registered, backend{})...) {
		if consumers[s.consumer] {
			t.Errorf("two subscriptions have the consumer %s: inbox and quarantine would take their messages for each other's", s.consumer)
		}
		consumers[s.consumer] = true
		if !slices.Contains(known, s.id) {
			t.Errorf("subscription %s is not among %q of internal/names", s.id, known)
		}
	}
}
