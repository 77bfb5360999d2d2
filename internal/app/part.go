package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"golang.org/x/sync/errgroup"

	"example.com/videocatalog/internal/auth"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/telemetry"
)

// Part is an option of a service: a folder of options, whose line in cmd/server/parts.go adds
// it. All fields but Name may be zero.
type Part struct {
	// Name is the name of the folder.
	Name string
	// Settings points to a struct of settings, with the tags env, envDefault and help. It is
	// filled before anything else is called.
	Settings any
	// Check returns the mistakes in Settings for a command and a value of AUTH. Each begins with
	// the name of a setting and does not show its value.
	Check func(command, auth string) []error
	// NewChecker makes the check of callers, which AUTH selects by the name of the part.
	// methods are the names of all methods of the API, as package.Service/Method.
	NewChecker func(s *Service, methods []string) (auth.Checker, error)
	// Role is one more value of ROLES. A process that has it uses both sides, and consumes
	// Subscriptions.
	Role string
	// Subscriptions returns the subscriptions of the part, whose handlers write to the command
	// side.
	Subscriptions func([]Registration) []Subscription
	// Start starts the part in a process that serves, before the port is opened.
	Start func(context.Context, *Service) error
	// Migrations has a folder migrations with the tables of the part. Each part has a hundred numbers
	// of its own, between 00100 and 00999: see package db.
	Migrations fs.FS
	// Commands are the commands of the part. The key is the first argument, such as "seek".
	Commands map[string]Command
	Help     string // the lines about them that `server help` prints
}

// Command ends early if ctx ends. args are the arguments after its name. It must not call Go,
// Maintain or Wrap of Service, which are for a process that serves.
type Command func(ctx context.Context, s *Service, args []string, stdout io.Writer) error

// Service is one run of a command, as parts see it and add to it.
type Service struct {
	Log     *slog.Logger
	Command string   // serve, migrate, ...
	Roles   []string // the value of ROLES
	Hosts   []string // by which a port that authenticates nobody may be called
	// Commands and Queries are the pools of the two sides, which the loops share. A pool is nil
	// if the process does not use that side, and in a command until Open.
	Commands, Queries *pgxpool.Pool
	Registered        []Registration
	Meter             metric.Meter  // measures nothing if metrics are off
	Retention         time.Duration // CONSUMER_INBOX_RETENTION

	cfg      config
	tel      *telemetry.Telemetry
	pools    map[string]*pgxpool.Pool // by name
	commands side
	queries  side
	client   *pubsub.Client           // see PubSub
	wake     func(envelope.Aggregate) // of the publisher of this process, if it has one
	group    *errgroup.Group          // nil in other commands than serve
	loops    context.Context          // of Go
	checks   []func() error           // of liveness
	wrap     func(http.Handler) http.Handler
	steps    []Step
	closers  []func() // run in reverse order
}

func newService(command string, cfg config, log *slog.Logger) *Service {
	return &Service{
		Log: log, Command: command, Roles: cfg.Roles, Hosts: cfg.hosts(), Registered: cfg.program.Registrations, Meter: noop.Meter{}, Retention: cfg.InboxRetention,
		cfg: cfg, tel: new(telemetry.Telemetry), wake: func(envelope.Aggregate) {}, wrap: func(h http.Handler) http.Handler { return h },
	}
}

func (s *Service) close() {
	for _, end := range slices.Backward(s.closers) {
		end()
	}
}

// Go runs a loop until the last response of the process is sent. An error ends the process.
// If stuck returns an error, the platform restarts the process. stuck may be nil.
func (s *Service) Go(name string, run func(context.Context) error, stuck func() error) {
	if stuck != nil {
		s.checks = append(s.checks, stuck)
	}
	s.group.Go(func() error {
		if err := run(s.loops); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
}

// stuck is the liveness check: it returns an error that names every stuck loop.
func (s *Service) stuck() error {
	var errs []error
	for _, check := range s.checks {
		errs = append(errs, check())
	}
	return errors.Join(errs...)
}

// Maintain adds steps to the maintenance of the command side, in processes that use it.
func (s *Service) Maintain(steps ...Step) { s.steps = append(s.steps, steps...) }

// Wrap puts a middleware around all requests of the port, before they are checked. The middleware
// that is added last gets a request first.
func (s *Service) Wrap(middleware func(http.Handler) http.Handler) {
	inner := s.wrap
	s.wrap = func(handler http.Handler) http.Handler { return middleware(inner(handler)) }
}

// Backend returns the pools and the wake-up for the loops of the part. Its Port is zero.
func (s *Service) Backend() Backend {
	return Backend{Commands: s.commands.own, Queries: s.queries.own, Log: s.Log, Wake: s.wake}
}

// LimitConns limits the connections to each side. Call it before Open.
func (s *Service) LimitConns(n uint16) { s.cfg.DatabaseMaxConns = min(s.cfg.DatabaseMaxConns, n) }

// Replayed returns the subscriptions whose messages Replay can apply.
func (s *Service) Replayed() []Subscription {
	return s.cfg.program.subscriptions()
}

// Replay applies a message of the quarantine, as the process that received it would have.
func (s *Service) Replay(ctx context.Context, m pg.Quarantined) error {
	for _, subscribed := range s.Replayed() {
		if subscribed.Consumer == m.Consumer {
			return subscribed.Handlers(s.Backend()).Replay(ctx, m.Consumer, m.Attributes, m.Payload)
		}
	}
	return fmt.Errorf("this build has no subscription of the consumer %q", m.Consumer)
}
