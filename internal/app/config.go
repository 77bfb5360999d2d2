package app

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/port"
	"example.com/videocatalog/internal/telemetry"
)

// The roles that a process can have.
const (
	roleAPI       = "api"
	rolePublisher = "publisher"
	roleProjector = "projector"
)

// config has the settings that differ between deployments, from environment variables. An
// empty or absent variable means its default. All other settings are fields of the Config
// of a package, which configure sets.
type config struct {
	Roles    []string   `env:"ROLES" help:"what this process does: api, publisher, projector, and the roles of options; default: all of them"`
	Port     int        `env:"PORT" envDefault:"8080" help:"TCP port of gRPC, REST and health checks"`
	LogLevel slog.Level `env:"LOG_LEVEL" envDefault:"INFO" help:"DEBUG, INFO, WARN or ERROR"`

	Environment  string   `env:"ENVIRONMENT" help:"production or development; default: production on Cloud Run, by its K_SERVICE, CLOUD_RUN_JOB or CLOUD_RUN_WORKER_POOL, else development"`
	Auth         string   `env:"AUTH" help:"who checks callers: iam (Cloud Run's IAM, before they come here), off (nobody; not in production) or an option of the service, by its name; required by the role api"`
	AllowedHosts []string `env:"ALLOWED_HOSTS" help:"host names, separated by commas, by which ports without authentication are called besides localhost and IP addresses: PORT with AUTH=off and TELEMETRY_ADDR; *: any; default: none, and PORT with AUTH=off is open on 127.0.0.1 only"`

	DatabaseURL      string `env:"DATABASE_URL" help:"PostgreSQL, the command side; for migrate as the owner of the schemas; required"`
	ReadDatabaseURL  string `env:"READ_DATABASE_URL" help:"PostgreSQL, the query side; default: DATABASE_URL"`
	DatabaseMaxConns int32  `env:"DATABASE_MAX_CONNS" envDefault:"16" help:"connections per database URL; what the workers of this process's roles and 3 for everything else leave is for API calls"`

	PubSubProject  string `env:"PUBSUB_PROJECT" help:"Google Cloud project of topic and subscription; required by every role but api"`
	PubSubEndpoint string `env:"PUBSUB_ENDPOINT" help:"regional endpoint, such as europe-west1-pubsub.googleapis.com:443: publishers in one region keep the order; default: the global one"`

	CallerRate     int `env:"SERVER_CALLER_RATE" envDefault:"100" help:"calls per second and caller, unless AUTH=off; 0: any number"`
	TrustedProxies int `env:"SERVER_TRUSTED_PROXIES" envDefault:"-1" help:"proxies whose X-Forwarded-For tells where calls come from; 2 on Cloud Run behind a load balancer; -1: 1 on Cloud Run, else 0"`

	OutboxRetention time.Duration `env:"OUTBOX_RETENTION" envDefault:"168h" help:"how long events are kept after the day they happened; one that is still pending is published all the same"`
	InboxRetention  time.Duration `env:"CONSUMER_INBOX_RETENTION" envDefault:"768h" help:"how long event ids are remembered, and messages kept in quarantine; more than the topic or the subscription retains messages"`

	AuditRetention time.Duration `env:"AUDIT_RETENTION" envDefault:"8784h" help:"how long the audit of operators' actions is kept; at least 720h"`

	TelemetryAddr string `env:"TELEMETRY_ADDR" help:"TCP address of the private port, such as 127.0.0.1:9090: metrics for Prometheus, profiles; without authentication, so never a public one; default: none"`

	program  Program
	emulator string // PUBSUB_EMULATOR_HOST

	databaseWait time.Duration // how long to wait for the database at start
	outbox       outbox.Config
	consumer     consumer.Config
	port         port.Config
}

// configure sets the Config of each package. To change a default for this service, set its
// field here.
func (c *config) configure(variables map[string]string) error {
	c.databaseWait = 10 * time.Second
	c.outbox = outbox.Config{}
	c.consumer = consumer.Config{}
	c.port = port.Config{}
	if c.isOpen() {
		c.port.Hosts = c.hosts()
	}
	err := tune(c, variables)
	c.outbox, c.consumer, c.port = c.outbox.WithDefaults(), c.consumer.WithDefaults(), c.port.WithDefaults()
	c.consumer.Workers = max(c.consumer.Workers, len(subscriptions(c.program.Registrations(nil)))) // each has one for itself
	return err
}

const day = 24 * time.Hour

// closeTimeout is how long a finished process waits for clean-up that no longer matters.
// First it waits for requests to the broker, then as long again for connections to the
// database.
const closeTimeout = 500 * time.Millisecond

// readConfig reads the environment for a command. Its error lists every mistake by the name
// of the variable, and never shows a value, which may be a secret.
func (p Program) readConfig(command string, environ []string) (config, error) {
	variables := env.ToMap(environ)
	for name, value := range variables {
		if value == "" {
			delete(variables, name)
		}
	}
	cfg := config{program: p}
	var errs []error
	for _, settings := range p.structs(&cfg) {
		if err := env.ParseWithOptions(settings, env.Options{Environment: variables}); err != nil {
			errs = append(errs, parseErrors(settings, err)...)
		}
	}
	if len(cfg.Roles) == 0 {
		cfg.Roles = p.roles()
	}
	cfg.ReadDatabaseURL = cmp.Or(cfg.ReadDatabaseURL, cfg.DatabaseURL)
	cfg.emulator = variables["PUBSUB_EMULATOR_HOST"]
	// https://cloud.google.com/run/docs/container-contract#env-vars
	cfg.onCloudRun(cmp.Or(variables["K_SERVICE"], variables["CLOUD_RUN_JOB"], variables["CLOUD_RUN_WORKER_POOL"]) != "")
	if err := cfg.configure(variables); err != nil {
		errs = append(errs, err)
	}
	unread := errs
	for _, err := range cfg.check(command) {
		// A variable that could not be read has the zero value, and its other errors would
		// be misleading.
		if !slices.ContainsFunc(unread, func(u error) bool { return strings.Contains(err.Error(), firstWord(u)) }) {
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		return cfg, nil
	}
	lines := make([]string, len(errs))
	for i, err := range errs {
		lines[i] = "\n  - " + err.Error()
	}
	slices.Sort(lines)
	return config{}, fmt.Errorf("mistakes in the configuration: %d%s", len(lines), strings.Join(lines, ""))
}

// structs returns cfg, and the settings of the parts, which are empty.
func (p Program) structs(cfg *config) []any {
	all := []any{cfg}
	for _, part := range p.Parts {
		if part.Settings != nil {
			reflect.ValueOf(part.Settings).Elem().SetZero()
			all = append(all, part.Settings)
		}
	}
	return all
}

// firstWord returns the first word of an error, which in our errors is the name of the
// variable.
func firstWord(err error) string {
	name, _, _ := strings.Cut(err.Error(), " ")
	return name
}

// parseErrors turns the errors of the library about a struct into ours. The library's errors
// name Go fields and may show values.
func parseErrors(settings any, err error) []error {
	var aggregate env.AggregateError
	if !errors.As(err, &aggregate) {
		return []error{err}
	}
	var errs []error
	for _, err := range aggregate.Errors {
		var parse env.ParseError
		if !errors.As(err, &parse) {
			errs = append(errs, err)
			continue
		}
		name := parse.Name
		if field, ok := reflect.TypeOf(settings).Elem().FieldByName(parse.Name); ok {
			name = field.Tag.Get("env")
		}
		errs = append(errs, fmt.Errorf("%s must be a %s", name, kindName(parse.Type)))
	}
	return errs
}

func kindName(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return "duration such as 10s or 5m"
	case reflect.TypeFor[slog.Level]():
		return "level: DEBUG, INFO, WARN or ERROR"
	default:
		return "whole number"
	}
}

func (c config) has(role string) bool { return slices.Contains(c.Roles, role) }

// hasPartRole reports whether the process has a role of a part.
func (c config) hasPartRole() bool {
	return slices.ContainsFunc(c.program.Parts, func(p Part) bool { return c.has(p.Role) })
}

// missingParts returns a mistake for each part that a registration needs and the program does
// not have.
func (c config) missingParts() (errs []error) {
	for _, r := range c.program.Registrations(nil) {
		for name := range r.Parts {
			if !slices.ContainsFunc(c.program.Parts, func(p Part) bool { return p.Name == name }) {
				errs = append(errs, fmt.Errorf("the aggregate type %s needs the option %s: add it to cmd/server/parts.go", r.AggregateType, name))
			}
		}
	}
	return errs
}

// check returns the mistakes in each value and between values. Only serve and drain
// need Pub/Sub. serve needs only the settings of its roles.
func (c config) check(command string) []error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	roles := c.program.roles()
	for _, role := range c.Roles {
		if !slices.Contains(roles, role) {
			wrong("ROLES has %q: it may have %s", role, strings.Join(roles, ", "))
		}
	}
	if c.Port < 0 || c.Port > 65535 {
		wrong("PORT must be between 0 (any free one) and 65535")
	}
	errs = append(errs, c.checkDatabases()...)
	if c.emulator != "" && c.Environment == production {
		wrong("PUBSUB_EMULATOR_HOST must not be set in production: events would go there, without TLS and without credentials")
	}
	if c.PubSubProject == "" && command == "serve" && slices.ContainsFunc(c.Roles, func(role string) bool { return role != roleAPI }) {
		wrong("PUBSUB_PROJECT is required by every role but api")
	}
	if c.PubSubProject == "" && command == "drain" {
		wrong("PUBSUB_PROJECT is required by drain")
	}
	if c.DatabaseMaxConns <= 0 {
		wrong("DATABASE_MAX_CONNS must be more than 0")
	}
	for _, f := range []struct {
		name  string
		value time.Duration
		least time.Duration
	}{{"OUTBOX_RETENTION", c.OutboxRetention, day}, {"CONSUMER_INBOX_RETENTION", c.InboxRetention, day}, {"AUDIT_RETENTION", c.AuditRetention, 30 * day}} {
		if f.value < f.least {
			wrong("%s must be at least %dh", f.name, f.least/time.Hour)
		}
	}
	if command == "serve" {
		errs = append(errs, c.checkCallers()...)
	}
	for _, part := range c.program.Parts {
		if part.Check != nil {
			errs = append(errs, part.Check(c.process(command))...)
		}
	}
	errs = append(errs, c.missingParts()...)
	errs = append(errs, c.checkTelemetry()...)
	need := c.ownConnections()
	if c.has(roleAPI) {
		need++
	}
	if command == "serve" && c.DatabaseMaxConns < need {
		wrong("DATABASE_MAX_CONNS (%d) must be at least %d: one per worker of this process's roles, 3 for everything else, and for the role api one more", c.DatabaseMaxConns, need)
	}
	return errs
}

// checkTelemetry checks the address and the hosts of the private port.
func (c config) checkTelemetry() []error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if _, _, err := net.SplitHostPort(c.TelemetryAddr); err != nil && c.TelemetryAddr != "" {
		wrong("TELEMETRY_ADDR must be a host and a port, such as 127.0.0.1:9090")
	}
	for _, host := range c.AllowedHosts {
		if err := port.CheckHost(host); err != nil {
			wrong("ALLOWED_HOSTS: %w", err)
		}
	}
	return errs
}

// checkDatabases returns an error if DATABASE_URL is missing, and one per URL that is
// wrong.
func (c config) checkDatabases() []error {
	if c.DatabaseURL == "" {
		return []error{errors.New("DATABASE_URL is required")}
	}
	var errs []error
	if err := db.CheckURL(c.DatabaseURL); err != nil {
		errs = append(errs, fmt.Errorf("DATABASE_URL %w", err))
	}
	if err := db.CheckURL(c.ReadDatabaseURL); err != nil && c.ReadDatabaseURL != c.DatabaseURL {
		errs = append(errs, fmt.Errorf("READ_DATABASE_URL %w", err))
	}
	return errs
}

// callConnections returns how many connections to each database are for API calls.
func (c config) callConnections() int32 {
	if !c.has(roleAPI) {
		return 0
	}
	return c.DatabaseMaxConns - c.ownConnections()
}

// ownConnections returns how many connections to one database are for work other than API
// calls. That is one per worker of the loops, and three for the probe, the metrics and
// maintenance. If a table of the outbox is locked, these may need more for a while, and the
// process is then not ready.
func (c config) ownConnections() int32 {
	commands, queries := 0, 0
	if c.has(rolePublisher) {
		commands = c.outbox.Workers
	}
	if c.has(roleProjector) {
		queries = c.consumer.Workers
	}
	registered := c.program.Registrations(nil)
	for _, part := range c.program.Parts {
		if part.Subscriptions != nil && c.has(part.Role) {
			commands += commandWorkers(part.Subscriptions(registered, Backend{}))
		}
	}
	n := max(commands, queries)
	if c.ReadDatabaseURL == c.DatabaseURL {
		n = commands + queries
	}
	return int32(min(n, math.MaxInt16)) + 3
}

// inFlight returns how many ordering keys the passes of this process can have at most. Each
// pass has the keys of a batch, and of as many events that were set aside.
func (c config) inFlight() int { return 2 * c.outbox.Workers * c.outbox.Batch }

func (c config) telemetry() telemetry.Config {
	return telemetry.Config{Service: names.Service, Version: c.program.Version, Prometheus: c.TelemetryAddr != ""}
}
