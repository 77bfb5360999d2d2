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

	"example.com/servicekit/naming"
)

// options say what the new service is called. They are recorded in template.json.
type options struct {
	Module  string `json:"module"`
	Service string `json:"service"`
	Schema  string `json:"schema"`
	Domain  string `json:"domain"`
	// Full is the whole reference: the example and every part. Without it a service is lean: the
	// machinery, one entity that cmd/entity makes, and the parts of With.
	Full bool     `json:"full,omitempty"`
	With []string `json:"with,omitempty"`

	// The entity that a lean service has instead of videos and the catalog.
	Entity string `json:"entity,omitempty"`
	Plural string `json:"plural,omitempty"`
	// The fields, transitions and timers of the entity, in the form of cmd/entity.
	Fields      string `json:"fields,omitempty"`
	Transitions string `json:"transitions,omitempty"`
	Timers      string `json:"timers,omitempty"`

	dir     string
	offered []string // the names of the options of the template
}

// setDefaults sets the options that are missing.
func (a *options) setDefaults() {
	a.Service = cmp.Or(a.Service, strings.ToLower(path.Base(majorVersion.ReplaceAllString(a.Module, ""))))
	a.Schema = cmp.Or(a.Schema, strings.ReplaceAll(a.Service, "-", "_")+"_db")
	a.Domain = cmp.Or(a.Domain, a.Service+".example.com")
	if a.Entity != "" {
		a.Plural = cmp.Or(a.Plural, naming.Plural(a.Entity))
	}
	if !a.Full {
		a.Fields = cmp.Or(a.Fields, "title:string")
	}
}

// topic returns the topic of the service's events, as cmd/entity names it. Services of one project share
// its topics, so the name begins with the service.
func (a *options) topic() string {
	return a.Service + "." + write(cmp.Or(a.Entity, "video"), kebab) + ".events"
}

// subscription returns the subscription that builds the query side.
func (a *options) subscription() string {
	if a.Full {
		return a.topic() + ".catalog"
	}
	return a.topic() + "." + write(a.Entity, kebab) + "-views"
}

// view is what a lean service says for the catalog of the example.
const view = "overview"

var (
	modulePath  = regexp.MustCompile(`^[a-z0-9]+([.-][a-z0-9]+)*\.[a-z]{2,}(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+$`)
	refusedPath = regexp.MustCompile(`/vendor(/|$)|/v(0[0-9]*|1)$`)
	serviceName = regexp.MustCompile(`^[a-z][a-z0-9-]{4,18}[a-z0-9]$`)
	schemaName  = regexp.MustCompile(`^[a-z][a-z0-9_]{1,39}$`)
	entityName  = regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
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

// check returns every option that breaks a rule.
func (a *options) check() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch {
	case a.Module == "":
		wrong("--module is required: a Go module path, such as github.com/acme/orders")
	case !modulePath.MatchString(a.Module):
		wrong("--module %q must be a host and a path, such as github.com/acme/orders", a.Module)
	case refusedPath.MatchString(a.Module):
		wrong("--module %q must not have the part vendor, nor end in /v1 or a version that begins with 0: the go command refuses it", a.Module)
	}
	if a.Module != "" || a.Service != "" && a.Service != "." {
		a.checkNames(wrong)
	}
	if a.Entity != "" {
		a.checkWords(wrong)
	}
	switch {
	case !a.Full && a.Entity == "":
		wrong("--entity is required: what the service stores, such as order; --full keeps the example instead")
	case a.Full && a.Entity+a.Plural+a.Fields+a.Transitions+a.Timers != "":
		wrong("--entity and its plural, fields, transitions and timers must not be given with --full, which keeps the example: add it with cmd/entity")
	case a.Timers != "" && !slices.Contains(a.With, "reactions"):
		wrong("--timers needs --with reactions: the option fires them")
	}
	if a.Full && len(a.With) > 0 {
		wrong("--with must not be given with --full, which has every part")
	}
	errs = append(errs, a.checkWith())
	entries, err := os.ReadDir(a.dir)
	switch {
	case err == nil && len(entries) > 0:
		wrong("%s must be a new or an empty folder", a.dir)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// checkWith returns the parts that the template does not offer.
func (a *options) checkWith() error {
	var errs []error
	offered := slices.Concat(choices, a.offered)
	for _, part := range a.With {
		if !slices.Contains(offered, part) {
			errs = append(errs, fmt.Errorf("--with %q must be one of %s", part, strings.Join(offered, ", ")))
		}
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
		wrong("--schema %q must differ from the service: a later change of one must not change the other", a.Schema)
	case naming.IsSQLKeyword(a.Schema):
		wrong("--schema %q is a keyword of SQL: choose another", a.Schema)
	}
	if strings.HasPrefix(a.Service, "goog") {
		wrong("--service %q begins with goog, which Pub/Sub keeps for itself, and topics begin with it: choose another", a.Service)
	}
	if !domainName.MatchString(a.Domain) {
		wrong("--domain %q must be a domain, such as orders.acme.example", a.Domain)
	}
}

// checkWords checks the words of the entity.
func (a *options) checkWords(wrong func(string, ...any)) {
	switch {
	case !a.checkWord(wrong, "entity", a.Entity), !a.checkWord(wrong, "plural", a.Plural):
	case a.Plural == a.Entity:
		wrong("--plural %q must differ from the singular: choose another, such as %s_items", a.Plural, a.Entity)
	}
}

// checkWord checks one of the words. The plural may be the service: orders is the service of
// the entity order.
func (a *options) checkWord(wrong func(string, ...any), flag, name string) (ok bool) {
	isPart := func(word string) bool { return slices.Contains(strings.Split(name, "_"), word) }
	switch {
	case !entityName.MatchString(name) || len(name) < 2 || len(name) > 24:
		wrong("--%s %q must have 2 to 24 lower-case letters, with one underscore between words", flag, name)
	case name == a.Schema || flag != "plural" && write(name, kebab) == a.Service:
		wrong("--%s %q must differ from the service and the schema: a later change of one must not change the other", flag, name)
	case slices.ContainsFunc([]string{"video", "videos", "film", "films", "catalog", "catalogs"}, isPart):
		wrong("--%s %q has a word of the example, which --full keeps", flag, name)
	case isPart("id"):
		wrong("--%s %q has the word id, which Go and SQL write in different ways: choose another", flag, name)
	case naming.IsClientKeyword(name):
		wrong("--%s %q is a word of Java, JavaScript or Python, which the API linter refuses: choose another, such as order_%s", flag, name, name)
	case naming.HasPreposition(name):
		wrong("--%s %q has a preposition, which the API linter refuses: choose another", flag, name)
	case slices.ContainsFunc(machinery, func(word string) bool { return word == name || naming.Plural(word) == name }):
		wrong("--%s %q is a word of the machinery: choose another, such as order_%s", flag, name, name)
	default:
		return true
	}
	return false
}

// machinery are words that every service has for something else, the packages and folders of
// Go among them, and the keywords of protobuf that stand where an entity would.
var machinery = strings.Fields(`aggregate attribute audit claim consumer decision domain entry envelope event fence google grpc health
	inbox internal lane lease message outbox problem projection projector publisher pubsub quarantine
	schema server service store subscription support telemetry testdata topic vendor
	enum extend extensions group import oneof option optional package repeated required reserved returns rpc stream syntax`)
