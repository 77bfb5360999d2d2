package oidc

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"example.com/videocatalog/internal/app"
)

// bare is a service without aggregate types.
func bare(options ...app.Option) app.Program {
	return app.Program{Options: options}
}

func writePolicy(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "policy.yaml")
	must(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

// Settings that would admit no caller, or contradict each other, are refused, with all mistakes in one error.
// A service without the option refuses AUTH=oidc.
func TestMistakesAreToldAtOnce(t *testing.T) {
	t.Parallel()
	good := []string{"DATABASE_URL=postgres://x", "PUBSUB_PROJECT=p"}
	policy := writePolicy(t, "rules:\n- {any_authenticated: true, methods: [grpc.reflection.v1.ServerReflection/*]}\n")
	complete := []string{"K_SERVICE=x", "AUTH=oidc", "AUTH_AUDIENCE=https://a,https://b", "AUTH_POLICY_FILE=" + policy}
	for name, tt := range map[string]struct {
		environ []string
		want    []string
	}{
		"complete":              {complete, nil},
		"nothing":               {[]string{"AUTH=oidc"}, []string{"AUTH_AUDIENCE is required", "AUTH_POLICY_FILE is required"}},
		"everything bad":        {[]string{"AUTH=oidc", "AUTH_ISSUER=http://accounts.google.com", "AUTH_AUDIENCE=a,,b"}, []string{"AUTH_ISSUER must begin with https://", "AUTH_AUDIENCE is required", "AUTH_POLICY_FILE is required"}},
		"a policy for nobody":   {[]string{"AUTH=iam", "AUTH_POLICY_FILE=" + policy}, []string{"AUTH_POLICY_FILE has no effect"}},
		"off on Cloud Run":      {[]string{"K_SERVICE=x", "AUTH=off"}, []string{"AUTH must not be off on Cloud Run, but one of iam, oidc"}},
		"nobody says who does":  {nil, []string{"AUTH is required by the role api, and must be one of off, iam, oidc"}},
		"another value of AUTH": {[]string{"AUTH=none"}, []string{"AUTH must be one of off, iam, oidc"}},
	} {
		err := bare(Option()).Validate("serve", slices.Concat(good, tt.environ))
		if len(tt.want) == 0 {
			if err != nil {
				t.Errorf("%s: Validate() = %v, want nil", name, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%s: Validate() = nil, want an error", name)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: Validate() = %v, want in it %q", name, err, want)
			}
		}
		if got := strings.Count(err.Error(), "\n"); got != len(tt.want) {
			t.Errorf("%s: Validate() tells %d mistakes, want %d:\n%v", name, got, len(tt.want), err)
		}
	}
	if err := bare(Option()).Validate("migrate", []string{"DATABASE_URL=postgres://x", "K_SERVICE=x", "AUTH_POLICY_FILE=/nowhere"}); err != nil {
		t.Errorf("Validate(migrate) = %v, want nil: nobody calls a command", err)
	}
	if err := bare().Validate("serve", slices.Concat(good, complete)); err == nil || !strings.Contains(err.Error(), "AUTH must be one of off, iam: another value is the name of an option, such as oidc") {
		t.Errorf("Validate() without the option = %v, want a mistake of AUTH that names it", err)
	}
}

// A start fails if the policy cannot be read, or has mistakes. The error has all mistakes.
func TestPolicyMistakesEndTheStart(t *testing.T) {
	t.Parallel()
	bad := writePolicy(t, "rules:\n- {methods: [library.v1.BookService/BurnBook]}\n")
	for file, wants := range map[string][]string{bad: {"rules[0] names nobody", "rules[0].methods[0]"}, "/nowhere": {"open /nowhere"}} {
		s := settings{Issuer: "https://accounts.google.com", Audiences: []string{"a"}, PolicyFile: file}
		_, err := s.newChecker(new(app.Process), []string{"library.v1.BookService/ReadBook"})
		for _, want := range append(wants, "AUTH_POLICY_FILE: ") {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("newChecker(%s) = %v, want in it %q", file, err, want)
			}
		}
	}
}
