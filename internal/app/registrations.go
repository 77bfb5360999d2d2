package app

import (
	"cmp"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/port"
	"example.com/videocatalog/internal/store"
)

// Registration is what one aggregate type adds to a process: see cmd/server/videos.go.
type Registration struct {
	// AggregateType is its name in events.
	AggregateType string
	// Services returns its services. It is also called with an empty Backend, whose pools
	// are nil: it must not use them before a call. Nil: it has none.
	Services func(Backend) ([]port.Service, error)
	// Subscriptions are those that it consumes. Their handlers write to the query side.
	Subscriptions []Subscription
	// Maintain returns the steps that the maintenance of the command side runs for it, at
	// most PruneRows rows at a time. keep is how long tombstones stay. Nil: there are none.
	Maintain func(events *store.Outbox, keep time.Duration) []Step
	// Parts is what it has for options, by the name of the part. Each option says which type its
	// value has. A part that the service does not have is an error.
	Parts map[string]any
}

// Backend is what handlers are made of.
type Backend struct {
	Commands, Queries *pgxpool.Pool            // connections for API calls, to each side
	Wake              func(envelope.Aggregate) // is called after a commit
	Purged            func()                   // is called after a purge
	Port              port.Config              // the limits of the port that serves the handlers
}

// services returns the services of all registrations. Without a backend they have no
// handlers.
func services(registered []Registration, b *Backend) ([]port.Service, error) {
	var none Backend
	var all []port.Service
	for _, r := range registered {
		if r.Services == nil {
			continue
		}
		made, err := r.Services(*cmp.Or(b, &none))
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

// Methods returns the names of all methods that a caller can call, as
// package.Service/Method.
func (p Program) Methods() []string {
	all, err := services(p.Registrations(nil), nil)
	if err != nil { // cannot happen without handlers
		return nil
	}
	descs := make([]*grpc.ServiceDesc, len(all))
	for i, s := range all {
		descs[i] = s.Desc
	}
	return port.Methods(descs...)
}
