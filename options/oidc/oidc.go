// Package oidc checks callers in this process, with AUTH=oidc: each call needs an OpenID Connect
// ID token (https://openid.net/specs/openid-connect-core-1_0.html#IDToken), and a rule of the
// policy that allows its method. The policy is checked as a whole when the process starts.
//
// A token is accepted only if the issuer signed it for one of our audiences and it is valid
// now. The issuer's keys are read with one request at a time, at most every ten seconds, even if
// many tokens name an unknown key. While the issuer is unavailable the last keys stay valid for
// a day.
//
// The package has no users and no sessions, and does not ask the issuer whether a token was
// revoked. A token is valid until it expires, and a stream may outlive its token until the
// stream's lifetime ends. The package owns no table.
package oidc

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/auth"
)

type settings struct {
	Issuer     string   `env:"AUTH_ISSUER" envDefault:"https://accounts.google.com" help:"OpenID Connect issuer whose ID tokens count"`
	Audiences  []string `env:"AUTH_AUDIENCE" help:"audiences, separated by commas, of which an ID token must have one, such as the URL of the service; required by AUTH=oidc"`
	PolicyFile string   `env:"AUTH_POLICY_FILE" help:"YAML or JSON that says who may call what, see options/oidc/README.md; required by AUTH=oidc"`
}

// name is the name of the option, and its value of AUTH.
const name = "oidc"

// Option returns the option.
func Option() app.Option {
	s := new(settings)
	return app.Option{Name: name, Settings: s, Check: s.check, NewChecker: s.newChecker}
}

// check returns the mistakes in the settings.
func (s *settings) check(run app.Selection) []error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch {
	case run.Subcommand != "serve":
		return nil
	case run.Auth != name && s.PolicyFile != "":
		wrong("AUTH_POLICY_FILE has no effect without AUTH=oidc, because callers are not identified: unset it, or set AUTH=oidc")
		return errs
	case run.Auth != name:
		return nil
	}
	if err := checkIssuer(s.Issuer); err != nil {
		wrong("AUTH_ISSUER %w", err)
	}
	if len(s.Audiences) == 0 || slices.Contains(s.Audiences, "") {
		wrong("AUTH_AUDIENCE is required by AUTH=oidc, and none may be empty: the URL of the service, for which callers request their tokens")
	}
	if s.PolicyFile == "" {
		wrong("AUTH_POLICY_FILE is required by AUTH=oidc: without a policy nobody may do anything")
	}
	return errs
}

func (s *settings) policy(methods []string) (*policy, error) {
	text, err := os.ReadFile(s.PolicyFile)
	if err != nil {
		return nil, fmt.Errorf("AUTH_POLICY_FILE: %w", err)
	}
	p, err := parsePolicy(text, methods)
	if err != nil {
		return nil, fmt.Errorf("AUTH_POLICY_FILE: %w", err)
	}
	return p, nil
}

// checker identifies callers by their tokens, and allows the calls that the policy allows.
type checker struct {
	*verifier
	*policy
}

func (s *settings) newChecker(process *app.Process, methods []string) (auth.Checker, error) {
	verifier, verifierErr := newVerifier(verifierConfig{Issuer: s.Issuer, Audiences: s.Audiences, Log: process.Log})
	policy, policyErr := s.policy(methods)
	if err := errors.Join(verifierErr, policyErr); err != nil {
		return nil, err
	}
	process.Go("keys of the issuer", verifier.Run, nil)
	return checker{verifier, policy}, nil
}
