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
	"strconv"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"

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

// The values of AUTH, besides the names of options: who checks callers.
const (
	authOff = "off"
	authIAM = "iam"
)

// Config is what differs between services, and not between deployments. A zero field means
// its default.
type Config struct {
	DatabaseWait time.Duration // how long a start waits for the database; default: 10 s
	Outbox       outbox.Config
	Consumer     consumer.Config
	Port         port.Config
}

// config has the settings that differ between deployments, from environment variables. An
// empty or absent variable means its default.
type config struct {
	Roles    []string   `env:"ROLES" help:"what this process does: api, publisher, projector, and the roles of options; default: all of them"`
	Port     int        `env:"PORT" envDefault:"8080" help:"TCP port of gRPC, REST and health checks"`
	LogLevel slog.Level `env:"LOG_LEVEL" envDefault:"INFO" help:"DEBUG, INFO, WARN or ERROR"`

	Auth         string   `env:"AUTH" help:"who checks callers: iam (Cloud Run's IAM, before they come here), off (nobody; not on Cloud Run) or an option of the service, by its name; required by the role api"`
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

	TelemetryAddr   string  `env:"TELEMETRY_ADDR" help:"TCP address of the private port, such as 127.0.0.1:9090: metrics for Prometheus, profiles, the backlog, the level of the log; without authentication, so never a public one; default: none"`
	TracesEndpoint  string  `env:"TELEMETRY_TRACES_ENDPOINT" help:"where traces are sent by OTLP over gRPC, such as https://telemetry.googleapis.com or http://localhost:4317; default: there are none"`
	TraceRatio      float64 `env:"TELEMETRY_TRACE_RATIO" envDefault:"0.01" help:"part of the traces that is recorded, from 0 to 1, unless the caller has decided"`
	MetricsEndpoint string  `env:"TELEMETRY_METRICS_ENDPOINT" help:"where metrics are sent by OTLP over gRPC; default: nowhere"`

	program    Program
	emulator   string // PUBSUB_EMULATOR_HOST
	onCloudRun bool
	limits     Config // with the defaults
}

// readConfig reads the environment for a command. Its error lists every mistake by the name
// of the variable, and never shows a value, which may be a secret.
func (p Program) readConfig(command string, environ []string) (config, error) {
	variables := env.ToMap(environ)
	for name, value := range variables {
		if value == "" {
			delete(variables, name)
		}
	}
	cfg := config{program: p, emulator: variables["PUBSUB_EMULATOR_HOST"]}
	var errs []error
	for _, settings := range p.structs(&cfg) {
		errs = append(errs, read(settings, variables)...)
	}
	// https://cloud.google.com/run/docs/container-contract#env-vars
	cfg.onCloudRun = cmp.Or(variables["K_SERVICE"], variables["CLOUD_RUN_JOB"], variables["CLOUD_RUN_WORKER_POOL"]) != ""
	cfg.setDefaults()
	if len(errs) == 0 {
		errs = cfg.check(command)
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

// read fills a struct. The errors of the library name fields of Go and may show values. So each
// error is replaced.
func read(settings any, variables map[string]string) (errs []error) {
	err := env.ParseWithOptions(settings, env.Options{Environment: variables})
	all, _ := errors.AsType[env.AggregateError](err)
	for _, err := range all.Errors {
		if parse, ok := errors.AsType[env.ParseError](err); ok {
			field, _ := reflect.TypeOf(settings).Elem().FieldByName(parse.Name)
			err = fmt.Errorf("%s cannot be read as %s", field.Tag.Get("env"), parse.Type)
		}
		errs = append(errs, err)
	}
	return errs
}

func (c *config) setDefaults() {
	if len(c.Roles) == 0 {
		c.Roles = c.program.roles()
	}
	c.ReadDatabaseURL = cmp.Or(c.ReadDatabaseURL, c.DatabaseURL)
	if c.TrustedProxies == -1 {
		c.TrustedProxies = 0
		if c.onCloudRun {
			c.TrustedProxies = 1
		}
	}
	c.limits = c.program.Config
	c.limits.DatabaseWait = cmp.Or(c.limits.DatabaseWait, 10*time.Second)
	if c.isOpen() {
		c.limits.Port.Hosts = c.hosts()
	}
	c.limits.Outbox, c.limits.Consumer, c.limits.Port = c.limits.Outbox.WithDefaults(), c.limits.Consumer.WithDefaults(), c.limits.Port.WithDefaults()
	c.limits.Consumer.Workers = max(c.limits.Consumer.Workers, len(c.program.projected())) // each subscription has one for itself
}

func (c config) has(role string) bool { return slices.Contains(c.Roles, role) }

// hasPartRole reports whether the process has a role of a part.
func (c config) hasPartRole() bool {
	return slices.ContainsFunc(c.program.Parts, func(p Part) bool { return c.has(p.Role) })
}

// needsPubSub reports whether a role of this process publishes or consumes.
func (c config) needsPubSub() bool {
	return slices.ContainsFunc(c.Roles, func(role string) bool { return role != roleAPI })
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

// process returns what the parts may know of a process with this config.
func (c config) process(command string) Process {
	return Process{Command: command, Auth: c.Auth, Roles: c.Roles, Hosts: c.hosts()}
}

// isOpen reports whether everybody who reaches the port may call the API.
func (c config) isOpen() bool { return c.has(roleAPI) && c.Auth == authOff }

// hosts returns the hosts of a port that authenticates nobody.
func (c config) hosts() []string { return append([]string{"localhost"}, c.AllowedHosts...) }

// listenAddr returns the address of the port. One that everybody may call is open to other
// machines only if the operator has named the hosts.
func (c config) listenAddr() string {
	host := ""
	if c.isOpen() && len(c.AllowedHosts) == 0 {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, strconv.Itoa(c.Port))
}

// connections returns how many connections to each database are for API calls, and how many for
// everything else: one per worker of the loops, and three for the probe, the metrics and
// maintenance. If a table of the outbox is locked, these may need more for a while, and the
// process is then not ready.
func (c config) connections() (calls, own int32) {
	commands, queries := 0, 0
	if c.has(rolePublisher) {
		commands = c.limits.Outbox.Workers
	}
	if c.has(roleProjector) {
		queries = c.limits.Consumer.Workers
	}
	for _, part := range c.program.Parts {
		if part.Subscriptions != nil && c.has(part.Role) {
			commands += commandWorkers(part.Subscriptions(c.program.Registrations))
		}
	}
	n := max(commands, queries)
	if c.ReadDatabaseURL == c.DatabaseURL {
		n = commands + queries
	}
	own = int32(min(n, math.MaxInt16)) + 3
	if c.has(roleAPI) {
		calls = c.DatabaseMaxConns - own
	}
	return calls, own
}

// commandWorkers returns how many transactions on the command side the consumer of some
// subscriptions runs at the same time.
func commandWorkers(subscribed []Subscription) int {
	if len(subscribed) == 0 {
		return 0
	}
	return max(2, len(subscribed))
}

// inFlight returns how many ordering keys the passes of this process can have at most. Each
// pass has the keys of a batch, and of as many events that were set aside.
func (c config) inFlight() int { return 2 * c.limits.Outbox.Workers * c.limits.Outbox.Batch }

func (c config) telemetry() telemetry.Config {
	return telemetry.Config{
		Service: names.Service, Version: c.program.Version, Project: c.PubSubProject,
		TracesEndpoint: c.TracesEndpoint, TraceRatio: c.TraceRatio,
		MetricsEndpoint: c.MetricsEndpoint, Prometheus: c.TelemetryAddr != "",
	}
}
