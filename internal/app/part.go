package app

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/metric"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/auth"
	"example.com/videocatalog/internal/envelope"
)

// Part is an option of a service: a folder of options, whose line in cmd/server/parts.go adds
// it. All fields but Name may be zero.
type Part struct {
	// Name is the name of the folder.
	Name string
	// Settings points to a struct whose fields are settings, with the tags env, envDefault and
	// help. It is filled before everything that follows is called.
	Settings any
	// Check returns the mistakes in Settings. Each begins with the name of a setting and does
	// not show its value.
	Check func(Process) []error
	// NewChecker makes the check of callers, which AUTH selects by the name of the part.
	NewChecker func(*Service) (auth.Checker, error)
	// Role is one more value of ROLES. A process that has it uses both sides and Pub/Sub, and
	// consumes Subscriptions. Start sees by [Process.Roles] whether the process has it.
	Role string
	// Subscriptions returns the subscriptions of the part, whose handlers write to the command
	// side. Their messages in quarantine are replayed like all others. It is also called with an
	// empty Backend, whose pools are nil: then handlers are not called.
	Subscriptions func([]Registration, Backend) []Subscription
	// Start adds to a process that serves, before its port is opened.
	Start func(context.Context, *Service) error
	// Migrations has a folder migrations with the tables of the part. Their numbers are in a hundred
	// below 01000 that no other part has: see package db.
	Migrations fs.FS
	// Commands are more commands of the program, by their first word. Help has their lines for
	// the command help.
	Commands map[string]Command
	Help     string
}

// Command runs until it or ctx ends. It gets the arguments behind its name. Of the methods of
// the Service it may call Open and PubSub.
type Command func(ctx context.Context, s *Service, args []string, stdout io.Writer) error

// Process is what the settings of a part may depend on.
type Process struct {
	Command string          // serve, migrate, ...
	Auth    string          // the value of AUTH
	Roles   []string        // the value of ROLES
	Methods func() []string // names of all methods of the API, as package.Service/Method
	Hosts   []string        // by which a port that authenticates nobody may be called
}

// Service is what a part sees of the process, and adds to it.
type Service struct {
	Process
	Log *slog.Logger
	// Commands and Queries are the connections to the two sides that loops share. One is nil
	// if the process does not use that side, and in a command until Open.
	Commands, Queries *pgxpool.Pool
	Registered        []Registration           // a command has them from Open on
	Meter             metric.Meter             // nil: nothing measures
	Wake              func(envelope.Aggregate) // is called after a commit of the command side
	Retention         time.Duration            // CONSUMER_INBOX_RETENTION

	cfg      config
	instance *instance
	closers  []func() // of a command, run in reverse order
}

// Go runs a loop until the last request of the process is answered. An error ends the process.
func (s *Service) Go(loop func(context.Context) error) {
	s.instance.loops = append(s.instance.loops, loop)
}

// Task runs a loop until the stop of the process begins. An error ends the process.
func (s *Service) Task(loop func(context.Context) error) {
	s.instance.tasks = append(s.instance.tasks, loop)
}

// Live adds a check of liveness. While it returns an error, for example because a loop is stuck,
// the platform restarts the process.
func (s *Service) Live(check func() error) { s.instance.checks = append(s.instance.checks, check) }

// Maintain adds steps to the maintenance of the command side. They run only in processes that use
// that side.
func (s *Service) Maintain(steps ...Step) { s.instance.steps = append(s.instance.steps, steps...) }

// Backend returns what loops of the part make command sides of.
func (s *Service) Backend() Backend {
	return Backend{Commands: s.Commands, Wake: s.Wake, Purged: s.instance.wakeEraser}
}

// Wrap puts a middleware around all requests of the port, before they are checked. The last one
// that is added gets a request first.
func (s *Service) Wrap(middleware func(http.Handler) http.Handler) {
	s.instance.wrap = append(s.instance.wrap, middleware)
}

// PubSub returns the client of Pub/Sub that the process shares. The process closes it.
func (s *Service) PubSub(ctx context.Context) (*pubsub.Client, error) {
	if s.instance != nil {
		err := s.instance.startPubSub(ctx)
		return s.instance.client, err
	}
	if s.cfg.PubSubProject == "" {
		return nil, usageError(fmt.Errorf("PUBSUB_PROJECT is required by %s", s.Command))
	}
	client, err := openPubSub(ctx, s.cfg)
	if err == nil {
		s.closers = append(s.closers, func() { _ = client.Close() })
	}
	return client, err
}

// LimitConns limits the connections that Open opens to each side.
func (s *Service) LimitConns(n int32) { s.cfg.DatabaseMaxConns = min(s.cfg.DatabaseMaxConns, n) }

// Replayed returns the subscriptions whose messages Replay can apply.
func (s *Service) Replayed() []Subscription { return s.cfg.program.replayed(s.Registered, s.Commands) }

// Replay applies a message of the quarantine, as the process that received it would have.
func (s *Service) Replay(ctx context.Context, m admin.Quarantined) error {
	return replayer(s.Replayed())(ctx, m)
}

// Open connects a command to the sides that it uses, and checks their schema. The connections are
// closed when the command ends.
func (s *Service) Open(ctx context.Context, commands, queries bool) error {
	database, err := openDatabase(ctx, s.cfg, sides{commands: commands, queries: queries}, 0, nil)
	if err != nil {
		return err
	}
	s.closers = append(s.closers, database.close)
	s.take(database)
	s.Registered = s.cfg.program.Registrations(s.Queries)
	return nil
}

func (s *Service) take(database database) {
	s.Commands = database.commandPool()
	if database.queries != nil {
		s.Queries = database.queries.own
	}
}

// runCommand runs a command of a part.
func (c config) runCommand(ctx context.Context, name string, run Command, args []string, stdout io.Writer, log *slog.Logger) error {
	s := &Service{Process: c.process(name), Log: log, cfg: c}
	defer func() {
		for _, end := range slices.Backward(s.closers) {
			end()
		}
	}()
	return run(ctx, s, args, stdout)
}

// process returns what the parts may know of a process with this config.
func (c config) process(command string) Process {
	return Process{Command: command, Auth: c.Auth, Roles: c.Roles, Methods: c.program.Methods, Hosts: c.hosts()}
}

// startParts starts the parts of a process that serves.
func (i *instance) startParts(ctx context.Context) error {
	for _, part := range i.cfg.program.Parts {
		if part.Start != nil {
			if err := part.Start(ctx, i.service()); err != nil {
				return err
			}
		}
		if part.Subscriptions == nil || !i.cfg.has(part.Role) {
			continue
		}
		cfg, subscribed := i.cfg.consumer, part.Subscriptions(i.registered, i.service().Backend())
		cfg.Workers = commandWorkers(subscribed)
		if err := i.consume(ctx, cfg, subscribed); err != nil {
			return err
		}
	}
	return nil
}

// commandWorkers returns how many transactions on the command side the consumer of some
// subscriptions runs at the same time.
func commandWorkers(subscribed []Subscription) int {
	if len(subscribed) == 0 {
		return 0
	}
	return max(2, len(subscribed))
}

// subscriptions returns the subscriptions of the parts.
func (p Program) subscriptions(registered []Registration, made Backend) []Subscription {
	var all []Subscription
	for _, part := range p.Parts {
		if part.Subscriptions != nil {
			all = append(all, part.Subscriptions(registered, made)...)
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

// roles returns the values that ROLES may have.
func (p Program) roles() []string {
	all := []string{roleAPI, rolePublisher, roleProjector}
	for _, part := range p.Parts {
		if part.Role != "" {
			all = append(all, part.Role)
		}
	}
	return all
}

func (i *instance) service() *Service {
	s := &Service{
		Process: i.cfg.process("serve"), Log: i.log, Registered: i.registered, Meter: i.tel.Meter(scope), Wake: i.wake,
		Retention: i.cfg.InboxRetention, cfg: i.cfg, instance: i,
	}
	s.take(i.database)
	return s
}

// wrapped returns a handler behind the middlewares of the parts.
func (i *instance) wrapped(handler http.Handler) http.Handler {
	for _, middleware := range i.wrap {
		handler = middleware(handler)
	}
	return handler
}

// command returns a command of the parts, or nil.
func (p Program) command(name string) Command {
	for _, part := range p.Parts {
		if run := part.Commands[name]; run != nil {
			return run
		}
	}
	return nil
}

// checker returns the part whose check of callers a value of AUTH selects, or nil.
func (p Program) checker(auth string) *Part {
	for _, part := range p.Parts {
		if part.NewChecker != nil && part.Name == auth {
			return &part
		}
	}
	return nil
}

// Setting describes a setting.
type Setting struct{ Name, Default, Help string }

// SettingsOf returns the settings of a struct, by the tags of its fields. of points to it, or is
// nil.
func SettingsOf(of any) []Setting {
	if of == nil {
		return nil
	}
	var all []Setting
	for field := range reflect.TypeOf(of).Elem().Fields() {
		if field.IsExported() {
			all = append(all, Setting{field.Tag.Get("env"), field.Tag.Get("envDefault"), field.Tag.Get("help")})
		}
	}
	return all
}

// settings returns all settings of the program: its own in the order of config, then those of
// its parts.
func (p Program) settings() []Setting {
	all := SettingsOf(new(config))
	for _, part := range p.Parts {
		all = append(all, SettingsOf(part.Settings)...)
	}
	return all
}
