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
	"golang.org/x/sync/semaphore"

	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/telemetry"
)

// Option is an option of a service: a folder of options, whose line in cmd/server/options.go adds
// it. All fields but Name may be zero.
type Option struct {
	// Name is the name of the folder. Its last word is the value of AUTH or BROKER that selects the option.
	Name string
	// Settings points to a struct of settings, with the tags env, envDefault and help. It is
	// filled before anything else is called.
	Settings any
	// Check returns the mistakes in Settings for a run of the program. Each begins with the name of
	// a setting and does not show its value.
	Check      func(Selection) []error
	NewChecker NewChecker // makes the check of callers that AUTH selects // only oidc
	Tenants    *Tenants   // separates API calls // only tenancy
	NewStore   NewStore   // makes what the publisher claims from // only wal
	// NewBroker makes the broker that BROKER selects.
	NewBroker func(context.Context, *Process) (Broker, error)
	// Role is one more value of ROLES. A process that has it uses both sides, and consumes
	// Subscriptions.
	Role string
	// Subscriptions returns the subscriptions of the option, whose handlers write to the command
	// side.
	Subscriptions func([]Registration) []Subscription
	// Start starts the option in a process that serves, before the port is opened.
	Start func(context.Context, *Process) error
	// Migrations has a folder migrations with the tables of the option. Each option has a hundred numbers
	// of its own, between 00100 and 00999: see package db.
	Migrations fs.FS
	// Subcommands are the subcommands of the option, by name, such as "seek".
	Subcommands map[string]Subcommand
	Help        string // the lines about them that `server help` prints
}

// Selection is what a run of the program is for: its subcommand, and the values of AUTH and BROKER.
type Selection struct{ Subcommand, Auth, Broker string }

// Subcommand ends early if ctx ends. args are the arguments after its name. It must not call Go,
// AddCommandSteps or Wrap of Process, which are for a process that serves.
type Subcommand func(ctx context.Context, p *Process, args []string, stdout io.Writer) error

// Process is one run of a subcommand, as options see it and add to it.
type Process struct {
	Selection

	Log    *slog.Logger
	Roles  []string // the value of ROLES
	Hosts  []string // by which a port that authenticates nobody may be called
	Limits Limits   // with the defaults
	// The pools of the two sides, which the loops share. A pool is nil until its side is opened.
	// A process that serves has opened the sides of its roles.
	CommandPool, QueryPool *pgxpool.Pool
	Registered             []Registration
	Permits                *semaphore.Weighted // of CommandPool: a loop of an option takes one for each transaction
	Meter                  metric.Meter        // measures nothing if metrics are off
	Retention              time.Duration       // CONSUMER_INBOX_RETENTION

	cfg          config
	tel          *telemetry.Telemetry
	pools        map[string]*pgxpool.Pool // by name
	commandSide  side
	querySide    side
	client       *pubsub.Client  // see PubSub
	broker       Broker          // see openBroker
	wake         func()          // of the publisher of this process, if it has one
	group        *errgroup.Group // nil in other subcommands than serve
	loops        context.Context // of Go
	checks       []func() error  // of liveness
	wrap         func(http.Handler) http.Handler
	commandSteps []Step   // see AddCommandSteps
	closers      []func() // run in reverse order
}

func newProcess(subcommand string, cfg config, log *slog.Logger) *Process {
	return &Process{
		Selection: Selection{subcommand, cfg.Auth, cfg.Broker}, Log: log, Roles: cfg.Roles, Hosts: cfg.hosts(), Limits: cfg.limits,
		Registered: cfg.program.Registrations, Meter: noop.Meter{}, Retention: cfg.InboxRetention,
		cfg: cfg, tel: new(telemetry.Telemetry), wake: func() {}, wrap: func(h http.Handler) http.Handler { return h },
	}
}

func (p *Process) close() {
	for _, end := range slices.Backward(p.closers) {
		end()
	}
}

// Go runs a loop until the last response of the process is sent. An error ends the process.
// If stuck returns an error, the platform restarts the process. stuck may be nil.
func (p *Process) Go(name string, run func(context.Context) error, stuck func() error) {
	if stuck != nil {
		p.checks = append(p.checks, stuck)
	}
	p.group.Go(func() error {
		if err := run(p.loops); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
}

// stuck is the liveness check: it returns an error that names every stuck loop.
func (p *Process) stuck() error {
	return errors.Join(pg.MapSlice(p.checks, func(check func() error) error { return check() })...)
}

// AddCommandSteps adds steps to the maintenance of the command side, in processes that use it.
func (p *Process) AddCommandSteps(steps ...Step) { p.commandSteps = append(p.commandSteps, steps...) }

// Wrap puts a middleware around all requests of the port, before they are checked. The middleware
// that is added last gets a request first.
func (p *Process) Wrap(middleware func(http.Handler) http.Handler) {
	inner := p.wrap
	p.wrap = func(handler http.Handler) http.Handler { return middleware(inner(handler)) }
}

// Backend returns the pools and the wake-up for the loops of the option. Its Transport is zero.
func (p *Process) Backend() Backend {
	return Backend{CommandPool: p.commandSide.own, QueryPool: p.querySide.own, Log: p.Log, Wake: p.wake}
}

// Replayed returns the subscriptions whose messages Replay can apply.
func (p *Process) Replayed() []Subscription {
	return p.cfg.program.subscriptions(p.cfg.program.roles()...)
}

// Replay applies a message of the quarantine, as the process that received it would have.
func (p *Process) Replay(ctx context.Context, m pg.Quarantined) error {
	for _, subscribed := range p.Replayed() {
		if subscribed.Consumer == m.Consumer {
			return subscribed.Handlers(p.Backend()).Replay(ctx, m.Consumer, m.Attributes, m.Payload)
		}
	}
	return fmt.Errorf("this build has no subscription of the consumer %q", m.Consumer)
}
