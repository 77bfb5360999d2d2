package localbroker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Topic is a topic with its subscriptions.
type Topic struct {
	Name   string
	Schema string // definition in protobuf; the schema has the name of the topic
	// Subscriptions are the names of the subscriptions. Each has a topic for its dead letters, and a subscription
	// to that topic; both have its name with ".dead" at the end.
	Subscriptions []string
}

// Resources are the settings of topics and subscriptions. The zero value has the settings of
// production.
type Resources struct {
	// AckDeadline is how long a message is leased, in whole seconds from 10 to 600; default
	// 60 s.
	AckDeadline time.Duration
	// RetryMin and RetryMax limit the pause before a nacked message comes again; default 10
	// s and 600 s.
	RetryMin, RetryMax time.Duration
	// MaxDeliveryAttempts is how often a message is delivered before it becomes a dead
	// letter, from 5 to 100; default 20. The projector gives a message back only when it
	// stops or dies. A few restarts in a row must not turn healthy messages into dead
	// letters.
	MaxDeliveryAttempts int32
	// Schemaless lets the topic accept any message, for tests of code that is independent
	// of the entity. Default: the topic accepts only messages that fit its schema.
	Schemaless bool
}

// Create creates topics with their schemas and subscriptions, through a client of any server.
// It changes nothing that exists, except that a schema gets a new revision, if needed in place
// of the oldest. No subscription ever expires.
func (r Resources) Create(ctx context.Context, client *pubsub.Client, topics ...Topic) error {
	for _, t := range topics {
		settings, err := r.createSchema(ctx, client, t)
		if err != nil {
			return err
		}
		topic := &pubsubpb.Topic{Name: "projects/" + client.Project() + "/topics/" + t.Name, SchemaSettings: settings}
		if err := unlessExists(client.TopicAdminClient.CreateTopic(ctx, topic)); err != nil {
			return err
		}
		for _, name := range t.Subscriptions {
			if err := r.createSubscription(ctx, client, t.Name, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// createSchema creates the schema, and returns the schema settings of its topic; nil if the
// topic has no schema. An existing schema of an earlier build gets the definition as a
// revision, as in deploy/provision.sh.
func (r Resources) createSchema(ctx context.Context, client *pubsub.Client, t Topic) (*pubsubpb.SchemaSettings, error) {
	if r.Schemaless {
		return nil, nil //nolint:nilnil // there may be none
	}
	project := "projects/" + client.Project()
	name := project + "/schemas/" + t.Name
	schemas := pubsubpb.NewSchemaServiceClient(client.TopicAdminClient.Connection()) //nolint:staticcheck // a client of schemas is made of a connection, whichever it is
	if err := unlessExists(schemas.CreateSchema(ctx, &pubsubpb.CreateSchemaRequest{
		Parent: project, SchemaId: t.Name, Schema: &pubsubpb.Schema{Type: pubsubpb.Schema_PROTOCOL_BUFFER, Definition: t.Schema},
	})); err != nil {
		return nil, err
	}
	if err := commitRevision(ctx, schemas, name, t.Schema); err != nil {
		return nil, fmt.Errorf("commit a revision of schema %s: %w", name, err)
	}
	return &pubsubpb.SchemaSettings{Schema: name, Encoding: pubsubpb.Encoding_BINARY}, nil
}

// maxRevisions is the maximum number of revisions of a schema in Pub/Sub.
const maxRevisions = 20

// commitRevision adds the definition as a revision of the schema, unless the schema has it. Pub/Sub
// takes each definition once only, and checks messages against all revisions.
func commitRevision(ctx context.Context, schemas pubsubpb.SchemaServiceClient, name, definition string) error {
	list, err := schemas.ListSchemaRevisions(ctx, &pubsubpb.ListSchemaRevisionsRequest{Name: name, View: pubsubpb.SchemaView_FULL, PageSize: maxRevisions})
	if err != nil {
		return err
	}
	revisions := list.GetSchemas() // the newest first
	if slices.ContainsFunc(revisions, func(s *pubsubpb.Schema) bool { return s.GetDefinition() == definition }) {
		return nil
	}
	if len(revisions) == maxRevisions {
		oldest := name + "@" + revisions[maxRevisions-1].GetRevisionId()
		if _, err := schemas.DeleteSchemaRevision(ctx, &pubsubpb.DeleteSchemaRevisionRequest{Name: oldest}); err != nil {
			return err
		}
	}
	_, err = schemas.CommitSchema(ctx, &pubsubpb.CommitSchemaRequest{
		Name: name, Schema: &pubsubpb.Schema{Name: name, Type: pubsubpb.Schema_PROTOCOL_BUFFER, Definition: definition},
	})
	return err
}

// createSubscription creates a subscription, and the topic and subscription of its dead
// letters. Dead letters need not fit the schema.
func (r Resources) createSubscription(ctx context.Context, client *pubsub.Client, topicName, name string) error {
	topic, subscription := "projects/"+client.Project()+"/topics/", "projects/"+client.Project()+"/subscriptions/"
	dead := name + ".dead"
	if err := unlessExists(client.TopicAdminClient.CreateTopic(ctx, &pubsubpb.Topic{Name: topic + dead})); err != nil {
		return err
	}
	err := unlessExists(client.SubscriptionAdminClient.CreateSubscription(ctx, &pubsubpb.Subscription{
		Name:                  subscription + name,
		Topic:                 topic + topicName,
		AckDeadlineSeconds:    int32(cmp.Or(r.AckDeadline, time.Minute) / time.Second),
		EnableMessageOrdering: true,
		RetainAckedMessages:   true,                         // for a seek
		ExpirationPolicy:      &pubsubpb.ExpirationPolicy{}, // without a ttl: it never expires
		RetryPolicy: &pubsubpb.RetryPolicy{
			MinimumBackoff: durationpb.New(cmp.Or(r.RetryMin, 10*time.Second)),
			MaximumBackoff: durationpb.New(cmp.Or(r.RetryMax, 600*time.Second)),
		},
		DeadLetterPolicy: &pubsubpb.DeadLetterPolicy{
			DeadLetterTopic:     topic + dead,
			MaxDeliveryAttempts: cmp.Or(r.MaxDeliveryAttempts, 20),
		},
	}))
	if err != nil {
		return err
	}
	return unlessExists(client.SubscriptionAdminClient.CreateSubscription(ctx, &pubsubpb.Subscription{
		Name: subscription + dead, Topic: topic + dead, AckDeadlineSeconds: 60, ExpirationPolicy: &pubsubpb.ExpirationPolicy{},
	}))
}

// unlessExists returns the error of a create call, but nil if the resource already exists.
func unlessExists(_ any, err error) error {
	if status.Code(err) == codes.AlreadyExists {
		return nil
	}
	return err
}
