package app

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"example.com/videocatalog/internal/auth"
)

// The values of AUTH, besides the names of options: who checks callers.
const (
	authOff = "off"
	authIAM = "iam"
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
			wrong("AUTH is required by the role api, and must be %s: see docs/security.md", c.program.authValues(authOff, authIAM))
		}
	case authOff:
		if c.Environment != development && c.has(roleAPI) {
			wrong("AUTH must not be off in production: set it to %s: see docs/security.md", c.program.authValues(authIAM))
		}
	case authIAM:
	default:
		if c.program.checker(c.Auth) == nil {
			wrong("AUTH must be %s: another value is the name of an option, such as oidc, and needs its line in cmd/server/parts.go", c.program.authValues(authOff, authIAM))
		}
	}
	if c.CallerRate < 0 {
		wrong("SERVER_CALLER_RATE must be 0 (any number) or more")
	}
	if c.TrustedProxies < 0 {
		wrong("SERVER_TRUSTED_PROXIES must be -1 (1 on Cloud Run, else 0) or more")
	}
	return errs
}

// authValues returns some values of AUTH and the names of the parts that check callers, as
// "off, iam or oidc".
func (p Program) authValues(values ...string) string {
	for _, part := range p.Parts {
		if part.NewChecker != nil {
			values = append(values, part.Name)
		}
	}
	if last := len(values) - 1; last > 0 {
		return strings.Join(values[:last], ", ") + " or " + values[last]
	}
	return values[0]
}

// withCaller returns the context of a call with its caller, whom the outbox keeps with the
// events of a command: the one that this process has verified, or else Cloud Run's IAM.
func (c config) withCaller(ctx context.Context, verified string) context.Context {
	if c.Auth == authIAM {
		if caller := auth.Vouched(ctx); caller.Subject != "" {
			verified = caller.String()
		}
	}
	return auth.WithCaller(ctx, verified)
}

// gate makes the gate that admits calls, or nil if no caller is checked.
func (i *instance) gate() (*auth.Gate, error) {
	if i.cfg.Auth == authOff || i.cfg.Auth == "" {
		return nil, nil //nolint:nilnil // there may be none
	}
	cfg := auth.GateConfig{CallerRate: i.cfg.CallerRate, Proxies: i.cfg.TrustedProxies, Log: i.log}
	if part := i.cfg.program.checker(i.cfg.Auth); part != nil {
		var err error
		if cfg.Checker, err = part.NewChecker(i.service()); err != nil {
			return nil, fmt.Errorf("AUTH: %w", err)
		}
	}
	return auth.NewGate(cfg), nil
}
