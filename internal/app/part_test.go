package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// greeting is an option with a setting and a command.
func greeting() Part {
	s := new(struct {
		Word  string `env:"GREETING_WORD" envDefault:"hello" help:"what is said"`
		Times int    `env:"GREETING_TIMES" help:"how often"`
	})
	return Part{
		Name: "greeting", Settings: s, Help: "  server greet NAME                    greet somebody\n",
		Check: func(p Process) []error {
			if p.Command == "greet" && s.Times < 0 {
				return []error{errors.New("GREETING_TIMES must be 0 or more")}
			}
			return nil
		},
		Commands: map[string]Command{"greet": func(_ context.Context, service *Service, args []string, stdout io.Writer) error {
			_, err := fmt.Fprint(stdout, strings.Repeat(s.Word+" "+args[0]+"\n", max(1, s.Times)), service.Command)
			return err
		}},
	}
}

// An option adds commands and settings to a program, with their help and their mistakes. Settings
// of an earlier command are forgotten.
func TestParts(t *testing.T) {
	t.Parallel()
	p := Program{Registrations: func(*pgxpool.Pool) []Registration { return nil }, Parts: []Part{{Name: "nothing"}, greeting()}}
	for _, tt := range []struct {
		args, environ []string
		stdout, log   string
		err           string
	}{
		{[]string{"greet", "you"}, []string{"GREETING_TIMES=2", "GREETING_WORD=hi"}, "hi you\nhi you\ngreet", "", ""},
		{[]string{"greet", "you"}, nil, "hello you\ngreet", "", ""},
		{[]string{"greet", "you"}, []string{"GREETING_WORDS=secret"}, "hello you\ngreet", "GREETING_WORDS", ""},
		{[]string{"greet", "you"}, []string{"GREETING_TIMES=-1"}, "", "", "GREETING_TIMES must be 0 or more"},
		{[]string{"greet", "you"}, []string{"GREETING_TIMES=secret"}, "", "", "GREETING_TIMES must be a whole number"},
		{[]string{"leave"}, nil, "", "", "unknown command"},
	} {
		var stdout, log bytes.Buffer
		err := p.Run(t.Context(), tt.args, append(tt.environ, "DATABASE_URL=postgres://x"), &stdout, &log)
		if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%s %s: error %v, want %q", tt.args, tt.environ, err, tt.err)
		}
		if stdout.String() != tt.stdout || !strings.Contains(log.String(), tt.log) || tt.log == "" && log.Len() > 0 {
			t.Errorf("%s %s: %q, log %q, want %q, %q", tt.args, tt.environ, stdout.String(), log.String(), tt.stdout, tt.log)
		}
	}
	var help strings.Builder
	if err := p.printHelp(&help); err != nil || !strings.Contains(help.String(), "server greet NAME") || !strings.Contains(help.String(), "GREETING_WORD") {
		t.Errorf("help = %v, %s", err, help.String())
	}
}
