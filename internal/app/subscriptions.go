package app

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/consumer"
)

// Subscription is one subscription that this service consumes.
type Subscription struct {
	ID       string // in Pub/Sub
	Consumer string // its name in the inbox and the quarantine
	Handlers consumer.Handlers
	// Prune deletes some of the tombstones that its handlers have written longer ago than
	// olderThan. Nil: there are none.
	Prune func(ctx context.Context, olderThan time.Duration, maxRows int) (int64, error)
}

// subscriptions returns all subscriptions that this service consumes.
func subscriptions(registered []Registration) []Subscription {
	var all []Subscription
	for _, r := range registered {
		all = append(all, r.Subscriptions...)
	}
	return all
}

// replayed returns the subscriptions whose messages can be applied again from the quarantine:
// with a pool of the command side also the subscriptions of the parts.
func (p Program) replayed(registered []Registration, commands *pgxpool.Pool) []Subscription {
	all := subscriptions(registered)
	if commands != nil {
		all = append(all, p.subscriptions(registered, Backend{Commands: commands})...)
	}
	return all
}

// checkConsumers returns an error if two subscriptions have one consumer name. Each would take
// the events of the other for duplicates.
func checkConsumers(subscribed []Subscription) error {
	names := make(map[string]bool)
	for _, s := range subscribed {
		if names[s.Consumer] {
			return fmt.Errorf("two subscriptions have the consumer name %q", s.Consumer)
		}
		names[s.Consumer] = true
	}
	return nil
}
