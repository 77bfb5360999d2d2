package app

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/transport"
)

// empty is a service without aggregate types.
var empty Program

// fifty is a service with fifty entities, and an option that consumes as many subscriptions.
var fifty = Program{
	Registrations: []Registration{{Subscriptions: consumers("entity", 50)}},
	Options:       []Option{{Role: "reactor", Subscriptions: func([]Registration) []Subscription { return consumers("reaction", 50) }}},
}

func consumers(name string, n int) (all []Subscription) {
	for i := range n {
		all = append(all, Subscription{Consumer: fmt.Sprint(name, " ", i)})
	}
	return all
}

// The error has every mistake in the configuration, by the variable's name.
func TestConfigurationMistakesAreToldAtOnce(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		environ []string
		want    []string
	}{
		{"nothing set", nil, []string{"AUTH is required", "DATABASE_URL is required", "PUBSUB_PROJECT is required"}},
		{"an option that is not there", []string{"DATABASE_URL=postgres://x", "AUTH=oidc", "PUBSUB_PROJECT=x"}, []string{"AUTH must be one of off, iam: another value is the name of an option, such as oidc, and needs its line in cmd/server/options.go"}},
		{"wrong types, which are reported first", []string{"PORT=70000", "OUTBOX_RETENTION=long", "LOG_LEVEL=LOUD"}, []string{
			"PORT cannot be read as uint16, such as 8080", "OUTBOX_RETENTION cannot be read as time.Duration, such as 168h", "LOG_LEVEL cannot be read as slog.Level, such as INFO",
		}},
		{"lists with spaces", []string{"DATABASE_URL=postgres://x", "PUBSUB_PROJECT=p", "AUTH=off", "ROLES= api , publisher ", "ALLOWED_HOSTS=*, a.example, web_1"}, nil},
		{"hosts that no request has", []string{"DATABASE_URL=postgres://x", "PUBSUB_PROJECT=p", "AUTH=off", "ALLOWED_HOSTS=https://a.example, a.example:80, *.example, a.example.,"}, []string{
			`ALLOWED_HOSTS has "https://a.example"`, `"a.example:80"`, `"*.example"`, `"a.example."`, `ALLOWED_HOSTS has ""`,
		}},
		{"ranges", []string{"DATABASE_URL=postgres://x", "PUBSUB_PROJECT=p", "AUTH=off", "DATABASE_MAX_CONNS=0", "ROLES=api,cook", "OUTBOX_RETENTION=1h"}, []string{
			"DATABASE_MAX_CONNS (0) must be at least 4", `ROLES has "cook"`, "OUTBOX_RETENTION must be at least 24h",
		}},
		{"connections", []string{"DATABASE_URL=postgres://x", "PUBSUB_PROJECT=p", "AUTH=off", "DATABASE_MAX_CONNS=3"}, []string{"DATABASE_MAX_CONNS (3) must be at least 12"}},
		{"databases", []string{
			"DATABASE_URL=postgres://u:secret@h/d?default_query_exec_mode=exec", "READ_DATABASE_URL=postgres://u:secret@h:port/d", "PUBSUB_PROJECT=p", "AUTH=off",
		}, []string{
			"DATABASE_URL must not have default_query_exec_mode=exec or simple_protocol", "READ_DATABASE_URL must be a URL such as",
		}},
		{"an emulator in a worker pool", []string{"CLOUD_RUN_WORKER_POOL=x", "DATABASE_URL=postgres://x", "PUBSUB_PROJECT=p", "AUTH=iam", "PUBSUB_EMULATOR_HOST=127.0.0.1:1"}, []string{"PUBSUB_EMULATOR_HOST must not be set on Cloud Run"}},
		{"an emulator in production", []string{"K_SERVICE=x", "DATABASE_URL=postgres://x", "PUBSUB_PROJECT=p", "AUTH=iam", "PUBSUB_EMULATOR_HOST=127.0.0.1:1"}, []string{"PUBSUB_EMULATOR_HOST must not be set on Cloud Run"}},
		{"a role without callers", []string{"DATABASE_URL=postgres://x", "PUBSUB_PROJECT=p", "ROLES=publisher,projector"}, nil},
		{"a worker on Cloud Run", []string{"DATABASE_URL=postgres://x", "PUBSUB_PROJECT=p", "K_SERVICE=x", "ROLES=publisher,projector"}, nil},
		{"nobody says who checks", []string{"DATABASE_URL=postgres://x", "PUBSUB_PROJECT=p", "K_SERVICE=x", "AUTH="}, []string{"AUTH is required by the role api"}},
		{"off on Cloud Run", []string{"DATABASE_URL=postgres://x", "PUBSUB_PROJECT=p", "K_SERVICE=x", "AUTH=off"}, []string{"AUTH must not be off on Cloud Run, but one of iam"}},
		{"unknown words", []string{"DATABASE_URL=postgres://x", "PUBSUB_PROJECT=p", "AUTH=none"}, []string{"AUTH must be one of off"}},
		{"limits", []string{"DATABASE_URL=postgres://x", "PUBSUB_PROJECT=p", "AUTH=off", "SERVER_CALLER_RATE=-1", "SERVER_TRUSTED_PROXIES=-1"}, []string{"SERVER_CALLER_RATE cannot be read as uint16", "SERVER_TRUSTED_PROXIES cannot be read as uint8"}},
		{"no limits", []string{"DATABASE_URL=postgres://x", "PUBSUB_PROJECT=p", "AUTH=iam", "SERVER_CALLER_RATE=0"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := empty.readConfig("serve", test.environ)
			if (err == nil) != (len(test.want) == 0) {
				t.Fatalf("readConfig() = %v, want %q", err, test.want)
			}
			if err == nil {
				return
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("readConfig() = %v, want in it %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("readConfig() = %v tells a secret", err)
			}
			if got := strings.Count(err.Error(), "\n"); got != len(test.want) {
				t.Errorf("readConfig() tells %d mistakes, want %d:\n%v", got, len(test.want), err)
			}
		})
	}
}

// A command requires only the settings that it needs.
func TestCommandsNeedOnlyTheirSettings(t *testing.T) {
	t.Parallel()
	for command, environ := range map[string][]string{
		"migrate": {"DATABASE_URL=postgres://x"},
		"stuck":   {"DATABASE_URL=postgres://x", "DATABASE_MAX_CONNS=1"},
		"drain":   {"DATABASE_URL=postgres://x", "PUBSUB_PROJECT=p"},
		"serve":   {"DATABASE_URL=postgres://x", "ROLES=api", "AUTH=off"},
	} {
		if err := empty.Validate(command, environ); err != nil {
			t.Errorf("readConfig(%s) = %v, want nil", command, err)
		}
	}
}

// A process stops within the time that Cloud Run gives between SIGTERM and
// SIGKILL: first the calls, then the loops, then the broker's client, telemetry
// and the database.
func TestStopFitsIntoTheBudget(t *testing.T) {
	t.Parallel()
	const budget = 10 * time.Second // https://cloud.google.com/run/docs/container-contract#instance-shutdown
	c := config{program: empty}
	c.limit()
	loops := max(outbox.StopTimeout+outbox.SettleTimeout, c.limits.Consumer.StopTimeout)
	if stop := c.limits.Transport.DrainTimeout + loops + closeTimeout + flushTimeout + closeTimeout; stop >= budget {
		t.Errorf("a stop takes up to %s, want less than %s", stop, budget)
	}
	if err := c.limits.Outbox.Validate(); err != nil {
		t.Errorf("limit() makes a Config that is refused: %v", err)
	}
}

// The settings of each manifest, and the defaults, are a valid configuration for its command, however many
// subscriptions the service has. A service of the shape pools may have the role of an option.
func TestManifestsAreConfigurations(t *testing.T) {
	t.Parallel()
	manifests, err := filepath.Glob("../../deploy/run/*.yaml")
	if err != nil || len(manifests) < 2 {
		t.Fatalf("manifests: %q, %v", manifests, err)
	}
	for _, path := range manifests {
		text, err := os.ReadFile(path)
		must(t, err)
		var document any
		if err := yaml.Unmarshal(text, &document); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		command, environ := containerOf(document)
		if !slices.Contains([]string{"serve", "drain", "migrate"}, command) || len(environ) == 0 {
			t.Fatalf("%s: runs %q with %q", path, command, environ)
		}
		environ = append(environ, "K_SERVICE=x")
		for _, more := range []string{"", "ROLES=api,reactor", "DATABASE_MAX_CONNS="} {
			if strings.HasPrefix(more, "ROLES") && !slices.Contains(environ, "ROLES=api") {
				continue
			}
			if err := fifty.Validate(command, append(environ, more)); err != nil {
				t.Errorf("%s %s: %v", path, more, err)
			}
		}
		if unknown := unknownSettings(environ); len(unknown) > 0 {
			t.Errorf("%s sets %q, which are no settings", path, unknown)
		}
	}
}

// containerOf returns the command of the one container in a manifest, and its
// environment; a secret, which only databases have, is a URL.
func containerOf(node any) (command string, environ []string) {
	switch node := node.(type) {
	case []any:
		for _, element := range node {
			if command, environ = containerOf(element); command != "" {
				return command, environ
			}
		}
	case map[string]any:
		if args, ok := node["args"].([]any); ok {
			variables, _ := node["env"].([]any)
			for _, variable := range variables {
				variable, _ := variable.(map[string]any)
				value, ok := variable["value"]
				if !ok {
					value = "postgres://secret"
				}
				environ = append(environ, fmt.Sprintf("%v=%v", variable["name"], value))
			}
			return fmt.Sprint(args[0]), environ
		}
		for _, element := range node {
			if command, environ = containerOf(element); command != "" {
				return command, environ
			}
		}
	}
	return "", nil
}

// A secret in the environment does not show in an error.
func TestConfigurationErrorsShowNoValues(t *testing.T) {
	t.Parallel()
	_, err := empty.readConfig("serve", []string{"DATABASE_URL=postgres://u:secret@h/d", "PUBSUB_PROJECT=p", "OUTBOX_RETENTION=secret", "PORT=secret"})
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("readConfig() = %v, want an error without the values", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	s := newProcess("stuck", config{DatabaseURL: "postgres://u:secret@h:port/d", DatabaseMaxConns: 1}, nil)
	if err := s.OpenCommandSide(ctx); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("Open() = %v, want an error without the password", err)
	}
}

// Packages run with their defaults, with which they are tested and measured.
func TestDefaultsAreThoseOfThePackages(t *testing.T) {
	t.Parallel()
	cfg, err := empty.readConfig("serve", []string{"DATABASE_URL=postgres://localhost/x", "PUBSUB_PROJECT=p", "AUTH=iam"})
	must(t, err)
	for _, test := range []struct{ want, got any }{
		{outbox.Config{}.WithDefaults(), cfg.limits.Outbox},
		{consumer.Config{}.WithDefaults(), cfg.limits.Consumer},
		{transport.Config{}.WithDefaults(), cfg.limits.Transport},
	} {
		if diff := cmp.Diff(test.want, test.got); diff != "" {
			t.Errorf("%T (-want +got):\n%s", test.want, diff)
		}
	}
}
