// Package names has the names of the service, its topics and its subscriptions. Only
// names.yaml and the files of topics, one per topic, define them. The scripts read
// deploy/names.sh, which make generate writes. Terraform reads the files itself.
package names

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Names is the content of names.yaml, with the topics.
type Names struct {
	Service     string  `yaml:"service"`
	ErrorDomain string  `yaml:"error_domain"`
	Topics      []Topic `yaml:"-"` // in the order of the names of their files
}

// Topic is a Pub/Sub topic: the content of a file of topics.
type Topic struct {
	Name           string   `yaml:"name"`            // its schema has the same name
	AggregateTypes []string `yaml:"aggregate_types"` // their events are published there
	Schema         string   `yaml:"schema"`          // path of its proto file, from the root of the repository
	Consumers      []string `yaml:"consumers"`
	// Foreign says that another service owns the topic and publishes there. This one has only
	// the subscriptions of its consumers, which it names differently from all other services.
	Foreign bool `yaml:"foreign"`
	// Project is the Google Cloud project of a foreign topic. Empty: it is in that of this service.
	Project string `yaml:"project"`
}

// Subscription returns the name of a consumer's subscription.
func (t Topic) Subscription(consumer string) string { return t.Name + "." + consumer }

// DeadLetters returns the name of the topic that keeps the dead letters of a consumer, and
// of the subscription to that topic.
func (t Topic) DeadLetters(consumer string) string { return t.Subscription(consumer) + ".dead" }

//go:embed names.yaml topics
var files embed.FS

var all = func() Names {
	n, err := Parse(files)
	if err != nil {
		panic(err) //nolint:forbidigo // the files are part of the program; TestNames reads them too
	}
	return n
}()

// Service returns the name of the service.
func Service() string { return all.Service }

// ErrorDomain returns the domain of the reasons of errors, in google.rpc.ErrorInfo.
func ErrorDomain() string { return all.ErrorDomain }

// Topics returns all topics.
func Topics() []Topic { return slices.Clone(all.Topics) }

// TopicOf returns the topic of an aggregate type. If there is none, a file of topics is
// missing, and TopicOf panics.
func TopicOf(aggregateType string) Topic {
	for _, t := range all.Topics {
		if slices.Contains(t.AggregateTypes, aggregateType) {
			return t
		}
	}
	panic("topics/*.yaml: no topic has the aggregate type " + aggregateType) //nolint:forbidigo // a mistake in the program, met at its start
}

// Google Cloud's rules for names. A service account is called SERVICE-publisher, and its
// name has at most 30 characters.
var (
	serviceRule  = regexp.MustCompile(`^[a-z][a-z0-9-]{4,18}[a-z0-9]$`)
	topicRule    = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._~%+-]{2,199}$`)
	projectRule  = regexp.MustCompile(`^[a-z][a-z0-9-]{4,28}[a-z0-9]$`)
	consumerRule = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,29}$`)
)

// IsProject reports whether a text can be the id of a Google Cloud project.
func IsProject(id string) bool { return projectRule.MatchString(id) }

// Parse reads names.yaml and topics/*.yaml. The error names every field that breaks a rule,
// with its file.
func Parse(fsys fs.FS) (Names, error) {
	const file = "names.yaml"
	var n Names
	if err := decode(fsys, file, &n); err != nil {
		return Names{}, err
	}
	var errs []error
	if !serviceRule.MatchString(n.Service) {
		errs = append(errs, fmt.Errorf("%s: service is %q, want %s", file, n.Service, serviceRule))
	}
	if n.ErrorDomain == "" {
		errs = append(errs, fmt.Errorf("%s: error_domain is empty", file))
	}
	topics, err := fs.Glob(fsys, "topics/*.yaml") // sorted
	errs = append(errs, err)
	where := make(map[string]string) // the files of what must be there once
	for _, file := range topics {
		var t Topic
		if err := decode(fsys, file, &t); err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, t.check(file, where))
		n.Topics = append(n.Topics, t)
	}
	return n, errors.Join(errs...)
}

// decode reads a file with one document of YAML. Fields that v does not have are errors.
func decode(fsys fs.FS, file string, v any) error {
	content, err := fs.ReadFile(fsys, file)
	if err != nil {
		return err
	}
	d := yaml.NewDecoder(bytes.NewReader(content))
	d.KnownFields(true)
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: there is a second document, want one", file)
	}
	return nil
}

// check returns what is wrong with a topic. where has the files of the names, aggregate
// types and subscriptions of the topics before.
func (t Topic) check(file string, where map[string]string) error {
	var errs []error
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %w", file, fmt.Errorf(format, args...)))
	}
	once := func(what, name string) {
		if first, ok := where[what+name]; ok {
			wrong("%s %q is also in %s", what, name, first)
		}
		where[what+name] = file
	}
	if !topicRule.MatchString(t.Name) || strings.HasPrefix(t.Name, "goog") {
		wrong("name is %q, want %s, which does not begin with goog", t.Name, topicRule)
	}
	once("topic", t.Name)
	if len(t.AggregateTypes) == 0 {
		wrong("aggregate_types is empty, want at least one")
	}
	for _, a := range t.AggregateTypes {
		once("aggregate type", a)
	}
	if t.Schema == "" {
		wrong("schema is empty, want the path of a proto file")
	}
	if t.Foreign && len(t.Consumers) == 0 {
		wrong("consumers is empty, and this service does not publish to a foreign topic: remove the file")
	}
	switch {
	case t.Project != "" && !t.Foreign:
		wrong("project is set, and the topic is not foreign: this service has its own topics in its own project")
	case t.Project != "" && !IsProject(t.Project):
		wrong("project is %q, want the id of a Google Cloud project, %s", t.Project, projectRule)
	}
	for _, c := range t.Consumers {
		if !consumerRule.MatchString(c) {
			wrong("consumers has %q, want %s", c, consumerRule)
		}
		once("subscription", t.Subscription(c))
	}
	return errors.Join(errs...)
}
