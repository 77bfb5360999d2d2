// Package names has the names of the service, its topics and its subscriptions. Each topic has a
// file. The scripts and Terraform read deploy/names.sh: after a change run make generate.
//
// Do not change a name that is in use: Google Cloud renames nothing. Before a release that needs
// a new name, run deploy/provision.sh.
package names

import "slices"

const (
	// Service is the name in Cloud Run. Accounts, secrets, jobs and worker pools begin with it.
	// It has 6 to 20 lower-case letters, digits and hyphens.
	Service = "videocatalog"

	// ErrorDomain is the domain of the reasons of errors, in google.rpc.ErrorInfo. Clients may
	// depend on it.
	ErrorDomain = "videocatalog.example.com"
)

// Topic is a Pub/Sub topic.
type Topic struct {
	Name           string   // its schema has the same name
	AggregateTypes []string // their events are published there
	Schema         string   // path of its proto file, from the root of the repository
	Consumers      []string
	// Foreign means that another service owns the topic and publishes there. This one has only
	// the subscriptions of its consumers, whose names differ from those in all other services.
	Foreign bool
	// Project is the Google Cloud project of a foreign topic. Empty: the project of this service.
	Project string
}

// Subscription returns the name of a consumer's subscription.
func (t Topic) Subscription(consumer string) string { return t.Name + "." + consumer }

// Topics returns all topics, in the order of the names of their files.
func Topics() []Topic { return slices.Clone(topics) }

var topics []Topic

// add adds a topic to Topics, while the variables of the file of the topic are initialized.
func add(t Topic) Topic {
	topics = append(topics, t)
	return t
}
