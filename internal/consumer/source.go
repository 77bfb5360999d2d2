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

// Source is a subscription and the handlers of its messages.
type Source struct {
	// Subscriber receives the messages. New sets the ReceiveSettings of a *pubsub.Subscriber.
	Subscriber Subscription
	// Consumer is the name of this source in the inbox and the quarantine; no other source
	// may have it. Under a new name every event is new.
	Consumer string
	// Handlers has a handler per aggregate type. A message of any other type is
	// acknowledged.
	Handlers Handlers
}

// Subscription is the part of a *pubsub.Subscriber that a projector uses.
type Subscription interface {
	// Receive calls f for each message, concurrently, until ctx ends. It returns when all calls
	// have.
	Receive(ctx context.Context, f func(context.Context, *pubsub.Message)) error
	// String returns the name, for logs and spans.
	String() string
}

// source is a Source while the projector runs.
type source struct {
	Subscription
	consumer  string
	routes    map[string]*route // by aggregate type
	other     *route            // for every other aggregate type
	receiving *heartbeat.Loop   // rests while the client pulls
	queue     chan *delivery    // from the callbacks to the collector
	batches   chan []*delivery  // from the collector to the worker of this source
}

// route is the way of the messages of one source and one aggregate type. Messages of one
// route share transactions.
type route struct {
	consumer string
	handler  Handler // empty in the route of other types
	labels   labels
}

func newSource(s Source) *source {
	made := &source{
		Subscription: s.Subscriber, consumer: s.Consumer, routes: make(map[string]*route), other: &route{consumer: s.Consumer, labels: newLabels("other")},
		receiving: heartbeat.New("consumer: receiving from "+s.Subscriber.String(), receiveRetryMax),
		queue:     make(chan *delivery), batches: make(chan []*delivery),
	}
	for aggregateType, handler := range s.Handlers {
		made.routes[aggregateType] = &route{consumer: s.Consumer, handler: handler, labels: newLabels(aggregateType)}
	}
	return made
}

// checkSources returns an error for each consumer name that is missing or that two sources
// share, and one if there are fewer workers than sources. With a shared name, the events of
// one source would be duplicates to the other.
func checkSources(sources []*source, workers int) error {
	seen := make(map[string]bool)
	var errs []error
	if workers < len(sources) {
		errs = append(errs, fmt.Errorf("there are %d workers for %d subscriptions: set Workers to at least that number", workers, len(sources)))
	}
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

// unhandled remembers when each aggregate type without a handler was logged. It is safe for
// concurrent use.
type unhandled struct {
	mu     sync.Mutex
	logged map[string]time.Time // guarded by mu: when an aggregate type was logged
}

const (
	// unhandledInterval is the shortest time between two log lines about one aggregate
	// type.
	unhandledInterval = time.Minute
	// unhandledTypes limits how many such types are logged in that time, because senders
	// choose their names.
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
