package main

import (
	"slices"
	"testing"

	"example.com/videocatalog/internal/names"
)

// Every subscription of the service is one that internal/names has, so it is
// provisioned.
func TestSubscriptionsAreInNames(t *testing.T) {
	t.Parallel()
	var known []string
	for _, topic := range names.Topics() {
		for _, consumer := range topic.Consumers {
			known = append(known, topic.Subscription(consumer))
		}
	}
	for _, s := range subscriptions(registrations(config{}, nil)) {
		if !slices.Contains(known, s.id) {
			t.Errorf("subscription %s is not among %q of internal/names", s.id, known)
		}
	}
}
