package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"example.com/videocatalog/internal/auth"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/port"
)

// The values of AUTH: who checks callers.
const (
	authOff  = "off"
	authIAM  = "iam"
	authOIDC = "oidc"
)

const (
	production  = "production"
	development = "development"
)

// onCloudRun sets the defaults that depend on whether the process runs on Cloud Run.
func (c *config) onCloudRun(yes bool) {
	environment, proxies := development, 0
	if yes {
		environment, proxies = production, 1
	}
	c.Environment = cmp.Or(c.Environment, environment)
	if c.TrustedProxies == -1 {
		c.TrustedProxies = proxies
	}
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

// checkCallers returns the mistakes in the settings about callers and their limits.
func (c config) checkCallers() []error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !slices.Contains([]string{production, development}, c.Environment) {
		wrong("ENVIRONMENT must be production or development")
	}
	switch c.Auth {
	case "": // the same as off for the other roles, which serve no calls
		if c.has(roleAPI) {
			wrong("AUTH is required by the role api: iam if Cloud Run's IAM checks callers, oidc for this process to check them, or off for nobody to, which production does not allow")
		}
	case authOff:
		if c.Environment != development && c.has(roleAPI) {
			wrong("AUTH must not be off in production: set it to iam if Cloud Run's IAM checks callers, or to oidc for this process to check them")
		}
	case authIAM:
	case authOIDC:
		errs = append(errs, c.checkOIDC()...)
	default:
		wrong("AUTH must be off, iam or oidc")
	}
	if c.Auth != authOIDC && c.PolicyFile != "" {
		wrong("AUTH_POLICY_FILE has no effect without AUTH=oidc, because callers are not identified: unset it, or set AUTH=oidc")
	}
	if c.CallerRate < 0 {
		wrong("SERVER_CALLER_RATE must be 0 (any number) or more")
	}
	if c.TrustedProxies < 0 {
		wrong("SERVER_TRUSTED_PROXIES must be -1 (1 on Cloud Run, else 0) or more")
	}
	for _, origin := range c.CORSOrigins {
		if err := port.CheckOrigin(origin); err != nil {
			wrong("SERVER_CORS_ORIGINS: %w", err)
		}
	}
	return errs
}

func (c config) checkOIDC() []error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := auth.CheckIssuer(c.Issuer); err != nil {
		wrong("AUTH_ISSUER %w", err)
	}
	if len(c.Audiences) == 0 || slices.Contains(c.Audiences, "") {
		wrong("AUTH_AUDIENCE is required by AUTH=oidc, and none may be empty: the URL of the service, for which callers request their tokens")
	}
	if c.PolicyFile == "" {
		wrong("AUTH_POLICY_FILE is required by AUTH=oidc: without a policy nobody may do anything")
		return errs
	}
	if _, err := c.policy(); err != nil {
		for line := range strings.Lines(err.Error()) {
			wrong("AUTH_POLICY_FILE: %s", strings.TrimSpace(line))
		}
	}
	return errs
}

func (c config) policy() (*auth.Policy, error) {
	text, err := os.ReadFile(c.PolicyFile)
	if err != nil {
		return nil, err
	}
	return auth.ParsePolicy(text, c.program.Methods())
}

// withCaller returns the context of a call with its caller, whom the outbox keeps with the
// events of a command: the one that this process has verified, or else Cloud Run's IAM.
func (c config) withCaller(ctx context.Context, verified string) context.Context {
	if c.Auth == authIAM {
		if caller := auth.Vouched(ctx); caller.Subject != "" {
			verified = caller.String()
		}
	}
	return envelope.WithCaller(ctx, verified)
}

// callers makes the gate that admits calls. If this process checks tokens, it also returns
// the verifier, whose Run must then be called. Both are nil if no caller is checked.
func (c config) callers(log *slog.Logger) (*auth.Gate, *auth.Verifier, error) {
	if c.Auth == authOff || c.Auth == "" {
		return nil, nil, nil
	}
	cfg := auth.GateConfig{CallerRate: c.CallerRate, Proxies: c.TrustedProxies, Log: log}
	if c.Auth == authOIDC {
		verifier, verifierErr := auth.NewVerifier(auth.VerifierConfig{Issuer: c.Issuer, Audiences: c.Audiences, Log: log})
		policy, policyErr := c.policy()
		if err := errors.Join(verifierErr, policyErr); err != nil {
			return nil, nil, fmt.Errorf("AUTH: %w", err)
		}
		cfg.Verifier, cfg.Policy = verifier, policy
	}
	gate, err := auth.NewGate(cfg)
	return gate, cfg.Verifier, err
}
