package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"

	"example.com/videocatalog/internal/outbox"
)

// greeting is an option with a setting and a command.
func greeting() Option {
	s := new(struct {
		Word  string `env:"GREETING_WORD" envDefault:"hello" help:"what is said"`
		Times int    `env:"GREETING_TIMES" help:"how often"`
	})
	return Option{
		Name: "greeting", Settings: s, Help: "  server greet NAME                    greet somebody\n",
		Check: func(run Selection) []error {
			if run.Subcommand == "greet" && s.Times < 0 {
				return []error{errors.New("GREETING_TIMES must be 0 or more")}
			}
			return nil
		},
		Subcommands: map[string]Subcommand{"greet": func(_ context.Context, process *Process, args []string, stdout io.Writer) error {
			_, err := fmt.Fprint(stdout, strings.Repeat(s.Word+" "+args[0]+"\n", max(1, s.Times)), process.Subcommand)
			return err
		}},
	}
}

// An option adds commands and settings to a program, with their help and their mistakes.
func TestOptions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args, environ []string
		stdout, log   string
		err           string
	}{
		{[]string{"greet", "you"}, []string{"GREETING_TIMES=2", "GREETING_WORD=hi"}, "hi you\nhi you\ngreet", "", ""},
		{[]string{"greet", "you"}, nil, "hello you\ngreet", "", ""},
		{[]string{"greet", "you"}, []string{"GREETING_TIMES=-1"}, "", "", "GREETING_TIMES must be 0 or more"},
		{[]string{"greet", "you"}, []string{"GREETING_TIMES=secret"}, "", "", "GREETING_TIMES cannot be read as int"},
		{[]string{"leave"}, nil, "", "", "unknown command"},
	} {
		var stdout, log bytes.Buffer
		p := Program{Options: []Option{{Name: "nothing"}, greeting()}}
		err := p.Run(t.Context(), tt.args, append(tt.environ, "DATABASE_URL=postgres://x"), &stdout, &log)
		if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%s %s: error %v, want %q", tt.args, tt.environ, err, tt.err)
		}
		if stdout.String() != tt.stdout || !strings.Contains(log.String(), tt.log) || tt.log == "" && log.Len() > 0 {
			t.Errorf("%s %s: %q, log %q, want %q, %q", tt.args, tt.environ, stdout.String(), log.String(), tt.stdout, tt.log)
		}
	}
}

// The help has every command, also of options. Each command shows it, without any setting.
func TestHelp(t *testing.T) {
	t.Parallel()
	p := Program{Options: []Option{greeting()}}
	for _, args := range [][]string{
		{"help"}, {"--help"}, {"greet", "--help"}, {"serve", "-h"}, {"migrate", "--help"}, {"drain", "--help"},
		{"status", "--help"}, {"stuck", "--help"}, {"retry", "--all", "--help"}, {"skip", "--help"},
	} {
		var help, log bytes.Buffer
		err := p.Run(t.Context(), args, nil, &help, &log)
		if err != nil || !strings.Contains(help.String(), "\n  server [serve]") || !strings.Contains(help.String(), "\n  server greet NAME") {
			t.Errorf("server %s = %v, %q, want the help, with the command of an option", args, err, help.String())
		}
	}
}

// ROLES may have the role of an option, and has it by default. A process with the role needs
// Pub/Sub, both sides, and two connections. An aggregate type with an option for a missing option
// is an error.
func TestRoleOfAnOption(t *testing.T) {
	t.Parallel()
	worker := Option{Name: "workers", Role: "worker", Subscriptions: func([]Registration) []Subscription { return consumers("work", 4) }}
	p := Program{Options: []Option{worker}, Registrations: []Registration{{AggregateType: "order"}}}
	environ := []string{"DATABASE_URL=postgres://x", "AUTH=off"}
	if err := p.Validate("serve", append(environ, "ROLES=worker,cook", "DATABASE_MAX_CONNS=4")); err == nil ||
		!strings.Contains(err.Error(), `ROLES has "cook": it may have api, publisher, projector, worker`) ||
		!strings.Contains(err.Error(), "PUBSUB_PROJECT is required") || !strings.Contains(err.Error(), "DATABASE_MAX_CONNS (4) must be at least 5") {
		t.Errorf("Validate() = %v, want three mistakes", err)
	}
	cfg, err := p.readConfig("serve", append(environ, "PUBSUB_PROJECT=p"))
	if err != nil || !cfg.has("worker") || !cfg.has(roleProjector) || !cfg.hasAny() {
		t.Errorf("roles = %v, %v, want all", cfg.Roles, err)
	}
	p.Registrations[0].Options = map[string]any{"missing": 1}
	p.Registrations[0].Subscriptions = consumers("work", 1)
	if err := p.Validate("serve", append(environ, "PUBSUB_PROJECT=p")); err == nil || !strings.Contains(err.Error(), "the aggregate type order needs the option missing") ||
		!strings.Contains(err.Error(), `two subscriptions have the consumer name "work 0"`) {
		t.Errorf("Validate() = %v, want the option that is missing, and the name that is there twice", err)
	}
}

// BROKER selects the broker of an option, which a process opens once and stops at its end. Without a
// source it is for processes that only publish.
func TestBrokerOfAnOption(t *testing.T) {
	t.Parallel()
	opened, stopped := 0, 0
	sink := Option{Name: "far-sink", NewBroker: func(context.Context, *Process) (Broker, error) {
		opened++
		return Broker{Topic: func(string) outbox.Broker { return nil }, Stop: func() { stopped++ }}, nil
	}}
	p := Program{Options: []Option{sink, {Name: "other"}}}
	environ := []string{"DATABASE_URL=postgres://x", "AUTH=off"}
	if err := p.Validate("migrate", append(environ, "BROKER=other")); err == nil || !strings.Contains(err.Error(), "BROKER must be one of pubsub, sink:") {
		t.Errorf("Validate() = %v, want the brokers that there are", err)
	}
	for roles, want := range map[string]string{"": "BROKER=sink only publishes", "api,publisher": ""} {
		cfg, err := p.readConfig("serve", append(environ, "BROKER=sink", "ROLES="+roles))
		must(t, err)
		opened, stopped = 0, 0
		process := newProcess("serve", cfg, slog.New(slog.DiscardHandler))
		_, err = process.openBroker(t.Context())
		_, _ = process.openBroker(t.Context())
		if process.close(); opened != 1 || stopped != 1 {
			t.Errorf("ROLES=%s: opened %d times and stopped %d times, want once", roles, opened, stopped)
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("ROLES=%s: error %v, want %q", roles, err, want)
		}
	}
}
