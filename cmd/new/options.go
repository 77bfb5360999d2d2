package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
)

// options say what the new service is called. They are recorded in template.json.
type options struct {
	Module  string   `json:"module"`
	Service string   `json:"service"`
	Schema  string   `json:"schema"`
	Domain  string   `json:"domain"`
	Without []string `json:"without,omitempty"`

	dir string
}

// setDefaults sets the options that are missing.
func (a *options) setDefaults() {
	a.Service = cmp.Or(a.Service, strings.ToLower(path.Base(a.Module)))
	a.Schema = cmp.Or(a.Schema, strings.ReplaceAll(a.Service, "-", "_")+"_db")
	a.Domain = cmp.Or(a.Domain, a.Service+".example.com")
}

// optional are the parts that a service can do without, by name.
var optional = map[string]string{
	"lab": "lab", "terraform": "deploy/terraform", "decisions": "docs/decisions", "chinese": "README.zh-CN.md",
}

var (
	modulePath  = regexp.MustCompile(`^[a-z0-9]+([.-][a-z0-9]+)*\.[a-z]{2,}(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+$`)
	serviceName = regexp.MustCompile(`^[a-z][a-z0-9-]{4,18}[a-z0-9]$`)
	schemaName  = regexp.MustCompile(`^[a-z][a-z0-9_]{1,39}$`)
	domainName  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+$`)
)

// reserved are names that PostgreSQL, Supabase or this template use for themselves.
var reserved = []string{"public", "information_schema", "auth", "storage", "realtime", "extensions", "graphql", "vault", "cron", "chaos", "video", "catalog"}

// check returns every option that breaks a rule.
func (a *options) check() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch {
	case a.Module == "":
		wrong("--module is required: a Go module path, such as github.com/acme/orders")
	case !modulePath.MatchString(a.Module):
		wrong("--module %q must be a host and a path, such as github.com/acme/orders", a.Module)
	}
	if a.Module != "" || a.Service != "" && a.Service != "." {
		a.checkNames(wrong)
	}
	for _, part := range a.Without {
		if _, ok := optional[part]; !ok {
			wrong("--without %q must be one of lab, terraform, decisions, chinese", part)
		}
	}
	entries, err := os.ReadDir(a.dir)
	switch {
	case err == nil && len(entries) > 0:
		wrong("%s must be a new or an empty folder", a.dir)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (a *options) checkNames(wrong func(string, ...any)) {
	if !serviceName.MatchString(a.Service) {
		wrong("--service %q must have 6 to 20 lower-case letters, digits and hyphens, and begin with a letter: Google Cloud's rule for accounts", a.Service)
	}
	switch {
	case !schemaName.MatchString(a.Schema):
		wrong("--schema %q must have 2 to 40 lower-case letters, digits and underscores, and begin with a letter", a.Schema)
	case strings.HasPrefix(a.Schema, "pg_") || slices.Contains(reserved, a.Schema):
		wrong("--schema %q is a name that PostgreSQL or its platforms use: choose another", a.Schema)
	case a.Schema == a.Service:
		wrong("--schema %q must differ from the service: make generate renames the service in all pages, and must not rename the schema", a.Schema)
	case slices.Contains(keywords, a.Schema):
		wrong("--schema %q is a keyword of SQL: choose another", a.Schema)
	}
	if !domainName.MatchString(a.Domain) {
		wrong("--domain %q must be a domain, such as orders.acme.example", a.Domain)
	}
}

// keywords are the reserved words of PostgreSQL
// (https://www.postgresql.org/docs/current/sql-keywords-appendix.html).
var keywords = strings.Fields(`all analyze and any array as asc asymmetric authorization between bigint binary bit boolean both case cast
	char character check coalesce collate collation column concurrently constraint create cross current_catalog current_date current_role
	current_schema current_time current_timestamp current_user dec decimal default deferrable desc distinct do else end except exists extract false
	fetch float for foreign freeze from full grant greatest group grouping having ilike in initially inner inout int integer intersect interval into
	is isnull join lateral leading least left like limit localtime localtimestamp national natural nchar none normalize not notnull null nullif
	numeric offset on only or order out outer overlaps overlay placing position precision primary real references returning right row select
	session_user setof similar smallint some substring symmetric system_user table tablesample then time timestamp to trailing treat trim true union
	unique user using values varchar variadic verbose when where window with xmlattributes xmlconcat xmlelement xmlexists xmlforest xmlnamespaces
	xmlparse xmlpi xmlroot xmlserialize xmltable analy` + "se") // the British form is a keyword too
