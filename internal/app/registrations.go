package app

import (
	"io/fs"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/port"
)

// Registration is what one aggregate type adds to a service: cmd/server has a file for each. It is
// data. Its functions are called in processes that need their result.
type Registration struct {
	// AggregateType is its name in events.
	AggregateType string
	// Services makes the services of its API, in a process with the role api. Nil: it has none.
	Services func(Backend) ([]port.Service, error)
	// Subscriptions have handlers that write to the query side.
	Subscriptions []Subscription
	// Maintain returns the steps that the maintenance of the command side runs for it. retention is
	// how long inboxes remember events. Nil: there are none.
	Maintain func(commands *pgxpool.Pool, retention time.Duration) []Step
	// Parts has a value for an option, by the name of the part. The option defines the type of the
	// value. A part that the service does not have is an error.
	Parts map[string]any
}

// Subscription is one subscription that this service consumes.
type Subscription struct {
	ID       string // in Pub/Sub
	Consumer string // its name in the inbox and the quarantine
	// Handlers makes its handlers.
	Handlers func(Backend) consumer.Handlers
	// Maintain returns the steps that the maintenance of the query side runs for it. Nil: there are none.
	Maintain func(queries *pgxpool.Pool, retention time.Duration) []Step
}

// Backend has what services and handlers use. The pools are never nil. Handlers of a projection
// may use Queries only, because their process may be unable to reach the other database.
type Backend struct {
	Commands, Queries *pgxpool.Pool
	Log               *slog.Logger
	Wake              func(envelope.Aggregate) // call it after a commit of the command side
	Port              port.Config              // the limits of the port that serves the services
}

// projected returns the subscriptions of the query side.
func (p Program) projected() (all []Subscription) {
	for _, r := range p.Registrations {
		all = append(all, r.Subscriptions...)
	}
	return all
}

// subscriptions returns the subscriptions of the query side, and of the parts, which write to the
// command side.
func (p Program) subscriptions() []Subscription {
	all := p.projected()
	for _, part := range p.Parts {
		if part.Subscriptions != nil {
			all = append(all, part.Subscriptions(p.Registrations)...)
		}
	}
	return all
}

// migrations returns the migrations of the parts.
func (p Program) migrations() (all []fs.FS) {
	for _, part := range p.Parts {
		if part.Migrations != nil {
			all = append(all, part.Migrations)
		}
	}
	return all
}
