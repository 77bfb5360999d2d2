package app

import (
	"io/fs"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/transport"
)

// Registration is what one aggregate type adds to a service: cmd/server has a file for each. It is
// data. Its functions are called in processes that need their result.
type Registration struct {
	// AggregateType is its name in events.
	AggregateType string
	// Table is the table of its aggregates in the schema video_catalog, with their id as id. Empty: this service does not own them.
	Table string
	// Services makes the services of its API, in a process with the role api. Nil: it has none.
	Services func(Backend) ([]transport.Service, error)
	// Subscriptions have handlers that write to the query side.
	Subscriptions []Subscription
	// CommandSteps returns the steps that the maintenance of the command side runs for it. retention
	// is how long inboxes remember events. Nil: there are none.
	CommandSteps func(commands *pgxpool.Pool, retention time.Duration) []Step
	// Options has the values that options read, by the name of the option, which defines the type of its
	// value. The name of an option that the service does not have is an error.
	Options map[string]any
}

// Subscription is one subscription that this service consumes.
type Subscription struct {
	ID       string // in Pub/Sub
	Consumer string // its name in the inbox and the quarantine
	// Handlers makes its handlers.
	Handlers func(Backend) consumer.Handlers
	// QuerySteps returns the steps that the maintenance of the query side runs for it. Nil: there are none.
	QuerySteps func(pool *pgxpool.Pool, retention time.Duration) []Step
}

// Backend has what services and handlers use. The pools are never nil. Handlers of a projection
// may use QueryPool only, because their process may be unable to reach the other database.
type Backend struct {
	CommandPool, QueryPool *pgxpool.Pool
	Log                    *slog.Logger
	Wake                   func()           // call it after a commit of the command side
	Transport              transport.Config // the limits of the port that serves the services
}

// subscriptions returns the subscriptions that some roles consume. The handlers of the projector
// write to the query side, the handlers of options to the command side.
func (p Program) subscriptions(roles ...string) (all []Subscription) {
	if slices.Contains(roles, roleProjector) {
		for _, r := range p.Registrations {
			all = append(all, r.Subscriptions...)
		}
	}
	for _, option := range p.Options {
		if option.Subscriptions != nil && slices.Contains(roles, option.Role) {
			all = append(all, option.Subscriptions(p.Registrations)...)
		}
	}
	return all
}

// migrations returns the migrations of the options.
func (p Program) migrations() (all []fs.FS) {
	for _, option := range p.Options {
		if option.Migrations != nil {
			all = append(all, option.Migrations)
		}
	}
	return all
}
