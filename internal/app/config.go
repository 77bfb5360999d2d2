package app

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/transport"
)

// The roles that a process can have.
const (
	roleAPI       = "api"
	rolePublisher = "publisher"
	roleProjector = "projector"
)

// The values of AUTH and BROKER, besides the names of options.
const (
	authOff      = "off"
	authIAM      = "iam"
	brokerPubSub = "pubsub"
)

// startTimeout is how long a start waits for a database: less than the startup probes of deploy/run.
const startTimeout = 25 * time.Second

// Limits are what differs between services, and not between deployments. A zero field means
// its default.
type Limits struct {
	Outbox    outbox.Config
	Consumer  consumer.Config
	Transport transport.Config
}

// config has the settings that differ between deployments, from environment variables. An
// empty or absent variable means its default.
type config struct {
	Roles    []string   `env:"ROLES" help:"what this process does: api, publisher, projector, and the roles of options; default: all of them"`
	Port     uint16     `env:"PORT" envDefault:"8080" help:"TCP port of gRPC, REST and health checks; 0: any free one"`
	LogLevel slog.Level `env:"LOG_LEVEL" envDefault:"INFO" help:"DEBUG, INFO, WARN or ERROR"`

	Auth         string   `env:"AUTH" help:"who checks callers: iam (Cloud Run's IAM, before a request gets here), off (nobody; not on Cloud Run) or the name of an option; required by the role api"`
	AllowedHosts []string `env:"ALLOWED_HOSTS" help:"host names, separated by commas, by which ports without authentication are called besides localhost and IP addresses: PORT with AUTH=off and TELEMETRY_ADDR; *: any; default: none, and PORT with AUTH=off is open on 127.0.0.1 only"`

	DatabaseURL      string `env:"DATABASE_URL" help:"PostgreSQL, the command side; for migrate as the owner of the schemas; required"`
	ReadDatabaseURL  string `env:"READ_DATABASE_URL" help:"PostgreSQL, the query side; default: DATABASE_URL"`
	DatabaseMaxConns uint16 `env:"DATABASE_MAX_CONNS" envDefault:"16" help:"connections per database URL: 4 for the publisher, 4 for all subscriptions together, 3 for everything else, the rest for API calls"`

	Broker         string `env:"BROKER" envDefault:"pubsub" help:"who carries events: pubsub or an option"`
	PubSubProject  string `env:"PUBSUB_PROJECT" help:"Google Cloud project of topic and subscription; with BROKER=pubsub required by every role but api"`
	PubSubEndpoint string `env:"PUBSUB_ENDPOINT" help:"regional endpoint, such as europe-west1-pubsub.googleapis.com:443: publishers in one region keep the order; default: the global one"`

	CallerRate     uint16 `env:"SERVER_CALLER_RATE" envDefault:"100" help:"calls per second and caller, unless AUTH=off; 0: any number"`
	TrustedProxies uint8  `env:"SERVER_TRUSTED_PROXIES" help:"proxies whose X-Forwarded-For tells where calls come from; 2 on Cloud Run behind a load balancer; default: 1 on Cloud Run, else 0"`

	OutboxRetention time.Duration `env:"OUTBOX_RETENTION" envDefault:"168h" help:"how long events are kept after their day, counted back from the newest event; a pending one is still published"`
	InboxRetention  time.Duration `env:"CONSUMER_INBOX_RETENTION" envDefault:"768h" help:"how long event ids are remembered, and messages kept in quarantine; more than the topic or the subscription retains messages"`

	TelemetryAddr string `env:"TELEMETRY_ADDR" help:"TCP address of the private port, such as 127.0.0.1:9090: metrics for Prometheus, profiles; without authentication, so never a public one"`

	program    Program
	emulator   string // PUBSUB_EMULATOR_HOST
	onCloudRun bool
	limits     Limits // with the defaults
}

// readConfig reads the environment for a subcommand. Its error lists all mistakes by the names of the
// variables, and shows no secret. Values of a wrong type are reported first, without the others.
func (p Program) readConfig(subcommand string, environ []string) (config, error) {
	variables := env.ToMap(environ)
	maps.DeleteFunc(variables, func(_, value string) bool { return value == "" })
	cfg := config{program: p, Roles: p.roles(), emulator: variables["PUBSUB_EMULATOR_HOST"]}
	// https://cloud.google.com/run/docs/container-contract#env-vars
	if cmp.Or(variables["K_SERVICE"], variables["CLOUD_RUN_JOB"], variables["CLOUD_RUN_WORKER_POOL"]) != "" {
		cfg.onCloudRun, cfg.TrustedProxies = true, 1
	}
	errs := read(&cfg, variables)
	for _, option := range p.Options {
		if option.Settings != nil {
			errs = append(errs, read(option.Settings, variables)...)
		}
	}
	cfg.ReadDatabaseURL = cmp.Or(cfg.ReadDatabaseURL, cfg.DatabaseURL)
	cfg.limit()
	if len(errs) == 0 {
		errs = cfg.check(subcommand)
	}
	if len(errs) > 0 {
		return config{}, fmt.Errorf("mistakes in the configuration:\n%w", errors.Join(errs...))
	}
	return cfg, nil
}

// comma separates the items of a list.
var comma = regexp.MustCompile(`\s*,\s*`)

// read fills a struct. The parse errors of the library name fields of Go and may show values, so
// each of them is replaced.
func read(settings any, variables map[string]string) (errs []error) {
	list := func(value string) (any, error) { return comma.Split(strings.TrimSpace(value), -1), nil }
	err := env.ParseWithOptions(settings, env.Options{Environment: variables, FuncMap: map[reflect.Type]env.ParserFunc{reflect.TypeFor[[]string](): list}})
	all, _ := errors.AsType[env.AggregateError](err)
	for _, err := range all.Errors {
		if parse, ok := errors.AsType[env.ParseError](err); ok {
			field, _ := reflect.TypeOf(settings).Elem().FieldByName(parse.Name)
			err = fmt.Errorf("%s cannot be read as %s, such as %s", field.Tag.Get("env"), parse.Type, cmp.Or(field.Tag.Get("envDefault"), "1"))
		}
		errs = append(errs, err)
	}
	return errs
}

// limit sets the limits of the packages, with their defaults.
func (c *config) limit() {
	c.limits = c.program.Limits
	if c.isOpen() {
		c.limits.Transport.Hosts = c.hosts()
	}
	c.limits.Outbox, c.limits.Consumer, c.limits.Transport = c.limits.Outbox.WithDefaults(), c.limits.Consumer.WithDefaults(), c.limits.Transport.WithDefaults()
}

func (c config) has(role string) bool { return slices.Contains(c.Roles, role) }

// hasAny reports whether the process has one of these roles, or the role of an option.
func (c config) hasAny(roles ...string) bool {
	for _, option := range c.program.Options {
		roles = append(roles, option.Role)
	}
	return slices.ContainsFunc(roles, c.has)
}

// roles returns the values that ROLES may have.
func (p Program) roles() []string {
	all := []string{roleAPI, rolePublisher, roleProjector}
	for _, option := range p.Options {
		if option.Role != "" {
			all = append(all, option.Role)
		}
	}
	return all
}

// selector returns the value of AUTH or BROKER that selects the option: the last word of its name.
func (o Option) selector() string { return o.Name[strings.LastIndexByte(o.Name, '-')+1:] }

// names returns the selectors of the options that can do something, after others.
func (p Program) names(can func(Option) bool, names ...string) []string {
	for _, option := range p.Options {
		if can(option) {
			names = append(names, option.selector())
		}
	}
	return names
}

// isOpen reports whether everybody who reaches the port may call the API.
func (c config) isOpen() bool { return c.has(roleAPI) && c.Auth == authOff }

// hostName matches what the Host header of a request may have, without its port.
var hostName = regexp.MustCompile(`^[\w-]+(\.[\w-]+)*$`)

// hosts returns the hosts of a port that authenticates nobody.
func (c config) hosts() []string { return append([]string{"localhost"}, c.AllowedHosts...) }

// listenAddr returns the address of the port. A port that everybody may call is open to other
// machines only if the operator has named the hosts.
func (c config) listenAddr() string {
	host := ""
	if c.isOpen() && len(c.AllowedHosts) == 0 {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, strconv.Itoa(int(c.Port)))
}

// ownConnections returns how many connections to each database are not for API calls: one per
// worker of the publisher and permit of the consumers, and three for the probe, the metrics and maintenance.
func (c config) ownConnections() int32 {
	own := c.permits() + 3
	if c.has(rolePublisher) {
		own += c.limits.Outbox.Workers
	}
	return int32(min(max(own, 0), math.MaxInt16))
}

// permits returns how many transactions all consumers and timers of this process may run at a time.
func (c config) permits() int {
	switch {
	case c.has(roleProjector):
		return c.limits.Consumer.Workers
	case c.hasAny():
		return min(2, c.limits.Consumer.Workers)
	}
	return 0
}

// mistakes are the errors of the settings.
type mistakes []error

func (m *mistakes) unless(ok bool, format string, args ...any) {
	if !ok {
		*m = append(*m, fmt.Errorf(format, args...))
	}
}

// add adds an error of another package, which does not name the setting.
func (m *mistakes) add(setting string, err error) {
	if err != nil {
		*m = append(*m, fmt.Errorf("%s %w", setting, err))
	}
}

// check returns the mistakes in each value and between values. serve requires the settings of its roles.
func (c config) check(subcommand string) []error {
	var m mistakes
	roles := c.program.roles()
	for _, role := range c.Roles {
		m.unless(slices.Contains(roles, role), "ROLES has %q: it may have %s", role, strings.Join(roles, ", "))
	}
	for _, host := range c.AllowedHosts {
		m.unless(host == "*" || hostName.MatchString(host), "ALLOWED_HOSTS has %q: it must be a host name without scheme and port, such as app.example.com, or * for any", host)
	}
	m.unless(c.DatabaseURL != "", "DATABASE_URL is required")
	m.add("DATABASE_URL", db.CheckURL(c.DatabaseURL))
	if c.ReadDatabaseURL != c.DatabaseURL {
		m.add("READ_DATABASE_URL", db.CheckURL(c.ReadDatabaseURL))
	}
	m.unless(c.emulator == "" || !c.onCloudRun, "PUBSUB_EMULATOR_HOST must not be set on Cloud Run: events would go there, without TLS and without credentials")
	brokers := c.program.names(func(o Option) bool { return o.NewBroker != nil }, brokerPubSub)
	m.unless(slices.Contains(brokers, c.Broker), "BROKER must be one of %s: another value is the name of an option, and needs its line in cmd/server/options.go", strings.Join(brokers, ", "))
	m.unless(c.OutboxRetention >= 24*time.Hour, "OUTBOX_RETENTION must be at least 24h")
	m.unless(c.InboxRetention >= 24*time.Hour, "CONSUMER_INBOX_RETENTION must be at least 24h")
	if subcommand == "serve" {
		m.checkServe(c)
	}
	for _, option := range c.program.Options {
		if option.Check != nil {
			m = append(m, option.Check(Selection{subcommand, c.Auth, c.Broker})...)
		}
	}
	consumers := make(map[string]bool) // two with one name would take the events of each other for duplicates
	for _, subscription := range c.program.subscriptions(roles...) {
		m.unless(!consumers[subscription.Consumer], "two subscriptions have the consumer name %q", subscription.Consumer)
		consumers[subscription.Consumer] = true
	}
	for _, r := range c.program.Registrations {
		for name := range r.Options {
			exists := slices.ContainsFunc(c.program.Options, func(o Option) bool { return o.Name == name })
			m.unless(exists, "the aggregate type %s needs the option %s: add it to cmd/server/options.go", r.AggregateType, name)
		}
	}
	return m
}

func (m *mistakes) checkServe(c config) {
	m.unless(c.PubSubProject != "" || c.Broker != brokerPubSub || slices.Equal(c.Roles, []string{roleAPI}), "PUBSUB_PROJECT is required by every role but api")
	m.checkAuth(c)
	need := c.ownConnections()
	if c.has(roleAPI) {
		need++
	}
	m.unless(int32(c.DatabaseMaxConns) >= need, "DATABASE_MAX_CONNS (%d) must be at least %d: those of this process's roles, 3 for everything else, and for the role api one more", c.DatabaseMaxConns, need)
}

// checkAuth checks AUTH. Only the role api requires it: the other roles serve no calls.
func (m *mistakes) checkAuth(c config) {
	values := []string{authOff, authIAM}
	values = c.program.names(func(o Option) bool { return o.NewChecker != nil }, values...) // only oidc
	all := strings.Join(values, ", ")
	m.unless(c.Auth != "" || !c.has(roleAPI), "AUTH is required by the role api, and must be one of %s: see docs/security.md", all)
	m.unless(c.Auth == "" || slices.Contains(values, c.Auth), "AUTH must be one of %s: another value is the name of an option, such as oidc, and needs its line in cmd/server/options.go", all)
	m.unless(!c.isOpen() || !c.onCloudRun, "AUTH must not be off on Cloud Run, but one of %s: see docs/security.md", strings.Join(values[1:], ", "))
}
