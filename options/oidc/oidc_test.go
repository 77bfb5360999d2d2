package oidc

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/app"
)

// bare is a service without aggregate types.
func bare(parts ...app.Part) app.Program {
	return app.Program{Registrations: func(*pgxpool.Pool) []app.Registration { return nil }, Parts: parts}
}

func writePolicy(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// Settings that would let nobody in, or say one thing and do another, are refused, all at once.
// Without the option AUTH=oidc is refused.
func TestMistakesAreToldAtOnce(t *testing.T) {
	t.Parallel()
	good := []string{"DATABASE_URL=postgres://x", "PUBSUB_PROJECT=p"}
	policy := writePolicy(t, "rules:\n- {any_authenticated: true, methods: [grpc.reflection.v1.ServerReflection/*]}\n")
	bad := writePolicy(t, "rules:\n- {methods: [library.v1.BookService/BurnBook]}\n")
	complete := []string{"K_SERVICE=x", "AUTH=oidc", "AUTH_AUDIENCE=https://a,https://b", "AUTH_POLICY_FILE=" + policy}
	for name, tt := range map[string]struct {
		environ []string
		want    []string
	}{
		"complete":              {complete, nil},
		"nothing":               {[]string{"AUTH=oidc"}, []string{"AUTH_AUDIENCE is required", "AUTH_POLICY_FILE is required"}},
		"everything bad":        {[]string{"AUTH=oidc", "AUTH_ISSUER=http://accounts.google.com", "AUTH_AUDIENCE=a,,b", "AUTH_POLICY_FILE=" + bad}, []string{"AUTH_ISSUER must begin with https://", "AUTH_AUDIENCE is required", "AUTH_POLICY_FILE: rules[0] names nobody", "AUTH_POLICY_FILE: rules[0].methods[0]"}},
		"no such policy":        {[]string{"AUTH=oidc", "AUTH_AUDIENCE=a", "AUTH_POLICY_FILE=/nowhere"}, []string{"AUTH_POLICY_FILE: open /nowhere"}},
		"a policy for nobody":   {[]string{"AUTH=iam", "AUTH_POLICY_FILE=" + policy}, []string{"AUTH_POLICY_FILE has no effect"}},
		"off in production":     {[]string{"K_SERVICE=x", "AUTH=off"}, []string{"AUTH must not be off in production: set it to iam or oidc"}},
		"nobody says who does":  {nil, []string{"AUTH is required by the role api, and must be off, iam or oidc"}},
		"another value of AUTH": {[]string{"AUTH=none"}, []string{"AUTH must be off, iam or oidc"}},
	} {
		err := bare(Part()).Validate("serve", slices.Concat(good, tt.environ))
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
	if err := bare(Part()).Validate("migrate", []string{"DATABASE_URL=postgres://x", "K_SERVICE=x", "AUTH_POLICY_FILE=/nowhere"}); err != nil {
		t.Errorf("Validate(migrate) = %v, want nil: nobody calls a command", err)
	}
	if err := bare().Validate("serve", slices.Concat(good, complete)); err == nil || !strings.Contains(err.Error(), "AUTH must be off or iam: another value is the name of an option, such as oidc") {
		t.Errorf("Validate() without the option = %v, want a mistake of AUTH that names it", err)
	}
}
