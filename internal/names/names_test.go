package names_test

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"example.com/videocatalog/internal/names"
)

// Every name keeps the rules of Google Cloud, and is there once. Every schema is a file.
func TestNames(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	check := func(field, value, rule string) {
		if !regexp.MustCompile(rule).MatchString(value) {
			t.Errorf("%s is %q, want %s", field, value, rule)
		}
		if seen[field+value] {
			t.Errorf("%s %q is there twice", field, value)
		}
		seen[field+value] = true
	}
	check("Service", names.Service, `^[a-z][a-z0-9-]{4,18}[a-z0-9]$`) // with -publisher, the name of an account has at most 30 characters
	check("ErrorDomain", names.ErrorDomain, `.`)
	for _, topic := range names.Topics() {
		check("Name", topic.Name, `^[A-Za-z][A-Za-z0-9._~%+-]{2,199}$`)
		if strings.HasPrefix(topic.Name, "goog") {
			t.Errorf("Name %q begins with goog, which Pub/Sub keeps for itself", topic.Name)
		}
		check("AggregateTypes of "+topic.Name, strings.Join(topic.AggregateTypes, " "), `.`)
		for _, aggregateType := range topic.AggregateTypes {
			check("AggregateTypes", aggregateType, `.`)
		}
		for _, consumer := range topic.Consumers {
			check("Consumers of "+topic.Name, consumer, `^[a-z][a-z0-9_-]{0,29}$`)
		}
		if topic.Foreign && len(topic.Consumers) == 0 {
			t.Errorf("Consumers of %s is empty, and this service does not publish to a foreign topic: remove it", topic.Name)
		}
		if topic.Project != "" {
			check("Project of "+topic.Name, topic.Project, `^[a-z][a-z0-9-]{4,28}[a-z0-9]$`)
		}
		if topic.Project != "" && !topic.Foreign {
			t.Errorf("Project of %s is set, and the topic is not foreign: this service has its own topics in its own project", topic.Name)
		}
		if _, err := os.Stat("../../" + topic.Schema); err != nil || topic.Schema == "" {
			t.Errorf("Schema of %s is %q, want a file: %v", topic.Name, topic.Schema, err)
		}
	}
}

var update = flag.Bool("update", false, "write deploy/names.sh, as make generate does")

// deploy/names.sh and cloudbuild.yaml have the names of this package.
func TestScript(t *testing.T) {
	t.Parallel()
	const path = "../../deploy/names.sh"
	want := script(names.Topics())
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("deploy/names.sh is stale (%v): run make generate", err)
	}
	build := "\n  _SERVICE: " + names.Service + " "
	if got, err := os.ReadFile("../../cloudbuild.yaml"); err != nil || !strings.Contains(string(got), build) {
		t.Errorf("cloudbuild.yaml has no %q (%v)", build, err)
	}
}

// The topics and schemas of other services are not created, only subscribed to.
func TestForeignTopics(t *testing.T) {
	t.Parallel()
	got := script([]names.Topic{
		{Name: "letter.events", Schema: "letter.proto", Consumers: []string{"post"}, Foreign: true, Project: "other-project"},
		{Name: "order.events", Schema: "order.proto", Consumers: []string{"search"}}, {Name: "cart.events", Schema: "cart.proto", Consumers: []string{"billing"}, Foreign: true},
	})
	for _, want := range []string{"TOPICS=(order.events)", "SUBSCRIPTIONS=(letter.events.post order.events.search cart.events.billing)", "SCHEMA_FILES=(order.proto)", "REMOTE_TOPICS=(projects/other-project/topics/letter.events)"} {
		if !strings.Contains(got, want) {
			t.Errorf("the script has no %s:\n%s", want, got)
		}
	}
}

// script returns the content of deploy/names.sh.
func script(all []names.Topic) string {
	var topics, schemas, subscriptions, remote []string
	for _, t := range all {
		if !t.Foreign {
			topics, schemas = append(topics, t.Name), append(schemas, t.Schema)
		}
		if t.Project != "" {
			remote = append(remote, "projects/"+t.Project+"/topics/"+t.Name)
		}
		for _, c := range t.Consumers {
			subscriptions = append(subscriptions, t.Subscription(c))
		}
	}
	return fmt.Sprintf(`# Generated from internal/names by make generate; do not edit.
# shellcheck shell=bash disable=SC2034 # the scripts use what this file sets
SERVICE=%s
TOPICS=(%s)
SUBSCRIPTIONS=(%s) # TOPIC.CONSUMER, with dead letters in TOPIC.CONSUMER.dead
SCHEMA_FILES=(%s) # of the topics, in their order
REMOTE_TOPICS=(%s) # in other projects: the subscriptions to them name them so
`, names.Service, strings.Join(topics, " "), strings.Join(subscriptions, " "), strings.Join(schemas, " "), strings.Join(remote, " "))
}
