package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/caarlos0/env/v11"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/server"
	"example.com/videocatalog/internal/telemetry"
)

// The roles a process can have.
const (
	roleAPI       = "api"
	rolePublisher = "publisher"
	roleProjector = "projector"
)

// config is the environment. Names are prefixed by the package they configure;
// a setting that is empty or absent has its default.
type config struct {
	Roles    []string   `env:"ROLES" envDefault:"api,publisher,projector" help:"what this process does: api, publisher, projector"`
	Port     int        `env:"PORT" envDefault:"8080" help:"TCP port of gRPC, REST and health checks"`
	LogLevel slog.Level `env:"LOG_LEVEL" envDefault:"INFO" help:"DEBUG, INFO, WARN or ERROR"`

	Environment string        `env:"ENVIRONMENT" help:"production or development; default: production on Cloud Run, by its K_SERVICE, CLOUD_RUN_JOB or CLOUD_RUN_WORKER_POOL, else development"`
	Auth        string        `env:"AUTH" help:"who checks callers: iam (Cloud Run's IAM, before they come here), oidc (this process, by ID token and AUTH_POLICY_FILE) or off (nobody; not in production); required by the role api"`
	Issuer      string        `env:"AUTH_ISSUER" envDefault:"https://accounts.google.com" help:"OpenID Connect issuer whose ID tokens count"`
	Audiences   []string      `env:"AUTH_AUDIENCE" help:"audiences, separated by commas, of which an ID token must have one, such as the URL of the service; required by AUTH=oidc"`
	PolicyFile  string        `env:"AUTH_POLICY_FILE" help:"YAML or JSON that says who may call what, see docs/security.md; required by AUTH=oidc"`
	AuthLeeway  time.Duration `env:"AUTH_LEEWAY" envDefault:"30s" help:"how far the clocks of the issuer and of this machine may be apart"`

	DatabaseURL        string        `env:"DATABASE_URL" help:"PostgreSQL, the command side; required"`
	CatalogDatabaseURL string        `env:"CATALOG_DATABASE_URL" help:"PostgreSQL, the query side; default: DATABASE_URL"`
	MigrateDatabaseURL string        `env:"MIGRATE_DATABASE_URL" help:"PostgreSQL for migrate, a direct connection of the owner; default: DATABASE_URL"`
	DatabaseMaxConns   int32         `env:"DATABASE_MAX_CONNS" envDefault:"16" help:"connections per database URL; what the workers of this process's roles and 3 for everything else leave is for API calls"`
	DatabaseWait       time.Duration `env:"DATABASE_WAIT" envDefault:"10s" help:"how long to wait for the database at start"`

	PubSubProject      string `env:"PUBSUB_PROJECT" help:"Google Cloud project of topic and subscription; required by publisher and projector"`
	PubSubTopic        string `env:"PUBSUB_TOPIC" envDefault:"video.events" help:"topic that events are published to"`
	PubSubSubscription string `env:"PUBSUB_SUBSCRIPTION" envDefault:"video.events.catalog" help:"subscription that the projector receives from"`
	PubSubEndpoint     string `env:"PUBSUB_ENDPOINT" help:"regional endpoint, such as europe-west1-pubsub.googleapis.com:443: publishers in one region keep the order; default: the global one"`

	Drain      time.Duration `env:"SERVER_DRAIN_TIMEOUT" envDefault:"4500ms" help:"how long requests in flight may take after SIGTERM"`
	MaxWait    time.Duration `env:"SERVER_MAX_WAIT" envDefault:"10s" help:"how long GetCatalogEntry waits for min_version at most"`
	MaxStreams int           `env:"SERVER_MAX_STREAMS" envDefault:"250" help:"concurrent requests per HTTP/2 connection; at least the concurrency of Cloud Run"`

	CallTimeout     time.Duration `env:"SERVER_CALL_TIMEOUT" envDefault:"30s" help:"how long a call may take, whatever deadline its caller sets, or none; more than SERVER_MAX_WAIT"`
	StreamLifetime  time.Duration `env:"SERVER_STREAM_LIFETIME" envDefault:"30m" help:"how long a stream may last before its client has to call again, and is looked at again"`
	MaxRequestBytes int           `env:"SERVER_MAX_REQUEST_BYTES" envDefault:"262144" help:"size of the largest request"`
	MaxCalls        int           `env:"SERVER_MAX_CALLS" envDefault:"1000" help:"calls at a time, and half as many streams; more are refused"`
	MaxConnections  int           `env:"SERVER_MAX_CONNECTIONS" envDefault:"10000" help:"connections at a time, up to 24 KiB each; more wait"`
	CallerRate      int           `env:"SERVER_CALLER_RATE" envDefault:"100" help:"calls per second and caller, unless AUTH=off; 0: any number"`
	CallerBurst     int           `env:"SERVER_CALLER_BURST" envDefault:"200" help:"calls at once per caller"`
	Callers         int           `env:"SERVER_CALLERS" envDefault:"10000" help:"callers whose rate is remembered"`
	TrustedProxies  int           `env:"SERVER_TRUSTED_PROXIES" envDefault:"-1" help:"proxies whose X-Forwarded-For tells where calls come from; 2 on Cloud Run behind a load balancer; -1: 1 on Cloud Run, else 0"`
	CORSOrigins     []string      `env:"SERVER_CORS_ORIGINS" help:"origins, separated by commas, whose pages may call over REST from a browser, such as https://app.example.com; *: all; default: none"`

	RequestTimeout  time.Duration `env:"OUTBOX_REQUEST_TIMEOUT" envDefault:"4s" help:"how long one publish request is tried"`
	OutboxRetention time.Duration `env:"OUTBOX_RETENTION" envDefault:"168h" help:"how long events are kept after the day they happened; one that is still pending is published all the same"`

	OutboxWorkers        int           `env:"OUTBOX_WORKERS" envDefault:"4" help:"lanes published at a time, each with a connection"`
	OutboxBatch          int           `env:"OUTBOX_BATCH" envDefault:"2000" help:"events per pass, and as many of those set aside"`
	OutboxLease          time.Duration `env:"OUTBOX_LEASE" envDefault:"30s" help:"how long events wait after their publisher died"`
	OutboxPublishTimeout time.Duration `env:"OUTBOX_PUBLISH_TIMEOUT" envDefault:"12s" help:"how long a pass waits for the broker; less than half of the lease"`
	OutboxPollInterval   time.Duration `env:"OUTBOX_POLL_INTERVAL" envDefault:"1s" help:"longest pause between looks at all of the outbox"`
	OutboxMaxAttempts    int           `env:"OUTBOX_MAX_ATTEMPTS" envDefault:"10" help:"attempts before a refused event is parked"`
	OutboxRetryMin       time.Duration `env:"OUTBOX_RETRY_MIN" envDefault:"1s" help:"longest first pause after a refused event"`
	OutboxRetryMax       time.Duration `env:"OUTBOX_RETRY_MAX" envDefault:"10m" help:"longest pause after a refused event"`
	OutboxStopTimeout    time.Duration `env:"OUTBOX_STOP_TIMEOUT" envDefault:"1500ms" help:"how long the broker may take to answer once the process stops"`
	OutboxSettleTimeout  time.Duration `env:"OUTBOX_SETTLE_TIMEOUT" envDefault:"1s" help:"how long the first attempt to settle may take; each after it has as long again"`

	ConsumerName           string        `env:"CONSUMER_NAME" envDefault:"catalog" help:"name in the inbox; a new one sees every event as new, for a rebuild by seek"`
	ConsumerBatchSize      int           `env:"CONSUMER_BATCH_SIZE" envDefault:"100" help:"messages per transaction"`
	ConsumerBatchDelay     time.Duration `env:"CONSUMER_BATCH_DELAY" envDefault:"2ms" help:"how long a batch waits to fill"`
	ConsumerWorkers        int           `env:"CONSUMER_WORKERS" envDefault:"4" help:"transactions at a time, each with a connection"`
	ConsumerTransaction    time.Duration `env:"CONSUMER_TRANSACTION_TIMEOUT" envDefault:"10s" help:"how long a transaction may take; so long one waits that lost its connection without a word"`
	ConsumerMaxOutstanding int           `env:"CONSUMER_MAX_OUTSTANDING" envDefault:"4000" help:"messages in hand"`
	ConsumerMaxBytes       int           `env:"CONSUMER_MAX_OUTSTANDING_BYTES" envDefault:"67108864" help:"bytes of messages in hand"`
	ConsumerStreams        int           `env:"CONSUMER_STREAMS" envDefault:"1" help:"StreamingPull streams"`
	ConsumerStopTimeout    time.Duration `env:"CONSUMER_STOP_TIMEOUT" envDefault:"2500ms" help:"how long messages in hand may take once the process stops"`
	InboxRetention         time.Duration `env:"CONSUMER_INBOX_RETENTION" envDefault:"768h" help:"how long event ids are remembered, and messages kept in quarantine; more than the topic or the subscription retains messages"`

	TelemetryAddr   string        `env:"TELEMETRY_ADDR" help:"TCP address of the private port, such as 127.0.0.1:9090: metrics for Prometheus, profiles, the backlog, the level of the log; without authentication, so never a public one; default: none"`
	TracesEndpoint  string        `env:"TELEMETRY_TRACES_ENDPOINT" help:"where traces are sent by OTLP over gRPC, such as https://telemetry.googleapis.com or http://localhost:4317; default: there are none"`
	TraceRatio      float64       `env:"TELEMETRY_TRACE_RATIO" envDefault:"0.01" help:"part of the traces that is recorded, from 0 to 1, unless the caller has decided"`
	MetricsEndpoint string        `env:"TELEMETRY_METRICS_ENDPOINT" help:"where metrics are sent by OTLP over gRPC; default: nowhere"`
	MetricsInterval time.Duration `env:"TELEMETRY_METRICS_INTERVAL" envDefault:"1m" help:"how often metrics are sent"`

	emulator string // PUBSUB_EMULATOR_HOST, which the library reads itself
}

// stopBudget is what Cloud Run gives between SIGTERM and SIGKILL
// (https://cloud.google.com/run/docs/container-contract#instance-shutdown).
const stopBudget = 10 * time.Second

// closeTimeout is how long a process that is done waits for what nobody needs
// any longer: first for requests to the broker, then for the connections to the
// database.
const closeTimeout = 500 * time.Millisecond

// readConfig reads the environment for a command and tells everything that is wrong with it
// at once, by the names of the variables; never their values, which may be
// secrets.
func readConfig(command string, environ []string) (config, error) {
	variables := env.ToMap(environ)
	for name, value := range variables {
		if value == "" {
			delete(variables, name)
		}
	}
	var cfg config
	var errs []error
	if err := env.ParseWithOptions(&cfg, env.Options{Environment: variables}); err != nil {
		errs = append(errs, parseErrors(err)...)
	}
	cfg.CatalogDatabaseURL = cmp.Or(cfg.CatalogDatabaseURL, cfg.DatabaseURL)
	cfg.MigrateDatabaseURL = cmp.Or(cfg.MigrateDatabaseURL, cfg.DatabaseURL)
	cfg.emulator = variables["PUBSUB_EMULATOR_HOST"]
	// https://cloud.google.com/run/docs/container-contract#env-vars
	cfg.onCloudRun(cmp.Or(variables["K_SERVICE"], variables["CLOUD_RUN_JOB"], variables["CLOUD_RUN_WORKER_POOL"]) != "")
	unread := errs
	for _, err := range cfg.check(command) {
		// What could not be read has the zero value, about which there is nothing to say.
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

// firstWord of one of our errors is the name of its variable.
func firstWord(err error) string {
	name, _, _ := strings.Cut(err.Error(), " ")
	return name
}

// parseErrors turns the library's errors, which name Go fields and may show
// values, into ours.
func parseErrors(err error) []error {
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
		if field, ok := reflect.TypeFor[config]().FieldByName(parse.Name); ok {
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
	case reflect.TypeFor[float64]():
		return "number such as 0.01"
	default:
		return "whole number"
	}
}

func (c config) has(role string) bool { return slices.Contains(c.Roles, role) }

// check returns what is wrong with the values and between them. Only serve and
// drain need Pub/Sub, and only serve what its roles do.
func (c config) check(command string) []error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if len(c.Roles) == 0 {
		wrong("ROLES must name at least one of api, publisher, projector")
	}
	for _, role := range c.Roles {
		if !slices.Contains([]string{roleAPI, rolePublisher, roleProjector}, role) {
			wrong("ROLES has %q: it may have api, publisher, projector", role)
		}
	}
	if c.Port < 0 || c.Port > 65535 {
		wrong("PORT must be between 0 (any free one) and 65535")
	}
	errs = append(errs, c.checkDatabases()...)
	if c.emulator != "" && c.Environment == production {
		wrong("PUBSUB_EMULATOR_HOST must not be set in production: events would go there, without TLS and without credentials")
	}
	if c.PubSubProject == "" && command == "serve" && (c.has(rolePublisher) || c.has(roleProjector)) {
		wrong("PUBSUB_PROJECT is required by the roles publisher and projector")
	}
	if c.PubSubProject == "" && command == "drain" {
		wrong("PUBSUB_PROJECT is required by drain")
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"DATABASE_MAX_CONNS", int64(c.DatabaseMaxConns)}, {"DATABASE_WAIT", int64(c.DatabaseWait)},
		{"AUTH_LEEWAY", int64(c.AuthLeeway)}, {"SERVER_CALL_TIMEOUT", int64(c.CallTimeout)}, {"SERVER_STREAM_LIFETIME", int64(c.StreamLifetime)},
		{"SERVER_MAX_REQUEST_BYTES", int64(c.MaxRequestBytes)}, {"SERVER_MAX_CALLS", int64(c.MaxCalls)}, {"SERVER_MAX_CONNECTIONS", int64(c.MaxConnections)},
		{"SERVER_CALLER_BURST", int64(c.CallerBurst)}, {"SERVER_CALLERS", int64(c.Callers)},
		{"SERVER_DRAIN_TIMEOUT", int64(c.Drain)}, {"SERVER_MAX_WAIT", int64(c.MaxWait)}, {"SERVER_MAX_STREAMS", int64(c.MaxStreams)},
		{"OUTBOX_REQUEST_TIMEOUT", int64(c.RequestTimeout)}, {"OUTBOX_WORKERS", int64(c.OutboxWorkers)}, {"OUTBOX_BATCH", int64(c.OutboxBatch)},
		{"OUTBOX_LEASE", int64(c.OutboxLease)}, {"OUTBOX_PUBLISH_TIMEOUT", int64(c.OutboxPublishTimeout)},
		{"OUTBOX_POLL_INTERVAL", int64(c.OutboxPollInterval)}, {"OUTBOX_MAX_ATTEMPTS", int64(c.OutboxMaxAttempts)},
		{"OUTBOX_RETRY_MIN", int64(c.OutboxRetryMin)}, {"OUTBOX_RETRY_MAX", int64(c.OutboxRetryMax)},
		{"OUTBOX_STOP_TIMEOUT", int64(c.OutboxStopTimeout)}, {"OUTBOX_SETTLE_TIMEOUT", int64(c.OutboxSettleTimeout)},
		{"CONSUMER_BATCH_SIZE", int64(c.ConsumerBatchSize)}, {"CONSUMER_BATCH_DELAY", int64(c.ConsumerBatchDelay)},
		{"CONSUMER_WORKERS", int64(c.ConsumerWorkers)}, {"CONSUMER_TRANSACTION_TIMEOUT", int64(c.ConsumerTransaction)},
		{"CONSUMER_MAX_OUTSTANDING", int64(c.ConsumerMaxOutstanding)},
		{"CONSUMER_MAX_OUTSTANDING_BYTES", int64(c.ConsumerMaxBytes)}, {"CONSUMER_STREAMS", int64(c.ConsumerStreams)},
		{"CONSUMER_STOP_TIMEOUT", int64(c.ConsumerStopTimeout)}, {"TELEMETRY_METRICS_INTERVAL", int64(c.MetricsInterval)},
	} {
		if f.value <= 0 {
			wrong("%s must be more than 0", f.name)
		}
	}
	for _, f := range []struct {
		name  string
		value time.Duration
	}{{"OUTBOX_RETENTION", c.OutboxRetention}, {"CONSUMER_INBOX_RETENTION", c.InboxRetention}} {
		if f.value < 24*time.Hour {
			wrong("%s must be at least 24h", f.name)
		}
	}
	if command == "serve" {
		errs = append(errs, c.checkCallers()...)
	}

	if c.OutboxPublishTimeout >= c.OutboxLease/2 {
		wrong("OUTBOX_PUBLISH_TIMEOUT (%s) must be less than half of OUTBOX_LEASE (%s)", c.OutboxPublishTimeout, c.OutboxLease)
	}
	if c.RequestTimeout > c.OutboxPublishTimeout/2 {
		wrong("OUTBOX_REQUEST_TIMEOUT (%s) must be at most half of OUTBOX_PUBLISH_TIMEOUT (%s)", c.RequestTimeout, c.OutboxPublishTimeout)
	}
	if c.OutboxRetryMin > c.OutboxRetryMax {
		wrong("OUTBOX_RETRY_MIN (%s) must not exceed OUTBOX_RETRY_MAX (%s)", c.OutboxRetryMin, c.OutboxRetryMax)
	}
	const ends = closeTimeout + flushTimeout + closeTimeout // the broker's, telemetry's, the database's
	if stop := c.Drain + max(c.OutboxStopTimeout+c.OutboxSettleTimeout, c.ConsumerStopTimeout) + ends; stop >= stopBudget {
		wrong("SERVER_DRAIN_TIMEOUT plus the longer of OUTBOX_STOP_TIMEOUT + OUTBOX_SETTLE_TIMEOUT and CONSUMER_STOP_TIMEOUT plus %s is %s, it must be less than %s", ends, stop, stopBudget)
	}
	for _, f := range []struct{ name, value string }{{"TELEMETRY_TRACES_ENDPOINT", c.TracesEndpoint}, {"TELEMETRY_METRICS_ENDPOINT", c.MetricsEndpoint}} {
		if err := telemetry.CheckEndpoint(f.value); err != nil {
			wrong("%s %w", f.name, err)
		}
	}
	if !(c.TraceRatio >= 0 && c.TraceRatio <= 1) { // nor NaN
		wrong("TELEMETRY_TRACE_RATIO must be between 0 and 1")
	}
	if c.TelemetryAddr != "" {
		if _, _, err := net.SplitHostPort(c.TelemetryAddr); err != nil {
			wrong("TELEMETRY_ADDR must be a host and a port, such as 127.0.0.1:9090")
		}
	}
	need := c.ownConnections()
	if c.has(roleAPI) {
		need++
	}
	if command == "serve" && c.DatabaseMaxConns < need {
		wrong("DATABASE_MAX_CONNS (%d) must be at least %d: one per OUTBOX_WORKERS and CONSUMER_WORKERS of this process's roles, 3 for everything else, and for the role api one more", c.DatabaseMaxConns, need)
	}
	// What is in hand must be served while its lease with the broker, a minute, lasts: here within a fifth of
	// it, at 10 ms a transaction.
	if most := c.ConsumerWorkers * c.ConsumerBatchSize * 1200; c.ConsumerMaxOutstanding > most {
		wrong("CONSUMER_MAX_OUTSTANDING (%d) must be at most 1200 × CONSUMER_WORKERS × CONSUMER_BATCH_SIZE (%d): more cannot be served in time", c.ConsumerMaxOutstanding, most)
	}
	return errs
}

// checkDatabases names each URL that is given, and wrong.
func (c config) checkDatabases() []error {
	if c.DatabaseURL == "" {
		return []error{errors.New("DATABASE_URL is required")}
	}
	var errs []error
	checked := map[string]bool{}
	for _, f := range []struct{ name, url string }{
		{"DATABASE_URL", c.DatabaseURL}, {"CATALOG_DATABASE_URL", c.CatalogDatabaseURL}, {"MIGRATE_DATABASE_URL", c.MigrateDatabaseURL},
	} {
		if err := db.CheckURL(f.url); err != nil && !checked[f.url] {
			errs = append(errs, fmt.Errorf("%s %w", f.name, err))
		}
		checked[f.url] = true // the default of the others
	}
	return errs
}

// callConnections is how many connections to each database are for API calls.
func (c config) callConnections() int32 {
	if !c.has(roleAPI) {
		return 0
	}
	return c.DatabaseMaxConns - c.ownConnections()
}

// ownConnections is how many connections to one database the loops of this
// process may hold at a time, and three for all else but API calls: the probe, the
// metrics, maintenance. When somebody locks a table of the outbox, these may need
// more for a while, and the process is not ready then.
func (c config) ownConnections() int32 {
	video, catalog := 0, 0
	if c.has(rolePublisher) {
		video = c.OutboxWorkers
	}
	if c.has(roleProjector) {
		catalog = c.ConsumerWorkers
	}
	n := max(video, catalog)
	if c.CatalogDatabaseURL == c.DatabaseURL {
		n = video + catalog
	}
	return int32(min(n, math.MaxInt16)) + 3
}

func (c config) outbox() outbox.Config {
	return outbox.Config{
		Workers: c.OutboxWorkers, Batch: c.OutboxBatch, Lease: c.OutboxLease, PublishTimeout: c.OutboxPublishTimeout,
		PollInterval: c.OutboxPollInterval, MaxAttempts: c.OutboxMaxAttempts, RetryMin: c.OutboxRetryMin, RetryMax: c.OutboxRetryMax,
		StopTimeout: c.OutboxStopTimeout, SettleTimeout: c.OutboxSettleTimeout,
	}
}

// inFlight is how many ordering keys the passes of this process have at most:
// those of a batch each, and of as many events again that were set aside.
func (c config) inFlight() int { return 2 * c.OutboxWorkers * c.OutboxBatch }

func (c config) consumer() consumer.Config {
	return consumer.Config{
		BatchSize: c.ConsumerBatchSize, BatchDelay: c.ConsumerBatchDelay, Workers: c.ConsumerWorkers,
		MaxOutstandingMessages: c.ConsumerMaxOutstanding, MaxOutstandingBytes: c.ConsumerMaxBytes, Streams: c.ConsumerStreams,
		TransactionTimeout: c.ConsumerTransaction, StopTimeout: c.ConsumerStopTimeout,
	}
}

func (c config) server() server.Config {
	return server.Config{
		DrainTimeout: c.Drain, MaxWait: c.MaxWait, MaxConcurrentStreams: c.MaxStreams,
		CallTimeout: c.CallTimeout, StreamLifetime: c.StreamLifetime, MaxReceive: c.MaxRequestBytes, MaxCalls: c.MaxCalls, MaxConnections: c.MaxConnections,
		CORSOrigins: c.CORSOrigins,
	}
}

func (c config) telemetry() telemetry.Config {
	return telemetry.Config{
		Service: "videocatalog", Version: version, Project: c.PubSubProject,
		TracesEndpoint: c.TracesEndpoint, TraceRatio: c.TraceRatio,
		MetricsEndpoint: c.MetricsEndpoint, MetricsInterval: c.MetricsInterval, Prometheus: c.TelemetryAddr != "",
	}
}

// settings lists every setting with its default, in the order of config.
func settings() [][3]string {
	var rows [][3]string
	for field := range reflect.TypeFor[config]().Fields() {
		if !field.IsExported() {
			continue
		}
		rows = append(rows, [3]string{field.Tag.Get("env"), field.Tag.Get("envDefault"), field.Tag.Get("help")})
	}
	return rows
}

func printHelp(w io.Writer) error {
	var out bytes.Buffer
	out.WriteString(`server is the video catalog service.

  server [serve]                       run until SIGTERM or SIGINT
  server migrate                       bring the database schema up to date
  server drain                         publish everything pending, then exit
  server rebuild [FLAGS] HOST:PORT     make the catalog what the VideoService there has; https://HOST for TLS
         --dry-run                     write nothing, and count what differs
         --id-token                    call with an ID token of Google, of the service account that runs this
         --audience AUDIENCE           of that token; default: https://HOST
         --token-file FILE             call with the ID token in this file, which is read for every call
  server outbox list                   show aggregates whose next event the broker refused
  server outbox requeue TYPE ID        try that event again
  server outbox requeue --all          try the events of all parked aggregates again
  server outbox skip TYPE ID EVENT_ID  give that event up
  server quarantine list               show messages that could not be decoded
  server quarantine replay             apply those that this build can decode
  server quarantine delete ID          give one up
  server version                       print the version
  server help                          print this

Settings, from the environment:

`)
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	for _, row := range settings() {
		fmt.Fprintf(table, "  %s\t%s\t%s\n", row[0], cmp.Or(row[1], "-"), row[2])
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print help: %w", err)
	}
	_, err := w.Write(out.Bytes())
	return err
}
