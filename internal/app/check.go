package app

import (
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"time"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/port"
	"example.com/videocatalog/internal/telemetry"
)

// mistakes are what is wrong in the settings.
type mistakes []error

func (m *mistakes) unless(ok bool, format string, args ...any) {
	if !ok {
		*m = append(*m, fmt.Errorf(format, args...))
	}
}

// of adds an error of another package, which does not name the setting.
func (m *mistakes) of(setting string, err error) {
	if err != nil {
		*m = append(*m, fmt.Errorf("%s %w", setting, err))
	}
}

// check returns the mistakes in each value and between values. Only serve and drain need Pub/Sub,
// and serve needs only the settings of its roles.
func (c config) check(command string) []error {
	var m mistakes
	roles := c.program.roles()
	for _, role := range c.Roles {
		m.unless(slices.Contains(roles, role), "ROLES has %q: it may have %s", role, strings.Join(roles, ", "))
	}
	m.unless(c.Port >= 0 && c.Port <= math.MaxUint16, "PORT must be between 0 (any free one) and 65535")
	m.checkDatabases(c)
	m.unless(c.emulator == "" || !c.onCloudRun, "PUBSUB_EMULATOR_HOST must not be set on Cloud Run: events would go there, without TLS and without credentials")
	m.unless(c.PubSubProject != "" || command != "drain", "PUBSUB_PROJECT is required by drain")
	m.unless(c.OutboxRetention >= 24*time.Hour, "OUTBOX_RETENTION must be at least 24h")
	m.unless(c.InboxRetention >= 24*time.Hour, "CONSUMER_INBOX_RETENTION must be at least 24h")
	for _, host := range c.AllowedHosts {
		m.of("ALLOWED_HOSTS:", port.CheckHost(host))
	}
	if command == "serve" {
		m.checkServe(c)
	}
	for _, part := range c.program.Parts {
		if part.Check != nil {
			m = append(m, part.Check(c.process(command))...)
		}
	}
	for _, r := range c.program.Registrations {
		for name := range r.Parts {
			exists := slices.ContainsFunc(c.program.Parts, func(p Part) bool { return p.Name == name })
			m.unless(exists, "the aggregate type %s needs the option %s: add it to cmd/server/parts.go", r.AggregateType, name)
		}
	}
	m.checkTelemetry(c)
	return m
}

func (m *mistakes) checkDatabases(c config) {
	m.unless(c.DatabaseMaxConns > 0, "DATABASE_MAX_CONNS must be more than 0")
	if c.DatabaseURL == "" {
		m.of("DATABASE_URL", errors.New("is required"))
		return
	}
	m.of("DATABASE_URL", db.CheckURL(c.DatabaseURL))
	if c.ReadDatabaseURL != c.DatabaseURL {
		m.of("READ_DATABASE_URL", db.CheckURL(c.ReadDatabaseURL))
	}
}

func (m *mistakes) checkServe(c config) {
	m.unless(c.PubSubProject != "" || !c.needsPubSub(), "PUBSUB_PROJECT is required by every role but api")
	m.checkAuth(c)
	m.unless(c.CallerRate >= 0, "SERVER_CALLER_RATE must be 0 (any number) or more")
	m.unless(c.TrustedProxies >= 0, "SERVER_TRUSTED_PROXIES must be -1 (1 on Cloud Run, else 0) or more")
	_, need := c.connections()
	if c.has(roleAPI) {
		need++
	}
	m.unless(c.DatabaseMaxConns >= need, "DATABASE_MAX_CONNS (%d) must be at least %d: one per worker of this process's roles, 3 for everything else, and for the role api one more", c.DatabaseMaxConns, need)
}

// checkAuth checks AUTH, without which a process with other roles serves no calls.
func (m *mistakes) checkAuth(c config) {
	values := []string{authOff, authIAM}
	for _, part := range c.program.Parts {
		if part.NewChecker != nil {
			values = append(values, part.Name)
		}
	}
	switch {
	case c.Auth == "":
		m.unless(!c.has(roleAPI), "AUTH is required by the role api, and must be one of %s: see docs/security.md", strings.Join(values, ", "))
	case c.Auth == authOff:
		m.unless(!c.onCloudRun || !c.has(roleAPI), "AUTH must not be off on Cloud Run, but one of %s: see docs/security.md", strings.Join(values[1:], ", "))
	default:
		m.unless(slices.Contains(values, c.Auth), "AUTH must be one of %s: another value is the name of an option, such as oidc, and needs its line in cmd/server/parts.go", strings.Join(values, ", "))
	}
}

// checkTelemetry also checks the address of the private port.
func (m *mistakes) checkTelemetry(c config) {
	m.of("TELEMETRY_TRACES_ENDPOINT", telemetry.CheckEndpoint(c.TracesEndpoint))
	m.of("TELEMETRY_METRICS_ENDPOINT", telemetry.CheckEndpoint(c.MetricsEndpoint))
	m.unless(c.TraceRatio >= 0 && c.TraceRatio <= 1, "TELEMETRY_TRACE_RATIO must be between 0 and 1") // false for NaN, too
	if c.TelemetryAddr != "" {
		_, _, err := net.SplitHostPort(c.TelemetryAddr)
		m.unless(err == nil, "TELEMETRY_ADDR must be a host and a port, such as 127.0.0.1:9090")
	}
}
