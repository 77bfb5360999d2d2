// Package tenancy keeps the rows of several customers, the tenants, apart in one database. A call sees and writes the
// rows of one tenant, which a claim of its token names.
//
// Two things separate tenants. Each query of a table with tenant_id names that column, so that it reads an index
// of one tenant. And PostgreSQL's row security hides the other tenants from a query that forgets it: calls have
// users of their own, who see the tenant of the setting app.tenant, or nothing. The setting is sent together with
// BEGIN, or with a single statement, and ends with the transaction.
//
// Loops, commands, the console and repair see all tenants. So do the owner of the tables, and people with support_ro.
// The package does not limit what a tenant uses. Ids are unique across tenants, so no ordering key
// and no attribute of an event has the tenant.
package tenancy

import (
	"context"
	"embed"
	"errors"
	"fmt"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/tenant"
	"example.com/videocatalog/internal/transport"
)

//go:embed migrations/*.sql
var migrations embed.FS

type settings struct {
	Commands string `env:"TENANCY_DATABASE_URL" help:"DATABASE_URL for API calls, with a user who sees one tenant at a time; required if a table has tenant_id"`
	Queries  string `env:"TENANCY_READ_DATABASE_URL" help:"the same for READ_DATABASE_URL, where that differs from DATABASE_URL; default: TENANCY_DATABASE_URL"`
	Claim    string `env:"TENANCY_CLAIM" envDefault:"tenant" help:"claim of a token with the tenant of its caller, a string of at most 64 bytes"`
}

// Option returns the option.
func Option() app.Option {
	s := new(settings)
	return app.Option{
		Name: "tenancy", Settings: s, Check: s.check, Start: s.start, Tenants: &app.Tenants{Scope: s.scope, URL: s.url}, Migrations: migrations,
	}
}

// check returns the mistakes in the settings.
func (s *settings) check(run app.Selection) []error {
	var errs []error
	if s.Queries != "" && s.Commands == "" {
		errs = append(errs, errors.New("TENANCY_READ_DATABASE_URL needs TENANCY_DATABASE_URL"))
	}
	for name, address := range map[string]string{"TENANCY_DATABASE_URL": s.Commands, "TENANCY_READ_DATABASE_URL": s.Queries} {
		if err := db.CheckURL(address); address != "" && err != nil {
			errs = append(errs, fmt.Errorf("%s %w", name, err))
		}
	}
	if s.Commands != "" && run.Subcommand == "serve" && (run.Auth == "off" || run.Auth == "iam") {
		errs = append(errs, errors.New("AUTH must be an option that verifies tokens, such as oidc: TENANCY_DATABASE_URL is set, and a tenant is a claim that somebody has verified"))
	}
	return errs
}

// url returns the URL for the API calls to a side; empty: TENANCY_DATABASE_URL is not set.
func (s *settings) url(side string) string {
	if side == transport.SideQueries && s.Queries != "" {
		return s.Queries
	}
	return s.Commands
}

// scope returns the context of a call of the tenant that its verified token names.
func (s *settings) scope(ctx context.Context, token string) (context.Context, error) {
	if s.Commands == "" {
		return ctx, nil
	}
	id, err := claim(token, s.Claim)
	if err != nil {
		return ctx, err
	}
	return tenant.With(ctx, id), nil
}
