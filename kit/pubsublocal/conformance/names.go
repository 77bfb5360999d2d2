package conformance

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/googleapis/gax-go/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

var names = []Case{
	{ID: "A1", Sentence: "An id starts with a letter and has 3 to 255 characters out of letters, digits and -_.~+%.", Run: idCharacters},
	{ID: "A2", Sentence: "An id that starts with goog is refused.", Run: idsOfGoogle},
	{ID: "A3", Sentence: "A name that is not projects/{project}/{collection}/{id} is refused, as a reference too.", Run: malformedNames},
	{ID: "A4", Sentence: "Creating what exists is ALREADY_EXISTS, whatever else is wrong.", Run: createTwice},
	{ID: "A5", Sentence: "A call on what is missing is NOT_FOUND.", Run: missingResources},
	{ID: "A6", Sentence: "A subscription needs a topic that exists, and a name of one.", Run: subscriptionWithoutTopic},
	{ID: "A8", Sentence: "Subscription, topic, dead-letter topic and schema may live in different projects.", Run: acrossProjects},
	{ID: "A9", Sentence: "Lists have only the requested resources, each once.", Run: lists},
	{ID: "A11", Sentence: "A deleted topic leaves its subscriptions with their backlog.", Run: topicDeleted},
	{ID: "A12", Sentence: "A topic created again is a new one.", Run: topicCreatedAgain},
	{ID: "A13", Sentence: "A deleted subscription drops its messages and ends its streams; its name can be used again.", Run: subscriptionDeleted},
	{ID: "A14", Sentence: "An update needs a mask with paths.", Run: updateWithoutMask},
	{ID: "A15", Sentence: "An update refuses unknown paths, also those in camelCase.", Run: updateUnknownPath},
	{ID: "A16", Sentence: "A path in the mask without a value in the body resets the field to its default.", Run: updateResets},
	{ID: "A17", Sentence: "An update of an immutable or output-only field of a subscription is refused.", Run: updateImmutable},
	{ID: "A18", Sentence: "The other fields of a subscription can be updated, each alone.", Run: updateSubscriptionFields},
	{ID: "A19", Sentence: "The fields of a topic but its name and key can be updated, each alone.", Run: updateTopicFields},
	{ID: "A21", Sentence: "An update applies as a whole or not at all.", Run: updateAllOrNothing},
}

const (
	deletedTopic   = "_deleted-topic_"
	day            = 24 * time.Hour
	firstRevision  = `syntax = "proto3"; message Event { string id = 1; }`
	secondRevision = `syntax = "proto3"; message Event { string id = 1; string note = 2; }`
)

// singleTry turns off retries for calls that are expected to fail. The client would retry some for
// a minute.
var singleTry = gax.WithRetry(func() gax.Retryer { return nil })

// resourceKind is a kind of resource, with the calls that all kinds have.
type resourceKind struct {
	create, get, remove func(ctx context.Context, name string) error
	collection          string
}

// resourceKinds returns all three kinds. All subscriptions that they create have the same topic.
func resourceKinds(t *testing.T, e *Env) []resourceKind {
	t.Helper()
	topic := e.Topic(t)
	return []resourceKind{{
		collection: "topics",
		create: func(ctx context.Context, name string) error {
			return errOf(e.Topics.CreateTopic(ctx, &pubsubpb.Topic{Name: name}, singleTry))
		},
		get: func(ctx context.Context, name string) error {
			return errOf(e.Topics.GetTopic(ctx, &pubsubpb.GetTopicRequest{Topic: name}, singleTry))
		},
		remove: func(ctx context.Context, name string) error {
			return e.Topics.DeleteTopic(ctx, &pubsubpb.DeleteTopicRequest{Topic: name}, singleTry)
		},
	}, {
		collection: "subscriptions",
		create: func(ctx context.Context, name string) error {
			return errOf(e.Subs.CreateSubscription(ctx, &pubsubpb.Subscription{Name: name, Topic: topic}, singleTry))
		},
		get: func(ctx context.Context, name string) error {
			return errOf(e.Subs.GetSubscription(ctx, &pubsubpb.GetSubscriptionRequest{Subscription: name}, singleTry))
		},
		remove: func(ctx context.Context, name string) error {
			return e.Subs.DeleteSubscription(ctx, &pubsubpb.DeleteSubscriptionRequest{Subscription: name}, singleTry)
		},
	}, {
		collection: "schemas",
		create: func(ctx context.Context, name string) error {
			return errOf(e.Schema.CreateSchema(ctx, createSchemaRequest(name, firstRevision), singleTry))
		},
		get: func(ctx context.Context, name string) error {
			return errOf(e.Schema.GetSchema(ctx, &pubsubpb.GetSchemaRequest{Name: name}, singleTry))
		},
		remove: func(ctx context.Context, name string) error {
			return e.Schema.DeleteSchema(ctx, &pubsubpb.DeleteSchemaRequest{Name: name}, singleTry)
		},
	}}
}

func idCharacters(t *testing.T, e *Env) {
	tests := []struct {
		name, id string
		want     codes.Code
	}{
		{"three characters", "a.b", codes.OK},
		{"255 characters", "a" + strings.Repeat("x", 254), codes.OK},
		{"all characters", "Zaz09-_.~+%", codes.OK},
		{"empty", "", codes.InvalidArgument},
		{"two characters", "ab", codes.InvalidArgument},
		{"256 characters", "a" + strings.Repeat("x", 255), codes.InvalidArgument},
		{"digit first", "1abc", codes.InvalidArgument},
		{"hyphen first", "-abc", codes.InvalidArgument},
		{"percent sign first", "%abc", codes.InvalidArgument},
		{"space", "ab c", codes.InvalidArgument},
		{"newline at the end", "abc\n", codes.InvalidArgument},
		{"exclamation mark", "abc!", codes.InvalidArgument},
		{"colon", "ab:c", codes.InvalidArgument},
		{"at sign", "abc@1", codes.InvalidArgument},
		{"letter beyond ASCII", "abcé", codes.InvalidArgument},
	}
	for _, kind := range resourceKinds(t, e) {
		for _, test := range tests {
			t.Run(kind.collection+"/"+test.name, func(t *testing.T) {
				name := fmt.Sprintf("projects/%s/%s/%s", e.Project, kind.collection, test.id)
				WantCode(t, kind.create(t.Context(), name), test.want)
				if test.want == codes.OK {
					WantCode(t, kind.get(t.Context(), name), codes.OK)
					WantCode(t, kind.remove(t.Context(), name), codes.OK)
				}
			})
		}
	}
}

func idsOfGoogle(t *testing.T, e *Env) {
	for _, kind := range resourceKinds(t, e) {
		for _, id := range []string{"goog", "google-events", "goog-1"} {
			t.Run(kind.collection+"/"+id, func(t *testing.T) {
				name := fmt.Sprintf("projects/%s/%s/%s", e.Project, kind.collection, id)
				WantCode(t, kind.create(t.Context(), name), codes.InvalidArgument)
			})
		}
		t.Run(kind.collection+"/inside", func(t *testing.T) {
			name := e.Name(kind.collection) + "-goog"
			WantCode(t, kind.create(t.Context(), name), codes.OK)
		})
	}
}

// malformed returns names that are not valid in this collection.
func malformed(e *Env, collection string) map[string]string {
	other := "topics"
	if collection == other {
		other = "subscriptions"
	}
	return map[string]string{
		"one word":               "x",
		"no id":                  fmt.Sprintf("projects/%s/%s", e.Project, collection),
		"empty project":          fmt.Sprintf("projects//%s/some-id", collection),
		"segment too many":       fmt.Sprintf("projects/%s/%s/some-id/more", e.Project, collection),
		"slash first":            fmt.Sprintf("/projects/%s/%s/some-id", e.Project, collection),
		"slash last":             fmt.Sprintf("projects/%s/%s/some-id/", e.Project, collection),
		"not in a project":       fmt.Sprintf("folders/%s/%s/some-id", e.Project, collection),
		"other collection":       fmt.Sprintf("projects/%s/%s/some-id", e.Project, other),
		"collection in capitals": fmt.Sprintf("projects/%s/%s/some-id", e.Project, strings.ToUpper(collection)),
	}
}

// nameCall is a call that needs an existing resource with this name.
type nameCall struct {
	do               func(ctx context.Context, name string) error
	name, collection string
}

// nameCalls returns calls that need an existing resource. All other resources that they need exist.
func nameCalls(t *testing.T, e *Env) []nameCall {
	t.Helper()
	topic, sub := e.Subscribed(t)
	e.Publish(t, topic, "", "m")
	ackIDs := AckIDs(collect(t, e, sub, 1))
	schemaSettings := func(name string) *pubsubpb.SchemaSettings {
		return &pubsubpb.SchemaSettings{Schema: name, Encoding: pubsubpb.Encoding_JSON}
	}
	var calls []nameCall
	for _, kind := range resourceKinds(t, e) {
		calls = append(calls, nameCall{kind.get, "get", kind.collection}, nameCall{kind.remove, "delete", kind.collection})
	}
	return append(calls,
		nameCall{func(ctx context.Context, name string) error {
			return errOf(e.Topics.UpdateTopic(ctx, &pubsubpb.UpdateTopicRequest{
				Topic: &pubsubpb.Topic{Name: name}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"labels"}},
			}, singleTry))
		}, "UpdateTopic", "topics"},
		nameCall{func(ctx context.Context, name string) error {
			return errOf(e.Topics.Publish(ctx, &pubsubpb.PublishRequest{
				Topic: name, Messages: []*pubsubpb.PubsubMessage{{Data: []byte("x")}},
			}, singleTry))
		}, "Publish", "topics"},
		nameCall{func(ctx context.Context, name string) error {
			return errOf(e.Subs.CreateSubscription(ctx, &pubsubpb.Subscription{Name: e.Name("subscriptions"), Topic: name}, singleTry))
		}, "topic of CreateSubscription", "topics"},
		nameCall{func(ctx context.Context, name string) error {
			return errOf(e.Subs.CreateSubscription(ctx, &pubsubpb.Subscription{
				Name: e.Name("subscriptions"), Topic: topic, DeadLetterPolicy: &pubsubpb.DeadLetterPolicy{DeadLetterTopic: name},
			}, singleTry))
		}, "dead-letter topic of CreateSubscription", "topics"},
		nameCall{func(ctx context.Context, name string) error {
			return errOf(e.Subs.UpdateSubscription(ctx, &pubsubpb.UpdateSubscriptionRequest{
				Subscription: &pubsubpb.Subscription{Name: name}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"labels"}},
			}, singleTry))
		}, "UpdateSubscription", "subscriptions"},
		nameCall{func(ctx context.Context, name string) error {
			return errOf(e.Subs.Pull(ctx, &pubsubpb.PullRequest{Subscription: name, MaxMessages: 1}, singleTry))
		}, "Pull", "subscriptions"},
		nameCall{func(ctx context.Context, name string) error {
			return e.Subs.Acknowledge(ctx, &pubsubpb.AcknowledgeRequest{Subscription: name, AckIds: ackIDs}, singleTry)
		}, "Acknowledge", "subscriptions"},
		nameCall{func(ctx context.Context, name string) error {
			return e.Subs.ModifyAckDeadline(ctx, &pubsubpb.ModifyAckDeadlineRequest{
				Subscription: name, AckIds: ackIDs, AckDeadlineSeconds: 20,
			}, singleTry)
		}, "ModifyAckDeadline", "subscriptions"},
		nameCall{func(ctx context.Context, name string) error {
			return errOf(e.Subs.Seek(ctx, &pubsubpb.SeekRequest{
				Subscription: name, Target: &pubsubpb.SeekRequest_Time{Time: timestamppb.Now()},
			}, singleTry))
		}, "Seek", "subscriptions"},
		nameCall{func(ctx context.Context, name string) error {
			return errOf(e.Topics.CreateTopic(ctx, &pubsubpb.Topic{Name: e.Name("topics"), SchemaSettings: schemaSettings(name)}, singleTry))
		}, "schema of CreateTopic", "schemas"},
		nameCall{func(ctx context.Context, name string) error {
			return errOf(e.Schema.CommitSchema(ctx, &pubsubpb.CommitSchemaRequest{
				Name:   name,
				Schema: &pubsubpb.Schema{Name: name, Type: pubsubpb.Schema_PROTOCOL_BUFFER, Definition: firstRevision},
			}, singleTry))
		}, "CommitSchema", "schemas"},
	)
}

func malformedNames(t *testing.T, e *Env) {
	calls := nameCalls(t, e)
	for _, kind := range resourceKinds(t, e) {
		if kind.collection != "schemas" { // the name of a schema is in two fields: see below
			calls = append(calls, nameCall{kind.create, "create", kind.collection})
		}
	}
	for _, call := range calls {
		bad := malformed(e, call.collection)
		for _, what := range slices.Sorted(maps.Keys(bad)) {
			t.Run(call.name+"/"+call.collection+"/"+what, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				WantCode(t, call.do(ctx, bad[what]), codes.InvalidArgument)
			})
		}
	}
	topic := e.Topic(t)
	for what, parent := range map[string]string{
		"one word": "x", "empty": "", "no project": "projects/", "slash last": "projects/" + e.Project + "/", "topic": topic,
	} {
		for collection, list := range listsOf(e, parent) {
			t.Run("parent/"+collection+"/"+what, func(t *testing.T) {
				WantCode(t, errOf(list(t.Context())), codes.InvalidArgument)
			})
		}
		t.Run("parent/CreateSchema/"+what, func(t *testing.T) {
			_, err := e.Schema.CreateSchema(t.Context(), createSchemaRequest(parent+"/schemas/some-id", firstRevision), singleTry)
			WantCode(t, err, codes.InvalidArgument)
		})
	}
}

func createTwice(t *testing.T, e *Env) {
	for _, kind := range resourceKinds(t, e) {
		t.Run(kind.collection, func(t *testing.T) {
			name := e.Name(kind.collection)
			WantCode(t, kind.create(t.Context(), name), codes.OK)
			WantCode(t, kind.create(t.Context(), name), codes.AlreadyExists)
		})
	}
	topic := e.Topic(t, func(p *pubsubpb.Topic) { p.Labels = map[string]string{"round": "1"} })
	sub := e.Subscription(t, topic)
	schema := schemaIn(t, e, e.Project)
	topicBefore, subBefore := topicNow(t, e, topic), subscriptionNow(t, e, sub)
	missing := e.Name("topics")

	for name, body := range map[string]*pubsubpb.Topic{
		"other labels":       {Labels: map[string]string{"round": "2"}},
		"retention too long": {MessageRetentionDuration: durationpb.New(32 * day)},
		"missing schema": {SchemaSettings: &pubsubpb.SchemaSettings{
			Schema: e.Name("schemas"), Encoding: pubsubpb.Encoding_JSON,
		}},
	} {
		t.Run("topic/"+name, func(t *testing.T) {
			body.Name = topic
			WantCode(t, errOf(e.Topics.CreateTopic(t.Context(), body, singleTry)), codes.AlreadyExists)
		})
	}
	for name, body := range map[string]*pubsubpb.Subscription{
		"other labels":              {Topic: topic, Labels: map[string]string{"round": "2"}},
		"missing topic":             {Topic: missing},
		"bad deadline":              {Topic: topic, AckDeadlineSeconds: 5},
		"missing dead-letter topic": {Topic: topic, DeadLetterPolicy: &pubsubpb.DeadLetterPolicy{DeadLetterTopic: missing}},
	} {
		t.Run("subscription/"+name, func(t *testing.T) {
			body.Name = sub
			WantCode(t, errOf(e.Subs.CreateSubscription(t.Context(), body, singleTry)), codes.AlreadyExists)
		})
	}
	t.Run("schema/bad definition", func(t *testing.T) {
		_, err := e.Schema.CreateSchema(t.Context(), createSchemaRequest(schema, "no definition"), singleTry)
		WantCode(t, err, codes.AlreadyExists)
	})
	t.Run("a bad name comes first", func(t *testing.T) {
		_, err := e.Subs.CreateSubscription(t.Context(), &pubsubpb.Subscription{Name: sub + "/", Topic: missing}, singleTry)
		WantCode(t, err, codes.InvalidArgument)
	})
	wantEqual(t, topicBefore, topicNow(t, e, topic), "the topic changed")
	wantEqual(t, subBefore, subscriptionNow(t, e, sub), "the subscription changed")
}

func missingResources(t *testing.T, e *Env) {
	deleted := map[string]string{}
	for _, kind := range resourceKinds(t, e) {
		name := e.Name(kind.collection)
		WantCode(t, kind.create(t.Context(), name), codes.OK)
		WantCode(t, kind.remove(t.Context(), name), codes.OK)
		deleted[kind.collection] = name
	}
	for _, call := range nameCalls(t, e) {
		for what, name := range map[string]string{"never created": e.Name(call.collection), "deleted": deleted[call.collection]} {
			t.Run(call.name+"/"+call.collection+"/"+what, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				WantCode(t, call.do(ctx, name), codes.NotFound)
			})
		}
	}
}

func subscriptionWithoutTopic(t *testing.T, e *Env) {
	gone := e.Topic(t)
	deleteTopic(t, e, gone)
	tests := []struct {
		name, topic string
		want        codes.Code
	}{
		{"missing", e.Name("topics"), codes.NotFound},
		{"deleted", gone, codes.NotFound},
		{"empty", "", codes.InvalidArgument},
		{"malformed", "x", codes.InvalidArgument},
		{"subscription", e.Name("subscriptions"), codes.InvalidArgument},
		{"mark of a deleted topic", deletedTopic, codes.InvalidArgument},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			name := e.Name("subscriptions")
			_, err := e.Subs.CreateSubscription(t.Context(), &pubsubpb.Subscription{Name: name, Topic: test.topic}, singleTry)
			WantCode(t, err, test.want)
			_, err = e.Subs.GetSubscription(t.Context(), &pubsubpb.GetSubscriptionRequest{Subscription: name}, singleTry)
			WantCode(t, err, codes.NotFound)
		})
	}
}
