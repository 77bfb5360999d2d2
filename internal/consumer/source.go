package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2"

	"example.com/videocatalog/internal/telemetry/heartbeat"
)

// Source is a subscription, and what becomes of its messages.
type Source struct {
	// Subscriber receives the messages. New sets its ReceiveSettings.
	Subscriber *pubsub.Subscriber
	// Consumer is the name under which inbox and quarantine remember the messages
	// of this source, and of no other. Under a new name every event is new: change
	// it for a rebuild by seek.
	Consumer string
	// Handlers by aggregate type. A message of any other type is acknowledged.
	Handlers Handlers
}

// subscription is the part of a *pubsub.Subscriber that a projector uses.
type subscription interface {
	Receive(ctx context.Context, f func(context.Context, *pubsub.Message)) error
	String() string
}

// source is a Source at work.
type source struct {
	subscription
	consumer  string
	routes    map[string]*route // by aggregate type
	other     *route            // of every other aggregate type
	receiving *heartbeat.Loop   // rests while the client pulls
}

// route is where the messages of one aggregate type of one source go. Those of
// one route share transactions.
type route struct {
	consumer string
	handler  Handler // none in the route of other types
	labels   labels
}

func newSource(s subscription, consumer string, handlers Handlers) *source {
	made := &source{
		subscription: s, consumer: consumer, routes: make(map[string]*route), other: &route{consumer: consumer, labels: newLabels("other")},
		receiving: heartbeat.New("consumer: receiving from "+s.String(), receiveRetryMax),
	}
	for aggregateType, handler := range handlers {
		made.routes[aggregateType] = &route{consumer: consumer, handler: handler, labels: newLabels(aggregateType)}
	}
	return made
}

// checkSources refuses names that two sources share: the events of one would be
// duplicates to the other.
func checkSources(sources []*source) error {
	seen := make(map[string]bool)
	var errs []error
	for _, s := range sources {
		if s.consumer == "" {
			errs = append(errs, fmt.Errorf("subscription %s has no consumer name", s))
		} else if seen[s.consumer] {
			errs = append(errs, fmt.Errorf("subscription %s has the consumer name %q of another", s, s.consumer))
		}
		seen[s.consumer] = true
	}
	return errors.Join(errs...)
}

// unhandled remembers of which aggregate types without a handler the log was
// told. Safe for concurrent use.
type unhandled struct {
	mu     sync.Mutex
	logged map[string]time.Time // guarded by mu: when, by aggregate type
}

const (
	// unhandledInterval is how often the log has one aggregate type without a handler.
	unhandledInterval = time.Minute
	// unhandledTypes bounds how many such types the log has in that time: their names
	// come from outside.
	unhandledTypes = 100
)

// due reports whether to log an aggregate type now.
func (u *unhandled) due(aggregateType string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(u.logged, func(_ string, at time.Time) bool { return now.Sub(at) >= unhandledInterval })
	if _, recent := u.logged[aggregateType]; recent || len(u.logged) == unhandledTypes {
		return false
	}
	u.logged[aggregateType] = now
	return true
}
