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

	"example.com/servicekit/entity"
	"example.com/servicekit/naming"
)

// options describe the new service. template.json records them.
type options struct {
	Module  string `json:"module"`
	Service string `json:"service"`
	Schema  string `json:"schema"`
	Domain  string `json:"domain"`
	// Full is the whole reference: the example and every part. Without it a service is lean: the
	// machinery, one entity that cmd/entity makes, and the parts of With.
	Full bool     `json:"full,omitempty"`
	With []string `json:"with,omitempty"`
	// Purpose is what the service is for, in a sentence: its README begins with it.
	Purpose string `json:"purpose,omitempty"`

	// The entity that a lean service has instead of videos and the catalog.
	Entity string `json:"entity,omitempty"`
	Plural string `json:"plural,omitempty"`
	// The fields, filters, transitions, timers and flags of the entity, in the form of cmd/entity.
	Fields      string `json:"fields,omitempty"`
	Refs        string `json:"refs,omitempty"`
	Transitions string `json:"transitions,omitempty"`
	Timers      string `json:"timers,omitempty"`
	Audited     bool   `json:"audited,omitempty"`
	Batch       bool   `json:"batch,omitempty"`

	dir     string
	with    string   // With as it was typed
	offered []string // the names of the options of the template
}

// setDefaults sets the options that are missing. For a good module path each default keeps the rules.
func (a *options) setDefaults() {
	a.Service = cmp.Or(a.Service, serviceOf(a.Module))
	a.Schema = cmp.Or(a.Schema, strings.TrimPrefix(strings.ReplaceAll(a.Service, "-", "_"), "pg_")+"_db")
	a.Domain = cmp.Or(a.Domain, a.Service+".example.com")
	if a.with != "" {
		a.With = list(a.with)
	}
	if a.Entity != "" {
		a.Plural = cmp.Or(a.Plural, naming.Plural(a.Entity))
		a.Purpose = cmp.Or(a.Purpose, "Manages "+plain(a.Plural)+".")
	}
	if !a.Full {
		a.Fields = cmp.Or(a.Fields, "title:string")
	}
}

// serviceOf returns the default name of a service for the path of its module.
func serviceOf(module string) string {
	if module == "" {
		return ""
	}
	name := strings.Trim(notOfService.ReplaceAllString(strings.ToLower(path.Base(majorVersion.ReplaceAllString(module, ""))), "-"), "-")
	if name == "" || name[0] < 'a' || strings.HasPrefix(name, "goog") {
		name = "my-" + name
	}
	if len(name) < 6 {
		name = strings.TrimSuffix(name, "-") + "-service"
	}
	return strings.TrimRight(name[:min(len(name), 20)], "-")
}

// notOfService matches characters that the name of a service must not have.
var notOfService = regexp.MustCompile(`[^a-z0-9]+`)

// topic returns the topic of the service's events, as cmd/entity names it. Services of one project share
// its topics, so the name begins with the name of the service.
func (a *options) topic() string {
	return a.Service + "." + kebab(cmp.Or(a.Entity, "video")) + ".events"
}

// subscription returns the subscription that builds the query side.
func (a *options) subscription() string {
	if a.Full {
		return a.topic() + ".catalog"
	}
	return a.topic() + "." + kebab(a.Entity) + "-views"
}

// view is the word of a lean service for the catalog of the example.
const view = "view"

var (
	modulePath  = regexp.MustCompile(`^[a-z0-9]+([.-][a-z0-9]+)*\.[a-z]{2,}(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+$`)
	refusedPath = regexp.MustCompile(`/vendor(/|$)|/v(0[0-9]*|1)$`)
	serviceName = regexp.MustCompile(`^[a-z][a-z0-9-]{4,18}[a-z0-9]$`)
	schemaName  = regexp.MustCompile(`^[a-z][a-z0-9_]{1,39}$`)
	domainName  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+$`)
)

// majorVersion matches the end of a module's path that is no part of its name: orders/v2, orders.v2.
var majorVersion = regexp.MustCompile(`[/.]v[0-9]+$`)

// reserved are names that PostgreSQL, Supabase or this template use for themselves.
var reserved = []string{"public", "information_schema", "auth", "storage", "realtime", "extensions", "graphql", "vault", "cron", "chaos", "video", "catalog"}

// without returns the parts that the service does not have.
func (a *options) without() []string {
	if a.Full {
		return []string{templateOnly, "lab"}
	}
	left := []string{templateOnly, full}
	for part := range parts {
		if !slices.Contains(a.With, part) {
			left = append(left, part)
		}
	}
	return left
}

// withoutOptions returns the options that the service does not have.
func (a *options) withoutOptions() []string {
	if a.Full {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(a.offered), func(name string) bool { return slices.Contains(a.With, name) })
}

// mistake is a rule that an option breaks.
type mistake struct{ flag, rule string }

func (m mistake) Error() string { return "--" + m.flag + " " + m.rule }

// mistakes are the rules that the options break.
type mistakes []mistake

func (all *mistakes) add(flag, format string, args ...any) {
	*all = append(*all, mistake{flag, fmt.Sprintf(format, args...)})
}

func (all mistakes) join() error {
	var errs []error
	for _, m := range all {
		errs = append(errs, m)
	}
	return errors.Join(errs...)
}

// check returns every option that breaks a rule.
func (a *options) check() error {
	return errors.Join(a.mistakes().join(), a.checkFolder())
}

// checkFolder returns an error if the folder is not empty.
func (a *options) checkFolder() error {
	entries, err := os.ReadDir(a.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil && len(entries) > 0:
		return fmt.Errorf("%s must be a new or an empty folder", a.dir)
	}
	return err
}

func (a *options) mistakes() (all mistakes) {
	switch {
	case a.Module == "":
		all.add("module", "is required: a Go module path, such as github.com/acme/orders")
	case !modulePath.MatchString(a.Module):
		all.add("module", "%q must be a host and a path, such as github.com/acme/orders", a.Module)
	case refusedPath.MatchString(a.Module):
		all.add("module", "%q must not have the part vendor, nor end in /v1 or a version that begins with 0: the go command refuses it", a.Module)
	}
	if a.Module != "" || a.Service != "" {
		a.checkNames(&all)
	}
	if a.Entity != "" {
		a.checkEntity(&all)
	}
	switch {
	case !a.Full && a.Entity == "":
		all.add("entity", "is required: what the service stores, such as order; --full keeps the example instead")
	case a.Full && (a.Audited || a.Batch || a.Entity+a.Plural+a.Fields+a.Refs+a.Transitions+a.Timers+a.Purpose != ""):
		all.add("entity", "and its plural, fields, refs, transitions, timers, flags and purpose must not be given with --full, which keeps the example: add it with cmd/entity")
	case a.Timers != "" && !slices.Contains(a.With, "reactions"):
		all.add("timers", "needs --with reactions: the option fires them")
	}
	if strings.ContainsAny(a.Purpose, "\r\n") || len(a.Purpose) > 300 {
		all.add("purpose", "must be one line of at most 300 characters")
	}
	if a.Full && len(a.With) > 0 {
		all.add("with", "must not be given with --full, which has every part")
	}
	a.checkWith(&all)
	return all
}

// checkWith adds a mistake for each part of With that the template does not offer.
func (a *options) checkWith(all *mistakes) {
	offered := slices.Concat(choices, a.offered)
	for _, part := range a.With {
		if !slices.Contains(offered, part) {
			all.add("with", "%q must be one of %s", part, strings.Join(offered, ", "))
		}
	}
	if slices.Contains(a.With, "tenancy") && !slices.Contains(a.With, "oidc") {
		all.add("with", "tenancy needs oidc, which verifies the tokens that name tenants")
	}
}

func (a *options) checkNames(all *mistakes) {
	if !serviceName.MatchString(a.Service) {
		all.add("service", "%q must have 6 to 20 lower-case letters, digits and hyphens, and begin with a letter, such as %s: Google Cloud's rule for accounts",
			a.Service, serviceOf(a.Service))
	}
	switch {
	case !schemaName.MatchString(a.Schema):
		all.add("schema", "%q must have 2 to 40 lower-case letters, digits and underscores, and begin with a letter", a.Schema)
	case strings.HasPrefix(a.Schema, "pg_") || slices.Contains(reserved, a.Schema):
		all.add("schema", "%q is a name that PostgreSQL or its platforms use: choose another, such as %s_db", a.Schema, strings.TrimPrefix(a.Schema, "pg_"))
	case slices.Contains([]string{a.Service, a.Entity, a.Plural}, a.Schema):
		all.add("schema", "%q must differ from the service, the entity and its plural: a later change of one must not change the other", a.Schema)
	case naming.IsSQLKeyword(a.Schema):
		all.add("schema", "%q is a keyword of SQL: choose another, such as %[1]s_db", a.Schema)
	}
	if strings.HasPrefix(a.Service, "goog") {
		all.add("service", "%q begins with goog, which Pub/Sub keeps for itself, and topics begin with it: choose another", a.Service)
	}
	if !domainName.MatchString(a.Domain) {
		all.add("domain", "%q must be a domain, such as orders.acme.example", a.Domain)
	}
}

// checkEntity checks what describes the entity by the rules of cmd/entity. It reports the first option that
// breaks a rule: the later ones depend on it.
func (a *options) checkEntity(all *mistakes) {
	const anyField = "title:string"
	for _, rule := range []struct {
		flag string
		err  error
	}{
		{"entity", entity.Check(a.Entity, "", anyField, "", "", "", false)},
		{"plural", entity.Check(a.Entity, a.Plural, anyField, "", "", "", false)},
		{"fields", entity.Check(a.Entity, a.Plural, a.Fields, "", "", "", false)},
		{"refs", entity.Check(a.Entity, a.Plural, a.Fields, a.Refs, "", "", false)},
		{"transitions", entity.Check(a.Entity, a.Plural, a.Fields, a.Refs, a.Transitions, "", false)},
		{"timers", entity.Check(a.Entity, a.Plural, a.Fields, a.Refs, a.Transitions, a.Timers, false)},
		{"audited", entity.Check(a.Entity, a.Plural, a.Fields, a.Refs, a.Transitions, a.Timers, a.Audited)},
	} {
		if rule.err != nil {
			all.add(rule.flag, "%s", strings.ReplaceAll(rule.err.Error(), "\n", "; "))
			return
		}
	}
}
