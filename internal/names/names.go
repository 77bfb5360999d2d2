// Package names has the names of the service, its topics and its subscriptions. Only
// names.yaml defines them. The scripts read deploy/names.sh, which make generate writes.
// Terraform reads names.yaml itself.
package names

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Names is the content of names.yaml.
type Names struct {
	Service     string  `yaml:"service"`
	ErrorDomain string  `yaml:"error_domain"`
	Topics      []Topic `yaml:"topics"`
}

// Topic is a Pub/Sub topic that this service publishes to.
type Topic struct {
	Name           string   `yaml:"name"`            // its schema has the same name
	AggregateTypes []string `yaml:"aggregate_types"` // their events are published there
	Schema         string   `yaml:"schema"`          // path of its proto file, from the root of the repository
	Consumers      []string `yaml:"consumers"`
}

// Subscription returns the name of a consumer's subscription.
func (t Topic) Subscription(consumer string) string { return t.Name + "." + consumer }

// DeadLetters returns the name of the topic that keeps the dead letters of a consumer, and
// of the subscription to that topic.
func (t Topic) DeadLetters(consumer string) string { return t.Subscription(consumer) + ".dead" }

//go:embed names.yaml
var file []byte

var all = func() Names {
	n, err := Parse(file)
	if err != nil {
		panic(err) //nolint:forbidigo // the file is part of the program; TestNames reads it too
	}
	return n
}()

// Service returns the name of the service.
func Service() string { return all.Service }

// ErrorDomain returns the domain of the reasons of errors, in google.rpc.ErrorInfo.
func ErrorDomain() string { return all.ErrorDomain }

// Topics returns all topics.
func Topics() []Topic { return slices.Clone(all.Topics) }

// TopicOf returns the topic of an aggregate type. If there is none, names.yaml is wrong,
// and TopicOf panics.
func TopicOf(aggregateType string) Topic {
	for _, t := range all.Topics {
		if slices.Contains(t.AggregateTypes, aggregateType) {
			return t
		}
	}
	panic("names.yaml: no topic has the aggregate type " + aggregateType) //nolint:forbidigo // a mistake in the program, met at its start
}

// Google Cloud's rules for names. A service account is called SERVICE-publisher, and its
// name has at most 30 characters.
var (
	serviceRule  = regexp.MustCompile(`^[a-z][a-z0-9-]{4,18}[a-z0-9]$`)
	topicRule    = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._~%+-]{2,199}$`)
	consumerRule = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,29}$`)
)

// Parse reads the content of a file such as names.yaml. The error names every field that
// breaks a rule.
func Parse(content []byte) (Names, error) {
	var n Names
	d := yaml.NewDecoder(bytes.NewReader(content))
	d.KnownFields(true)
	if err := d.Decode(&n); err != nil {
		return Names{}, fmt.Errorf("names.yaml: %w", err)
	}
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf("names.yaml: "+format, args...)) }
	if !serviceRule.MatchString(n.Service) {
		wrong("service is %q, want %s", n.Service, serviceRule)
	}
	if n.ErrorDomain == "" {
		wrong("error_domain is empty")
	}
	seen := make(map[string]bool) // by kind and name
	once := func(what, name string) {
		if seen[what+name] {
			wrong("%s %q is listed twice", what, name)
		}
		seen[what+name] = true
	}
	if len(n.Topics) == 0 {
		wrong("topics is empty, want at least one")
	}
	for i, t := range n.Topics {
		if !topicRule.MatchString(t.Name) {
			wrong("topics[%d].name is %q, want %s", i, t.Name, topicRule)
		}
		once("topic", t.Name)
		for _, a := range t.AggregateTypes {
			once("aggregate type", a)
		}
		for _, c := range t.Consumers {
			if !consumerRule.MatchString(c) {
				wrong("topics[%d].consumers has %q, want %s", i, c, consumerRule)
			}
			once("subscription", t.Subscription(c))
		}
		if t.Schema == "" || len(t.AggregateTypes) == 0 {
			wrong("topics[%d] has no schema or no aggregate_types", i)
		}
	}
	return n, errors.Join(errs...)
}
