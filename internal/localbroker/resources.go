package localbroker

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/videocatalog/api"
)

// The names of the service's topics, schema and subscriptions: <context>.events, <topic>.<consumer>, and for dead letters
// <subscription>.dead, a topic with a subscription of the same name.
const (
	Topic        = "video.events"
	Schema       = "video.events"
	Subscription = "video.events.catalog"
	DeadLetters  = "video.events.catalog.dead"
)

// Resources are what the service needs of Pub/Sub. The zero value is what production has too.
type Resources struct {
	// AckDeadline is how long a message is lent, whole seconds from 10 to 600; default 60 s.
	AckDeadline time.Duration
	// RetryMin and RetryMax are the pauses before a nacked message comes again; default 10 s and 600 s.
	RetryMin, RetryMax time.Duration
	// MaxDeliveryAttempts is how often a message is delivered before it becomes a dead letter, from 5 to 100; default
	// 20. The projector gives a message back only when it is stopped, or dies; a few restarts in a row must not turn
	// healthy messages into dead letters.
	MaxDeliveryAttempts int32
	// ExactlyOnce turns on exactly-once delivery. Default: off, the inbox makes it unnecessary.
	ExactlyOnce bool
	// Schemaless lets the topic take any message, for tests of code that knows no
	// videos. Default: it takes what fits its schema.
	Schemaless bool
}

// Create creates the schema, the topics and subscriptions, through a client of whatever server. Those that exist are left as they
// are. Neither subscription ever expires.
func (r Resources) Create(ctx context.Context, client *pubsub.Client) error {
	topic := "projects/" + client.Project() + "/topics/"
	subscription := "projects/" + client.Project() + "/subscriptions/"
	settings, err := r.createSchema(ctx, client)
	if err != nil {
		return err
	}
	// Dead letters need not fit the schema.
	for _, t := range []*pubsubpb.Topic{{Name: topic + Topic, SchemaSettings: settings}, {Name: topic + DeadLetters}} {
		_, err := client.TopicAdminClient.CreateTopic(ctx, t)
		if err != nil && status.Code(err) != codes.AlreadyExists {
			return fmt.Errorf("create topic %s: %w", t.GetName(), err)
		}
	}
	for _, s := range []*pubsubpb.Subscription{{
		Name:                      subscription + Subscription,
		Topic:                     topic + Topic,
		AckDeadlineSeconds:        int32(orDefault(r.AckDeadline, time.Minute) / time.Second), //nolint:gosec // at most 600
		EnableMessageOrdering:     true,
		EnableExactlyOnceDelivery: r.ExactlyOnce,
		ExpirationPolicy:          &pubsubpb.ExpirationPolicy{}, // without a ttl: never
		RetryPolicy: &pubsubpb.RetryPolicy{
			MinimumBackoff: durationpb.New(orDefault(r.RetryMin, 10*time.Second)),
			MaximumBackoff: durationpb.New(orDefault(r.RetryMax, 600*time.Second)),
		},
		DeadLetterPolicy: &pubsubpb.DeadLetterPolicy{
			DeadLetterTopic:     topic + DeadLetters,
			MaxDeliveryAttempts: orDefault(r.MaxDeliveryAttempts, 20),
		},
	}, {
		Name:               subscription + DeadLetters,
		Topic:              topic + DeadLetters,
		AckDeadlineSeconds: 60,
		ExpirationPolicy:   &pubsubpb.ExpirationPolicy{},
	}} {
		_, err := client.SubscriptionAdminClient.CreateSubscription(ctx, s)
		if err != nil && status.Code(err) != codes.AlreadyExists {
			return fmt.Errorf("create subscription %s: %w", s.GetName(), err)
		}
	}
	return nil
}

// createSchema creates the schema, and returns how a topic uses it; nil: it does not.
func (r Resources) createSchema(ctx context.Context, client *pubsub.Client) (*pubsubpb.SchemaSettings, error) {
	if r.Schemaless {
		return nil, nil //nolint:nilnil // there may be none
	}
	project := "projects/" + client.Project()
	schemas := pubsubpb.NewSchemaServiceClient(client.TopicAdminClient.Connection()) //nolint:staticcheck // a client of schemas is made of a connection, whichever it is
	_, err := schemas.CreateSchema(ctx, &pubsubpb.CreateSchemaRequest{
		Parent: project, SchemaId: Schema, Schema: &pubsubpb.Schema{Type: pubsubpb.Schema_PROTOCOL_BUFFER, Definition: api.VideoEventSchema},
	})
	if err != nil && status.Code(err) != codes.AlreadyExists {
		return nil, fmt.Errorf("create schema %s: %w", Schema, err)
	}
	return &pubsubpb.SchemaSettings{Schema: project + "/schemas/" + Schema, Encoding: pubsubpb.Encoding_BINARY}, nil
}

func orDefault[T comparable](value, byDefault T) T {
	var zero T
	if value == zero {
		return byDefault
	}
	return value
}
