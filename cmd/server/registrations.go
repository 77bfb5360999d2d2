package main

import (
	"cmp"
	"crypto/cipher"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/console" // only console
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/port"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/timer"
)

// registration is what one aggregate type adds to a process. A new type has a file like
// videos.go. make generate finds the function there by its signature, and adds it to
// registrations.
type registration struct {
	// aggregateType is its name in events.
	aggregateType string
	// services returns its services. It is also called with an empty backend, whose pools
	// are nil: it must not use them before a call. Nil: it has none.
	services func(backend) ([]port.Service, error)
	// subscriptions are those that it consumes. Their handlers write to the query side.
	subscriptions []subscription
	// reactions returns the subscriptions to whose events it reacts. Their handlers write to
	// the command side. Nil: there are none.
	reactions func(backend) []subscription
	// timers returns its timers. Nil: it has none.
	timers func(backend) timer.Timers
	// comparison compares its projection with the owner. Nil: nothing does.
	comparison func(commands, queries *pgxpool.Pool) admin.Projection
	// aggregates is how their states are published. The zero value: this service does not own
	// them.
	aggregates store.Aggregates
	// repair does the work that a replaced database of the query side needs at once. Nil:
	// there is none.
	repair step
	// only console: begin
	// console returns what the console shows of the type besides its events, from the pools
	// of both sides. Nil: nothing.
	console func(commands, queries *pgxpool.Pool) console.Type
	// only console: end
}

// backend is what handlers are made of.
type backend struct {
	commands, queries *pgxpool.Pool            // connections for API calls, to each side
	wake              func(envelope.Aggregate) // is called after a commit
	purged            func()                   // is called after a purge
	seal              cipher.AEAD              // encrypts page tokens
	metrics           metric.MeterProvider     // may be nil
}

// services returns the services of all registrations. Without a backend they have no
// handlers.
func services(registered []registration, b *backend) ([]port.Service, error) {
	var none backend
	var all []port.Service
	for _, r := range registered {
		if r.services == nil {
			continue
		}
		made, err := r.services(*cmp.Or(b, &none))
		if err != nil {
			return nil, err
		}
		all = append(all, made...)
	}
	if b == nil {
		for i := range all {
			all[i].Handler, all[i].Wait = nil, nil
		}
	}
	return all, nil
}

// methods returns the names of all methods that a caller can call, as
// package.Service/Method.
func methods() []string {
	all, err := services(registrations(config{}, nil), nil)
	if err != nil { // cannot happen without handlers
		return nil
	}
	descs := make([]*grpc.ServiceDesc, len(all))
	for i, s := range all {
		descs[i] = s.Desc
	}
	return port.Methods(descs...)
}
